package ipc

import (
	"bytes"
	"errors"
	"net"
	"os"
	"sync"

	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/internal/status"
)

// A letter is one frame to be sent.
type letter struct {
	header
	body  message  // nil for an empty one; not used after put
	file  *os.File // passed along; nil for none
	after func()   // runs once the frame is sent or dropped; may be nil
}

// A packet is a frame that waits for the socket.
type packet struct {
	bytes []byte
	file  *os.File
	after func()
	told  bool // by tell
}

func (p packet) end() {
	if p.after != nil {
		p.after()
	}
}

// An outbox sends packets in order without making their senders wait. What the
// socket does not take at once is queued; the bound is the senders' affair, see
// [outbox.wait] and tell's limit.
type outbox struct {
	conn *net.UnixConn

	mu     sync.Mutex // guards the fields below; held over sends that do not wait
	moved  sync.Cond  // broadcast when queue or closed has changed
	queue  []packet   // the first is being sent
	told   int        // of them, by tell
	closed bool
	sender *shm.Sender
	coder  coder  // of the frame that is being put
	frame  []byte // its memory, kept for the next one
}

func newOutbox(conn *net.UnixConn) *outbox {
	o := &outbox{conn: conn, sender: shm.NewSender(conn)}
	o.moved.L = &o.mu
	return o
}

// put sends l or queues it. It returns status.Reset when the outbox is closed or the
// socket broken; l is dropped then.
func (o *outbox) put(l letter) error { return o.post(l, false, 0) }

// tell is put of what may come without end. It drops l and returns status.NoBufs
// when limit packets of tell are queued.
func (o *outbox) tell(l letter, limit int) error { return o.post(l, true, limit) }

func (o *outbox) post(l letter, told bool, limit int) error {
	err := o.enqueue(l, told, limit)
	if errors.Is(err, errQueued) {
		return nil
	}
	if l.after != nil {
		l.after()
	}
	return err
}

// errQueued says that the packet was kept.
var errQueued = errors.New("queued")

func (o *outbox) enqueue(l letter, told bool, limit int) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.closed:
		return status.Reset
	case told && o.told >= limit:
		return status.NoBufs
	}
	o.coder = coder{b: o.frame[:0], encoding: true}
	o.coder.frame(l.header, l.body)
	o.frame, o.coder.b = o.coder.b, nil
	if len(o.queue) == 0 {
		switch err := o.sender.TrySend(o.frame, l.file); {
		case err == nil:
			return nil
		case !errors.Is(err, status.Again):
			o.conn.Close() // the reader finds out, and ends the session
			return status.Reset
		}
	}
	o.queue = append(o.queue, packet{bytes: bytes.Clone(o.frame), file: l.file, after: l.after, told: told})
	if told {
		o.told++
	}
	o.moved.Broadcast()
	return errQueued
}

// wait returns when fewer than n packets are queued, or the outbox is closed.
func (o *outbox) wait(n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.queue) >= n && !o.closed {
		o.moved.Wait()
	}
}

// run sends what is queued until close. Its goroutine is the only one that
// takes packets from the queue.
func (o *outbox) run() {
	for {
		o.mu.Lock()
		for len(o.queue) == 0 && !o.closed {
			o.moved.Wait()
		}
		if o.closed {
			o.mu.Unlock()
			return
		}
		p := o.queue[0]
		o.mu.Unlock()

		if err := shm.Send(o.conn, p.bytes, p.file); err != nil {
			o.conn.Close() // the reader finds out
			o.close()
			return
		}
		o.mu.Lock()
		if !o.closed { // close has dropped and ended everything queued, p too
			o.queue = o.queue[1:]
			if p.told {
				o.told--
			}
			o.moved.Broadcast()
			o.mu.Unlock()
			p.end()
			continue
		}
		o.mu.Unlock()
		return
	}
}

// close drops what is queued and refuses more. The owner closes the socket
// first, so that run is not left waiting in it.
func (o *outbox) close() {
	o.mu.Lock()
	dropped := o.queue
	o.queue, o.closed = nil, true
	o.moved.Broadcast()
	o.mu.Unlock()
	for _, p := range dropped {
		p.end()
	}
}
