package control

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/fabricd/fabricd/internal/guard"
	"github.com/fabricd/fabricd/internal/wait"
	"github.com/fabricd/fabricd/membership/trust"
	"github.com/fabricd/fabricd/membership/verdict"
)

const (
	// maxQueue bounds the bytes that wait for a peer to read. It holds the
	// table of some ten thousand nodes. A peer that lets it fill is closed.
	maxQueue = 4 << 20
	// writeTimeout is how long one write may take before the peer is given up.
	writeTimeout = 10 * time.Second
	// closeTimeout is how long a close on purpose waits for the peer.
	closeTimeout = time.Second
)

var errSlow = errors.New("the peer does not read: its queue is full")

// A pipe is an open link with a goroutine for each direction.
type pipe struct {
	link *link
	echo bool // answer every Beat with a Beat

	wake chan struct{} // capacity 1: there is something to write
	done chan struct{} // closed when both goroutines have ended

	mu      sync.Mutex // guards the fields below
	queue   []byte     // encoded frames that were not written yet
	beats   uint64     // sent
	closing bool       // a Close is the last frame in queue, or was written
	cause   error      // why the pipe ends, set once
}

func newPipe(l *link) pipe {
	return pipe{link: l, wake: make(chan struct{}, 1), done: make(chan struct{})}
}

// A connection is an open link between two nodes that have proved their identities.
type connection struct {
	pipe       pipe
	self, peer End            // as they were at the opening
	id         trust.Identity // of the peer
}

func newConnection(l *link, o opened) connection {
	return connection{pipe: newPipe(l), self: o.self, peer: o.peer, id: o.id}
}

// Self returns this end's claims in the opening.
func (c *connection) Self() End { return c.self }

// Peer returns the other end's claims in the opening; its UUID, and on control sessions its host
// role, are proved by its certificate.
func (c *connection) Peer() End { return c.peer }

// Identity returns the identity that the peer's certificate proves.
func (c *connection) Identity() trust.Identity { return c.id }

// Close ends the connection on purpose: messages sent before are delivered, the peer is sent text,
// and after a second at most the connection is closed. It does not wait; see Done.
func (c *connection) Close(text string) { c.pipe.close(&ClosedError{Text: text}, text) }

// Abort ends the connection at once, as the death of this process would.
func (c *connection) Abort() { c.pipe.abort() }

// Done is closed when the connection has ended and its goroutines are gone.
func (c *connection) Done() <-chan struct{} { return c.pipe.done }

// run starts the two goroutines. Every frame but Close and Beat goes to
// deliver, whose error ends the pipe. alive is called for every frame but Close, down
// once, at the end. All three are called on the reading goroutine.
func (p *pipe) run(deliver func(any) error, alive func(), down func(verdict.DownCause, error)) {
	var writer sync.WaitGroup
	stop := make(chan struct{})
	writer.Go(func() {
		defer guard.Recover(p.panicked)
		p.write(stop)
	})
	go func() { // ends when the link does; its owner waits for Done
		defer close(p.done)
		err := p.readGuarded(deliver, alive)
		close(stop)
		writer.Wait()
		p.link.raw.Close()
		p.mu.Lock()
		if p.cause == nil {
			p.cause = err
		}
		err = p.cause
		p.mu.Unlock()
		down(downCause(err), err)
	}()
}

// readGuarded is read, which ends the pipe if it panics: a peer's bytes end nothing but its own
// session.
func (p *pipe) readGuarded(deliver func(any) error, alive func()) (err error) {
	defer guard.Recover(func(why error, stack []byte) {
		p.panicked(why, stack)
		err = why
	})
	return p.read(deliver, alive)
}

// panicked ends the pipe because one of its goroutines has panicked. The cause goes
// to the owner with the stack, which logs it.
func (p *pipe) panicked(err error, stack []byte) {
	p.fail(fmt.Errorf("%w\n%s", err, stack))
}

// downCause distinguishes an end on purpose from all others.
func downCause(err error) verdict.DownCause {
	var closed *ClosedError
	var refused *RefusedError
	switch {
	case errors.As(err, &closed), errors.As(err, &refused):
		return verdict.DownClosed
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, errSlow):
		return verdict.DownSilent
	}
	return verdict.DownEnded
}

