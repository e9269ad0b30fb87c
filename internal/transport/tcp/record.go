package tcp

import (
	"encoding/binary"
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
)

// A recordConn lies between TLS and a TCP connection. It reads from the socket
// as much as there is and hands TLS one record after the other, so that it
// knows whether another one is there. How it writes is set after the handshake:
//
//   - at first, straight to the socket;
//   - sendAsync: as much as the socket takes at once; a goroutine writes the rest;
//   - sendGathered: collected, until flush.
type recordConn struct {
	net.Conn
	sent, received atomic.Uint64 // bytes

	// Of the goroutine that reads.
	in         []byte // what was read from the socket
	start, end int    // of what TLS has not taken; 0 <= start <= end <= len(in)
	rest       int    // bytes of the current record that TLS has not taken
	plain      bool   // there are no records any more
	dry        bool   // somebody else reads the socket to in

	async *outlet // not nil after sendAsync

	// After sendGathered. TLS answers the peer from the goroutine that reads: mu guards
	// what its records are collected in.
	gathers bool
	glance  func() // is called between records, with mu held
	mu      sync.Mutex
	out     []byte
	gone    bool // an interrupt has come: out is written by whoever flush has left it to
}

// gatherSize is how much a gathering connection collects before it writes, in
// bytes: 16 records.
const gatherSize = 16 * (recordHeader + 16<<10 + 256)

// recordHeader is the length of a TLS record's header, which ends with the
// record's length.
const recordHeader = 5

// longestRecord is the most that TLS 1.3 allows behind the header, in bytes.
const longestRecord = 16<<10 + 256

func newRecordConn(c net.Conn, buffer int) *recordConn {
	return &recordConn{Conn: c, in: make([]byte, buffer)}
}

// Read returns bytes of the current record. It reads from the socket only when
// nothing is buffered.
func (c *recordConn) Read(p []byte) (int, error) {
	for c.rest == 0 {
		if c.end-c.start >= recordHeader {
			c.rest = recordHeader + int(binary.BigEndian.Uint16(c.in[c.start+3:]))
			break
		}
		if err := c.fill(); err != nil {
			return 0, err
		}
	}
	if c.start == c.end {
		if err := c.fill(); err != nil {
			return 0, err
		}
	}
	n := copy(p[:min(len(p), c.rest)], c.in[c.start:c.end])
	c.start += n
	c.rest -= n
	return n, nil
}

// fill reads once from the socket.
func (c *recordConn) fill() error {
	if c.dry {
		return os.ErrDeadlineExceeded // TLS survives it
	}
	n, err := c.receive(c.room())
	c.end += n
	if n > 0 {
		return nil // an error that came with bytes comes again
	}
	return err
}

// room returns where the next bytes of the socket belong. It is not empty where
// all whole records have been taken.
func (c *recordConn) room() []byte {
	if c.start == c.end {
		c.start, c.end = 0, 0
	} else if c.end == len(c.in) {
		c.end = copy(c.in, c.in[c.start:c.end])
		c.start = 0
	}
	return c.in[c.end:]
}

// receive reads once from the socket to p.
func (c *recordConn) receive(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.received.Add(uint64(n))
	return n, err
}

// hasMore reports whether TLS can read another record without the socket, or see
// that it is too long, or, without TLS, whether there are bytes.
func (c *recordConn) hasMore() bool {
	n := c.end - c.start
	if c.plain {
		return n > 0
	}
	switch {
	case c.rest > 0: // TLS wanted it before it was there
		return n >= c.rest
	case n < recordHeader:
		return false
	}
	length := int(binary.BigEndian.Uint16(c.in[c.start+3:]))
	return n >= recordHeader+length || length > longestRecord
}

// Write is called by TLS, by one goroutine at a time, with whole records.
func (c *recordConn) Write(p []byte) (int, error) {
	switch {
	case c.async != nil:
		c.sent.Add(uint64(len(p)))
		return len(p), c.async.push(p)
	case c.gathers:
		return len(p), c.gather(p)
	}
	n, err := c.Conn.Write(p)
	c.sent.Add(uint64(n))
	return n, err
}

