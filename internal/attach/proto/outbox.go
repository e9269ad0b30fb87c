package proto

import (
	"bytes"
	"errors"
	"net"
	"os"
	"sync"

	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/internal/status"
)

// A Letter is one frame to be sent.
type Letter struct {
	Header
	Body  Message  // not used after Put; nil for an empty one
	File  *os.File // passed with the frame; nil for none
	After func()   // runs once the frame is sent or dropped; may be nil
}

// A packet is a frame queued for the socket.
type packet struct {
	bytes []byte
	file  *os.File
	after func()
	told  bool // by Tell
}

func (p packet) end() {
	if p.after != nil {
		p.after()
	}
}

// An Outbox sends packets in order without blocking their senders. Packets that the socket does not
// accept at once are queued. The senders bound the queue, see [Outbox.Wait] and Tell's limit.
type Outbox struct {
	conn *net.UnixConn

	mu     sync.Mutex // guards the fields below; held over non-blocking sends
	moved  sync.Cond  // broadcast when queue or closed has changed
	queue  []packet   // the first is being sent
	told   int        // number of queued packets by Tell
	closed bool
	sender *shm.Sender
	coder  Coder  // of the frame that is being encoded
	frame  []byte // its buffer, reused
}

// NewOutbox returns an outbox for conn, which the caller still owns. The caller must call Run.
func NewOutbox(conn *net.UnixConn) *Outbox {
	o := &Outbox{conn: conn, sender: shm.NewSender(conn)}
	o.moved.L = &o.mu
	return o
}

// Put sends l or queues it. It returns status.Reset when the outbox is closed or the
// socket broken; l is dropped then.
func (o *Outbox) Put(l Letter) error { return o.post(l, false, 0) }

// Tell is Put for packets without a bound of their own. It drops l and returns status.NoBufs when
// limit packets of Tell are queued.
func (o *Outbox) Tell(l Letter, limit int) error { return o.post(l, true, limit) }

func (o *Outbox) post(l Letter, told bool, limit int) error {
	err := o.enqueue(l, told, limit)
	if errors.Is(err, errQueued) {
		return nil
	}
	if l.After != nil {
		l.After()
	}
	return err
}

// errQueued reports that the packet was queued.
var errQueued = errors.New("queued")

func (o *Outbox) enqueue(l Letter, told bool, limit int) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.closed:
		return status.Reset
	case told && o.told >= limit:
		return status.NoBufs
	}
	o.coder = encoderTo(o.frame[:0])
	o.coder.frame(l.Header, l.Body)
	o.frame = o.coder.put.Encoded()
	if len(o.queue) == 0 {
		switch err := o.sender.TrySend(o.frame, l.File); {
		case err == nil:
			return nil
		case !errors.Is(err, status.Again):
			o.conn.Close() // the reader gets the error and ends the session
			return status.Reset
		}
	}
	o.queue = append(o.queue, packet{bytes: bytes.Clone(o.frame), file: l.File, after: l.After, told: told})
	if told {
		o.told++
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

// Run sends queued packets until Close. Only its goroutine takes packets from the queue.
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

		if err := shm.Send(o.conn, p.bytes, p.file); err != nil {
			o.conn.Close() // the reader gets the error
			o.Close()
			return
		}
		o.mu.Lock()
		if !o.closed { // Close has dropped and ended all queued packets, p too
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

// Close drops the queue and refuses further packets. The owner closes the socket first, so that Run
// does not block in it.
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
