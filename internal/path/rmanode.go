package path

import (
	"bufio"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// RMAOptions are how a node serves an RMA path.
type RMAOptions struct {
	Client    bool // this end opens TLS
	Plaintext bool
	Binding   Binding
	Key       *Key // of this node
	Peer      Hash // of the key of the application at the other end
	// Taken is called, before each time that the socket is read, with how many bytes
	// were read of it before: everything in them has been applied, but for a request
	// of which a part is missing.
	Taken func(bytes uint64)
}

// An RMAServed is the end of an RMA path that a node serves. One goroutine uses it. Its
// answers go out when it waits for the next request.
type RMAServed struct {
	stream io.ReadWriter // the carrier, with TLS or without
	in     *bufio.Reader
	out    []byte // of an answer's head
	head   [RMARequestLen]byte
	last   uint64 // number of the last request
}

// NewRMAServed opens TLS on s, which stays the caller's, and returns when both ends
// have proved their keys.
func NewRMAServed(s *net.TCPConn, o RMAOptions) (*RMAServed, error) {
	s.SetDeadline(time.Now().Add(handshakeTime))
	c := &rmaCarrier{TCPConn: s, taken: o.Taken}
	e := &RMAServed{stream: c}
	var secure *tls.Conn
	switch {
	case o.Plaintext:
	case o.Client:
		secure = tls.Client(c, o.Key.config(o.Peer))
	default:
		secure = tls.Server(c, o.Key.config(o.Peer))
	}
	if secure != nil {
		if err := secure.Handshake(); err != nil {
			return nil, fmt.Errorf("path: %w", err)
		}
		e.stream = secure
	}
	if err := e.begin(o.Binding); err != nil {
		return nil, fmt.Errorf("path: %w", err)
	}
	s.SetDeadline(time.Time{})
	return e, nil
}

// begin exchanges the beginning of a path: the bindings, and the starts. This end's
// start comes behind the other one's: an initiator that has it knows that its requests are
// served, or that the connection ends.
func (e *RMAServed) begin(b Binding) error {
	if _, err := e.stream.Write(b[:]); err != nil {
		return err
	}
	e.in = bufio.NewReaderSize(e.stream, 4<<10)
	var got [len(b) + 8]byte
	if _, err := io.ReadFull(e.in, got[:]); err != nil {
		return err
	}
	switch {
	case Binding(got[:len(b)]) != b:
		return errors.New("the other end's path is that of another connection")
	case binary.BigEndian.Uint64(got[len(b):]) != 0:
		return ErrRMA
	}
	_, err := e.stream.Write(make([]byte, 8))
	return err
}

// Next waits for the next request. The data behind it is read with Payload.
func (e *RMAServed) Next() (RMARequest, error) {
	if _, err := io.ReadFull(e.in, e.head[:]); err != nil {
		return RMARequest{}, err
	}
	r, err := ParseRMARequest(&e.head)
	if err == nil && r.Number != e.last+1 {
		err = ErrRMA
	}
	e.last = r.Number
	return r, err
}

// Payload reads p.
func (e *RMAServed) Payload(p []byte) error {
	_, err := io.ReadFull(e.in, p)
	return err
}

// Answer sends a, and behind it data.
func (e *RMAServed) Answer(a RMAAnswer, data []byte) error {
	e.out = append(a.AppendTo(e.out[:0]), data...)
	_, err := e.stream.Write(e.out)
	return err
}

// An rmaCarrier collects writes until it is read from, and counts.
type rmaCarrier struct {
	*net.TCPConn
	taken func(uint64)
	read  uint64
	out   []byte
}

// carried is how many bytes are collected at most, and one write more.
const carried = 64 << 10

func (c *rmaCarrier) Read(p []byte) (int, error) {
	c.taken(c.read)
	if err := c.flush(); err != nil {
		return 0, err
	}
	n, err := c.TCPConn.Read(p)
	c.read += uint64(n)
	return n, err
}

func (c *rmaCarrier) Write(p []byte) (int, error) {
	c.out = append(c.out, p...)
	if len(c.out) >= carried {
		return len(p), c.flush()
	}
	return len(p), nil
}

func (c *rmaCarrier) flush() error {
	if len(c.out) == 0 {
		return nil
	}
	_, err := c.TCPConn.Write(c.out)
	c.out = c.out[:0]
	return err
}
