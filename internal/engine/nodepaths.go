package engine

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/path"
	"github.com/fabricd/fabricd/internal/status"
)

// nodePaths are a node's paths: how many there are, and the sockets that are awaited.
// The zero value is ready to use.
type nodePaths struct {
	looked time.Duration // Node.now, when watchPaths looked last; of keepAlive

	mu      sync.Mutex                             // guards the fields below; innermost
	count   int                                    // paths that are made or being made, or drained
	ending  map[*os.File]endingPath                // those that are drained
	byToken map[path.Token]func(*net.TCPConn) bool // takes the socket that shows the token; false: too late
}

// admit counts a path that is to be made, of which there may be so many; 0: no bound.
func (p *nodePaths) admit(most int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if most > 0 && p.count >= most {
		return fmt.Errorf("this node has %d paths, as many as max-paths lets it: %w", p.count, status.Again)
	}
	p.count++
	return nil
}

// left takes back a count of admit.
func (p *nodePaths) left() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.count--
}

// An endingPath is a path whose application has closed its connection to peer. whole: the
// socket has all bytes that it has sent.
type endingPath struct {
	peer  addr.Incarnation
	whole bool
}

// finish notes f as an endingPath, until finished.
func (p *nodePaths) finish(f *os.File, peer addr.Incarnation, whole bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ending == nil {
		p.ending = make(map[*os.File]endingPath)
	}
	p.ending[f] = endingPath{peer, whole}
}

// cut ends the paths to an incarnation that is removed.
func (p *nodePaths) cut(peer addr.Incarnation) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for f, e := range p.ending {
		if e.peer == peer {
			path.Reset(f)
		}
	}
}

func (p *nodePaths) finished(f *os.File) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.ending, f)
}

// arrived reports whether the peers' machines have all that closed connections have sent.
func (p *nodePaths) arrived() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for f, e := range p.ending {
		if !e.whole || path.Unacknowledged(f) > 0 {
			return false
		}
	}
	return true
}

// expect notes that a socket with that token is settle's.
func (p *nodePaths) expect(t path.Token, settle func(*net.TCPConn) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byToken == nil {
		p.byToken = make(map[path.Token]func(*net.TCPConn) bool)
	}
	p.byToken[t] = settle
}

// forget removes the function that takes the socket with that token, and returns it; nil if none.
func (p *nodePaths) forget(t path.Token) (settle func(*net.TCPConn) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	settle = p.byToken[t]
	delete(p.byToken, t)
	return settle
}

// AcceptPath takes a socket that was accepted at the data port and begins with path.First. It is
// given up, and closed, unless it shows a token that a connection waits for.
func (n *Node) AcceptPath(s *net.TCPConn, first io.Reader) {
	err := n.acceptPath(s, first)
	if err != nil {
		s.Close()
		n.reports.refusals.Line(zerolog.InfoLevel, remoteOf(s)).Err(err).Msg("a path was refused")
	}
}

func remoteOf(s *net.TCPConn) netip.Addr {
	if a, ok := s.RemoteAddr().(*net.TCPAddr); ok {
		return a.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

var errNoToken = errors.New("no connection waits for a path with this token")

func (n *Node) acceptPath(s *net.TCPConn, first io.Reader) error {
	s.SetDeadline(time.Now().Add(pathDial))
	t, err := path.ReadGreeting(first)
	if err != nil {
		return err
	}
	settle := n.paths.forget(t) // whatever comes of it: it is used up
	if settle == nil {
		return errNoToken
	}
	if err := path.Accept(s); err != nil {
		return err
	}
	if !settle(s) {
		return errNoToken
	}
	return nil
}