// send queues one frame. It never waits.
func (p *pipe) send(f any) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cause != nil || p.closing {
		return p.endLocked()
	}
	q, err := AppendFrame(p.queue, f)
	if err != nil {
		return err
	}
	p.queue = q
	if len(p.queue) > maxQueue {
		p.cause = errSlow
		p.link.raw.Close()
		return errSlow
	}
	p.kick()
	return nil
}

// beat queues a sign of life, unless the peer does not even read the last ones.
func (p *pipe) beat() {
	p.mu.Lock()
	waiting := len(p.queue) > 0
	p.beats++
	seq := p.beats
	p.mu.Unlock()
	if !waiting {
		_ = p.send(Beat{Seq: seq}) // the owner of the pipe is notified of its end
	}
}

// answer answers a sign of life on the reading goroutine itself: to wake the
// other one up costs an idle process more than the write. If that waits, the
// peer does not read, and there is nothing else to read from it either.
func (p *pipe) answer() {
	p.mu.Lock()
	busy := len(p.queue) > 0 || p.closing || p.cause != nil
	p.beats++
	f := Beat{Seq: p.beats}
	if !busy {
		p.link.raw.SetWriteDeadline(time.Now().Add(writeTimeout))
	}
	p.mu.Unlock()
	if busy {
		return
	}
	if err := p.link.write(f); err != nil {
		p.fail(err)
	}
}

func (p *pipe) endLocked() error {
	if p.cause != nil {
		return p.cause
	}
	return &ClosedError{}
}

func (p *pipe) kick() { wait.Notify(p.wake) }

// close ends the pipe on purpose, after the queued frames; it does not wait. A second call does
// nothing.
func (p *pipe) close(cause error, text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cause != nil || p.closing {
		return
	}
	p.closing = true
	p.cause = cause
	p.queue, _ = AppendFrame(p.queue, Close{Text: clip(text)})
	p.link.raw.SetWriteDeadline(time.Now().Add(closeTimeout))
	p.kick()
}

// abort ends the pipe at once and without a word, as the death of this process
// would.
func (p *pipe) abort() {
	p.mu.Lock()
	if p.cause == nil {
		p.cause = &ClosedError{}
	}
	p.mu.Unlock()
	p.link.raw.Close()
}

// write writes queued frames until stop is closed or a write fails.
func (p *pipe) write(stop <-chan struct{}) {
	var spare []byte
	for {
		select {
		case <-stop:
			return
		case <-p.wake:
		}
		p.mu.Lock()
		out, last := p.queue, p.closing
		p.queue = spare[:0]
		timeout := writeTimeout
		if last {
			timeout = closeTimeout
		}
		p.link.raw.SetWriteDeadline(time.Now().Add(timeout)) // under the lock: a close may shorten it
		p.mu.Unlock()
		if _, err := p.link.tls.Write(out); err != nil {
			p.fail(err)
			return
		}
		if last {
			// The peer answers the Close with its own end.
			p.link.tls.CloseWrite()
			p.link.raw.SetReadDeadline(time.Now().Add(closeTimeout))
			return
		}
		if spare = out; cap(spare) > 64<<10 {
			spare = nil // a table passed; do not keep its buffer
		}
	}
}

// fail ends the pipe because of err, which makes the reader end as well.
func (p *pipe) fail(err error) {
	p.mu.Lock()
	if p.cause == nil {
		p.cause = fmt.Errorf("write: %w", err)
	}
	p.mu.Unlock()
	p.link.raw.Close()
}

// read delivers frames until the link ends, and returns why it did.
func (p *pipe) read(deliver func(any) error, alive func()) error {
	for {
		f, err := p.link.read()
		if err != nil {
			if errors.Is(err, ErrMalformed) {
				p.rejectFrame(err)
			}
			return err
		}
		if f, ok := f.(Close); ok {
			return &ClosedError{Text: f.Text, Remote: true}
		}
		alive()
		if _, ok := f.(Beat); ok {
			if p.echo {
				p.answer()
			}
			continue
		}
		if p.isClosing() {
			continue // we wait for the peer's end only
		}
		if err := deliver(f); err != nil {
			return p.rejectFrame(err)
		}
	}
}

func (p *pipe) isClosing() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closing
}

// rejectFrame closes the pipe because of a frame that the peer sent, sends it the reason, and
// waits for its end.
func (p *pipe) rejectFrame(err error) error {
	p.close(err, err.Error())
	p.link.raw.SetReadDeadline(time.Now().Add(closeTimeout))
	p.link.drain()
	return err
}
