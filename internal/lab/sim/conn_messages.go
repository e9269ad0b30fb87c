package sim

import (
	"fmt"
	"io"

	"github.com/fabricd/fabricd/internal/core"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/wire"
)

// readMessages takes the peer's message stream, of which there is one.
func (c *conn) readMessages(r *frames) error {
	switch {
	case c.messages != nil:
		return fmt.Errorf("%w: a second message stream", status.Protocol)
	case c.failed:
		r.stream.drop()
		return nil
	}
	c.messages = r
	r.stream.more = c.readMore
	c.readMore()
	return nil
}

// readMore fills the inbox from the message stream.
func (c *conn) readMore() {
	if c.messages == nil || c.streamOver {
		return
	}
	var scratch [4096]byte
	for !c.inflow.Over() {
		room := messageWindow - c.inflow.Unread()
		if room == 0 {
			return
		}
		n, err := c.messages.Read(scratch[:min(room, len(scratch))])
		if err == errNothing {
			return
		}
		ok := true
		if n > 0 {
			ok = c.inflow.Arrive(n)
			if !c.inflow.Muted() {
				c.inbox = append(c.inbox, scratch[:n]...)
			}
		}
		if err == io.EOF {
			ok = c.inflow.Cut()
		}
		if !ok || err != nil && err != io.EOF {
			if !ok {
				c.link.violated(status.Protocol)
			}
			if !c.inflow.Muted() && !c.inflow.Over() {
				c.fail(status.Reset)
			}
			return
		}
		c.wakeReaders()
		c.answerClose()
		if err == io.EOF {
			c.messages.stream.more = nil
			c.streamOver = true
			return
		}
	}
}

// wakeReaders wakes the receives that wait.
func (c *conn) wakeReaders() {
	for len(c.readers) > 0 && c.readers[0]() {
		c.readers = c.readers[1:]
	}
}

// read takes the bytes that have arrived, at most n. It reports false if there are none
// yet.
func (c *conn) read(n int) (p []byte, err error, ok bool) {
	if c.inflow.Muted() {
		return nil, status.Reset, true
	}
	if k := min(n, len(c.inbox)); k > 0 {
		p = c.inbox[:k:k]
		c.inbox = c.inbox[k:]
		full := c.inflow.Unread() == messageWindow
		c.inflow.Take(k)
		if limit, due := c.inflow.Grant(); due {
			c.core.Queue(wire.Credit{Limit: limit}.AppendTo(nil))
			c.kick()
		}
		if full {
			c.soon(c.readMore)
		}
		return p, nil, true
	}
	switch {
	case c.inflow.PeerClosed():
		return nil, io.EOF, true
	case c.inflow.Over():
		return nil, status.Reset, true
	}
	return nil, nil, false
}

// An outbox sends the message bytes of a connection.
type outbox struct {
	c      *conn
	flow   core.Outflow
	stream *stream
	queue  []*sending
	err    error
	cut    bool
}

// A sending is one blocked send.
type sending struct {
	p    []byte
	n    int // bytes handed to the stream
	done func(n int, err error)
}

func (o *outbox) send(p []byte, done func(int, error)) {
	o.queue = append(o.queue, &sending{p: p, done: done})
	o.pump()
}

func (o *outbox) raise(limit uint64) {
	o.flow.Raise(limit)
	o.pump()
}

// pump sends as much as the peer and the stream have room for.
func (o *outbox) pump() {
	for len(o.queue) > 0 {
		s := o.queue[0]
		if o.err != nil {
			o.finished(s, o.err)
			continue
		}
		if s.n < len(s.p) {
			if o.flow.Room() == 0 || !o.ready() {
				return
			}
			k := o.flow.Reserve(min(len(s.p)-s.n, messageMax))
			o.stream.write(s.p[s.n : s.n+k : s.n+k])
			s.n += k
		}
		if s.n == len(s.p) {
			o.finished(s, nil)
		}
	}
}

func (o *outbox) finished(s *sending, err error) {
	o.queue = o.queue[1:]
	o.c.soon(func() { s.done(s.n, err) })
}

// ready opens the stream at its first use, and reports whether it takes bytes.
func (o *outbox) ready() bool {
	if o.cut {
		return false
	}
	if o.stream == nil {
		o.stream = o.c.link.sess.open()
		o.stream.room = o.pump
		o.stream.write(wire.Stream{Peer: o.c.peer}.AppendTo(nil))
	}
	return o.stream.takes()
}

// stop makes every later and every blocked send end with err.
func (o *outbox) stop(err error) {
	if o.err == nil {
		o.err = err
	}
	o.pump()
}

// finish ends the stream after everything accepted.
func (o *outbox) finish() {
	if o.stream != nil {
		o.stream.close()
	}
}

// abort drops the stream and its unwritten bytes: the connection is gone.
func (o *outbox) abort() {
	o.stop(status.Reset)
	o.cut = true
	if o.stream != nil {
		o.stream.cancel()
	}
}
