package engine

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/path"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/wire"
)

// anyPath is the common state of a message path and an RMA path, at one of their ends.
type anyPath struct {
	mu      sync.Mutex    // guards the fields below, and the others of the path
	ours    *wire.Path    // the path frame that this end has sent
	peer    *wire.Path    // the path frame that the peer has sent
	freed   func()        // of ours: called when nothing of the path is held any more; nil: the peer asked
	made    chan struct{} // closed when the path is made, or will not be; nil: no call waits
	socket  *path.Held
	since   time.Time    // it is there, by the wall clock
	silence path.Silence // of socket, for watchPaths
	why     error        // why there is no path
	over    bool         // no path is made any more, and the one there was has ended
	failed  time.Time    // the last attempt; zero: there was none
}

// pathPause is how long after a failed attempt the peer may not begin another one. An
// application waits for twice that at least.
const pathPause = 500 * time.Millisecond

// tooSoon reports whether the last attempt has failed within pathPause. The caller holds mu.
func (p *anyPath) tooSoon() bool { return !p.failed.IsZero() && time.Since(p.failed) < pathPause }

// passes reports whether another attempt may follow one that has ended for why.
func passes(why error) bool { return why != nil && !errors.Is(why, status.NotSupp) }

// peerSays is the reason that the peer's node has given for there being no path.
func peerSays(reason string, passing bool) error {
	code := status.NotSupp
	if passing {
		code = status.Again
	}
	return fmt.Errorf("the peer's node reports: %s: %w", attach.CleanCause(reason), code)
}

var (
	errNoPaths = fmt.Errorf("this node makes no paths: %w", status.NotSupp)
	errMixed   = fmt.Errorf("tcp-plaintext is set at one of the two nodes only: %w", status.NotSupp)
)

// mayHavePath returns why the connection has no path of a kind that links know from a
// version on; nil: it may have one.
func (c *conn) mayHavePath(kind string, version uint16) error {
	switch {
	case c.link.otherEnd != nil:
		return fmt.Errorf("the peer is on this node: %w", status.NotSupp)
	case c.link.n.cfg.Paths == nil:
		return errNoPaths
	case c.link.version < version:
		return fmt.Errorf("the peer's fabricd knows no %s: %w", kind, status.NotSupp)
	}
	return nil
}

// reason is why there is no path. The caller holds mu.
func (p *anyPath) reason() error {
	if p.why != nil {
		return p.why
	}
	return fmt.Errorf("the connection has ended: %w", status.Reset)
}

// isMade reports whether the socket and the peer's path frame are there. The frame may
// come later. The caller holds mu.
func (p *anyPath) isMade() bool { return p.socket != nil && p.peer != nil }

// settleLocked ends the wait for a path that is made. The caller holds mu.
func (p *anyPath) settleLocked() {
	if p.isMade() {
		close(p.made)
	}
}

// binding returns that of a path that is made.
func (p *anyPath) binding(dialed bool) path.Binding {
	if dialed {
		return path.Bind(p.ours.Token, p.peer.Token)
	}
	return path.Bind(p.peer.Token, p.ours.Token)
}

// handOut returns the application's end of a path that is made. The caller holds mu.
func (p *anyPath) handOut(dialed bool) (attach.PathSocket, error) {
	f, err := p.socket.Duplicate()
	if err != nil {
		return attach.PathSocket{}, fmt.Errorf("%w: %w", status.NoMemory, err)
	}
	return attach.PathSocket{File: f, Client: dialed, Plaintext: p.ours.Plaintext,
		Binding: p.binding(dialed), Peer: path.Hash(p.peer.Key)}, nil
}

// silentFor returns for how long nothing has come through the path's socket, although the
// kernel at the other end should have answered by then.
func (p *anyPath) silentFor(now, every time.Duration) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.socket == nil {
		return 0
	}
	return p.silence.Look(p.socket, now, every)
}

// info describes the path; nil if there is none.
func (p *anyPath) info() *PathInfo {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.isMade() {
		return nil
	}
	t := path.TrafficOf(p.socket)
	return &PathInfo{
		Local: p.socket.LocalAddr().String(), Remote: p.socket.RemoteAddr().String(), TLS: !p.ours.Plaintext, Since: p.since,
		SentBytes: t.Sent, ReceivedBytes: t.Received, RoundTripUS: t.RoundTrip.Microseconds(),
		UnsentBytes: t.Unsent, WaitingMS: t.Waiting.Milliseconds(), UnreadBytes: t.Unread, Retransmits: t.Retransmits,
		Unlocked: p.socket.Unlocked(),
	}
}
