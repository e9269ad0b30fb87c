package proto

import (
	"bytes"
	"errors"
	"os"
	"sync"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/status"
)

// A Packet is one frame to be sent.
type Packet struct {
	Header
	Body  Message  // nil for an empty one; not used after put
	File  *os.File // passed along; nil for none
	After func()   // runs once the frame is sent or dropped; may be nil
}

// A packet is a frame that waits for the socket.
type packet struct {
	bytes  []byte
	file   *os.File
	after  func()
	notice bool // by Notify
}

func (p packet) end() {
	if p.after != nil {
		p.after()
	}
}

// An Outbox sends packets in order without making their senders wait. Packets that
// the socket does not take at once are queued; the bound is the senders' affair, see
// [Outbox.Wait] and Notify's limit.
type Outbox struct {
	conn attach.Packets

	mu      sync.Mutex // guards the fields below; held over sends that do not wait
	moved   sync.Cond  // broadcast when queue or closed has changed
	queue   []packet   // the first is being sent
	notices int        // of them, by Notify
	closed  bool
	coder   Coder  // of the frame that is being put
	frame   []byte // its memory, kept for the next one
}

// NewOutbox returns an outbox for conn, which stays its owner's. Run must be called.
func NewOutbox(conn attach.Packets) *Outbox {
	o := &Outbox{conn: conn}
	o.moved.L = &o.mu
	return o
}

// Put sends l or queues it. It returns status.Reset when the outbox is closed or the
// socket broken; l is dropped then.
func (o *Outbox) Put(l Packet) error { return o.post(l, false, 0) }

// Notify is Put for packets that may come without end. It drops l and returns status.NoBufs
// when limit packets of Notify are queued.
func (o *Outbox) Notify(l Packet, limit int) error { return o.post(l, true, limit) }

func (o *Outbox) post(l Packet, notice bool, limit int) error {
	err := o.enqueue(l, notice, limit)
	if errors.Is(err, errQueued) {
		return nil
	}
	if l.After != nil {
		l.After()
	}
	return err
}

// errQueued reports that the packet was kept.
var errQueued = errors.New("queued")

func (o *Outbox) enqueue(l Packet, notice bool, limit int) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.closed:
		return status.Reset
	case notice && o.notices >= limit:
		return status.NoBufs
	}
	o.coder = encoderTo(o.frame[:0])
	o.coder.frame(l.Header, l.Body)
	o.frame = o.coder.put.Encoded()
	if len(o.queue) == 0 {
		switch err := o.conn.TrySend(o.frame, l.File); {
		case err == nil:
			return nil
		case !errors.Is(err, status.Again):
			o.conn.Close() // the reader finds out, and ends the session
			return status.Reset
		}
	}
	o.queue = append(o.queue, packet{bytes: bytes.Clone(o.frame), file: l.File, after: l.After, notice: notice})
	if notice {
		o.notices++
	}
	o.moved.Broadcast()
	return errQueued
}

// Wait returns when fewer than n packets are queued, or the outbox is closed.
func (o *Outbox) Wait(n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.queue) >= n && !o.closed {
		o.moved.Wait()
	}
}

// Run sends the queued packets until close. Its goroutine is the only one that
// takes packets from the queue.
func (o *Outbox) Run() {
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

		if err := o.conn.Send(p.bytes, p.file); err != nil {
			o.conn.Close() // the reader finds out
			o.Close()
			return
		}
		o.mu.Lock()
		if !o.closed { // close has dropped and ended everything queued, p too
			o.queue = o.queue[1:]
			if p.notice {
				o.notices--
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

// Close drops the queued packets and refuses more. The owner closes the socket
// first, so that run is not left waiting in it.
func (o *Outbox) Close() {
	o.mu.Lock()
	dropped := o.queue
	o.queue, o.closed = nil, true
	o.moved.Broadcast()
	o.mu.Unlock()
	for _, p := range dropped {
		p.end()
	}
}
