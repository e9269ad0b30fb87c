package stream

import (
	"encoding/binary"
	"io"
	"net"
	"sync"
	"sync/atomic"

	"github.com/fabricd/fabricd/internal/wait"
)

// A meteredConn counts the bytes of a connection. While records is set it passes TLS one record at
// a time, so that bytes after the last record stay unread for the next layer.
type meteredConn struct {
	net.Conn
	sent, received atomic.Uint64

	records bool
	left    int // bytes of a record still to be read, its header excluded
}

// recordHeader is the length of a TLS record's header; its last two bytes are the length of the
// rest (RFC 8446 5.1).
const recordHeader = 5

func (c *meteredConn) Read(p []byte) (n int, err error) {
	switch {
	case !c.records:
		n, err = c.Conn.Read(p)
	case c.left > 0:
		n, err = c.Conn.Read(p[:min(len(p), c.left)])
		c.left -= n
	case len(p) < recordHeader:
		return 0, io.ErrShortBuffer
	default:
		if n, err = io.ReadFull(c.Conn, p[:recordHeader]); err == nil {
			c.left = int(binary.BigEndian.Uint16(p[3:]))
		}
	}
	c.received.Add(uint64(n))
	return n, err
}

func (c *meteredConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.sent.Add(uint64(n))
	return n, err
}

// Fields of a yamux frame's header: version, type, flags, stream, length.
const (
	muxHeader   = 12
	muxData     = 0 // type: length bytes follow
	muxWindow   = 1 // type: the last one that belongs to a stream
	muxSYN      = 1 // flag: the stream is new
	controlID   = 1 // the first stream of the dialer
	frameCost   = 64
	sendBacklog = 256 // streams that the peer has not acknowledged yet
)

// A muxConn is the connection below yamux. It parses the incoming frames and enforces the peer's
// number of streams; it stops reading while too many bytes are unread. yamux has neither limit for a
// whole session.
type muxConn struct {
	net.Conn                // TLS, or raw
	raw        *meteredConn // below TLS
	window     int          // bytes
	streamsMax int
	ended      <-chan struct{} // closed when the session has ended

	head [muxHeader]byte
	have int    // bytes of head
	skip uint32 // bytes of the frame still to be read

	mu      sync.Mutex // guards the fields below
	streams map[uint32]*waiting
	unread  int
	room    chan struct{} // holds a token when unread has decreased
}

// A waiting is the unread data of a stream, in bytes; cost is the overhead of its frames.
type waiting struct {
	bytes, cost int
	stream      *recvStream // nil until it was accepted
}

// Read implements net.Conn for yamux.
func (c *muxConn) Read(p []byte) (int, error) {
	for c.full() {
		select {
		case <-c.room:
		case <-c.ended:
			return 0, net.ErrClosed
		}
	}
	n, err := c.Conn.Read(p)
	if bad := c.follow(p[:n]); bad != nil {
		return 0, bad
	}
	return n, err
}

// Close implements net.Conn for yamux: at once, without the close alert of TLS, which may have to
// wait.
func (c *muxConn) Close() error { return c.raw.Conn.Close() }

func (c *muxConn) full() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.unread > c.window
}

// follow parses the frames in p.
func (c *muxConn) follow(p []byte) error {
	for len(p) > 0 {
		if c.skip > 0 {
			k := min(len(p), int(c.skip))
			p = p[k:]
			c.skip -= uint32(k)
			continue
		}
		k := copy(c.head[c.have:], p)
		p = p[k:]
		if c.have += k; c.have < muxHeader {
			return nil
		}
		c.have = 0
		if err := c.begin(); err != nil {
			return err
		}
	}
	return nil
}

// begin accounts for the frame of head.
func (c *muxConn) begin() error {
	id := binary.BigEndian.Uint32(c.head[4:])
	if c.head[1] == muxData {
		c.skip = binary.BigEndian.Uint32(c.head[8:])
	}
	if id == controlID || c.head[1] > muxWindow {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.head[3]&muxSYN != 0 && c.streams[id] == nil {
		if len(c.streams) >= c.streamsMax {
			return violation("more than %d streams", c.streamsMax)
		}
		c.streams[id] = &waiting{}
	}
	if w := c.streams[id]; w != nil && c.skip > 0 {
		w.bytes += int(c.skip)
		w.cost += frameCost
		c.unread += int(c.skip) + frameCost
	}
	return nil
}

// took records that n bytes of a stream were read.
func (c *muxConn) took(id uint32, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.streams[id]
	if w == nil {
		return
	}
	w.bytes -= n
	c.unread -= n
	if w.bytes == 0 {
		c.unread -= w.cost
		w.cost = 0
	}
	wait.Notify(c.room)
}

// forget records that a stream is over. It reports whether it was not before.
func (c *muxConn) forget(id uint32) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.streams[id]
	if w != nil {
		delete(c.streams, id)
		c.unread -= w.bytes + w.cost
		wait.Notify(c.room)
	}
	return w != nil
}