// gather collects p, and writes when that is much.
func (c *recordConn) gather(p []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.glance()
	c.out = append(c.out, p...)
	if len(c.out) < gatherSize {
		return nil
	}
	return c.writeOut()
}

// flush writes what was collected. An interrupt is no error here: TLS would not
// survive it. What it has left is returned, for the caller to write and then to call
// proceed.
func (c *recordConn) flush() (rest []byte, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.writeOut(); err != nil || !c.gone {
		return nil, err
	}
	return c.out, nil
}

// writeOut writes what was collected, if nobody else is to do that. mu is held.
func (c *recordConn) writeOut() error {
	if c.gone || len(c.out) == 0 {
		return nil
	}
	n, err := c.Conn.Write(c.out)
	c.sent.Add(uint64(n))
	if err != nil && !isInterrupt(err) {
		return err
	}
	c.gone = err != nil
	c.out = c.out[:copy(c.out, c.out[n:])]
	return nil
}

// proceed ends what flush has left to the caller, n bytes that it has written. What
// was collected meanwhile goes out with the next flush.
func (c *recordConn) proceed(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent.Add(uint64(n))
	c.gone, c.out = false, append([]byte(nil), c.out[n:]...)
}

// An outlet writes to a socket and never waits: what the socket does not take
// at once a goroutine writes. Its owner bounds what waits, by backlog.
type outlet struct {
	conn    net.Conn
	raw     syscall.RawConn // nil: the goroutine writes everything
	spawn   func(func()) bool
	drained func()      // called without mu when the backlog has become small
	failed  func(error) // called without mu when the socket has failed

	backlog atomic.Int64 // bytes that wait

	mu      sync.Mutex // guards the fields below
	rest    []byte     // what waits and is not being written
	spare   []byte     // memory for rest
	writing bool       // the goroutine runs
	err     error

	// Of an attempt to write, with mu held: fields, so that it needs no memory.
	attempt func(uintptr) bool
	offer   []byte
	took    int
	refused error
}

// Bounds of an outlet's backlog, in bytes. Nobody adds data above maxBacklog;
// what answers the peer may go on until a peer that does not read is cut off.
const (
	maxBacklog  = 128 << 10
	hardBacklog = 1 << 20
)

var errNotRead = errors.New("the peer asks and does not read the answers")

func newOutlet(c net.Conn, spawn func(func()) bool, drained func(), failed func(error)) *outlet {
	o := &outlet{conn: c, raw: rawConn(c), spawn: spawn, drained: drained, failed: failed}
	o.attempt = func(fd uintptr) bool {
		o.took, o.refused = writeNow(fd, o.offer)
		return true
	}
	return o
}

// push hands p to the socket, or keeps a copy of what that does not take.
func (o *outlet) push(p []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil {
		return o.err
	}
	if !o.writing && o.raw != nil {
		n, err := o.try(p)
		if err != nil {
			o.err = err
			return err
		}
		p = p[n:]
	}
	if len(p) == 0 {
		return nil
	}
	if o.backlog.Add(int64(len(p))) > hardBacklog {
		o.err = errNotRead
		return o.err
	}
	o.rest = append(o.rest, p...)
	if !o.writing {
		o.writing = o.spawn(o.write)
	}
	return nil
}

// try writes what the socket takes now. mu is held.
func (o *outlet) try(p []byte) (int, error) {
	o.offer, o.took, o.refused = p, 0, nil
	err := o.raw.Write(o.attempt)
	o.offer = nil
	if err == nil {
		err = o.refused
	}
	return o.took, err
}

// write is the goroutine: it writes until nothing waits.
func (o *outlet) write() {
	for {
		o.mu.Lock()
		p := o.rest
		if len(p) == 0 || o.err != nil {
			o.writing = false
			o.mu.Unlock()
			return
		}
		o.rest, o.spare = o.spare[:0], nil
		o.mu.Unlock()
		_, err := o.conn.Write(p)
		left := o.backlog.Add(-int64(len(p)))
		o.mu.Lock()
		if o.err == nil {
			o.err = err
		}
		if cap(p) <= 2*maxBacklog {
			o.spare = p
		}
		o.mu.Unlock()
		if err != nil {
			o.failed(err)
			continue
		}
		if left <= maxBacklog/2 {
			o.drained()
		}
	}
}
