package daemon

import (
	"encoding/binary"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/internal/admission"
	"github.com/fabricd/fabricd/internal/logbound"
	"github.com/fabricd/fabricd/internal/path"
	"github.com/fabricd/fabricd/internal/transport/stream"
	"github.com/fabricd/fabricd/membership"
)

// A share is the data port's TCP listener for three: membership, which accepts
// from it, the TCP provider and the paths of connections, which accept from its
// other sides. The first bytes of a connection show its side. Membership reads them, in the places
// that it has for connections that are not authenticated yet; when they turn out to be for another
// side, the connection changes hands.
type share struct {
	net.Listener           // membership's side
	other        *handover // the provider's side; nil: there is none
	paths        *handover // the side of paths
}

// handedMax bounds the connections that wait for the provider, which accepts
// them at once. Further ones are closed.
const handedMax = 128

// newShare divides l between membership and paths. refused is called for each
// connection that finds no room.
func newShare(l net.Listener, log zerolog.Logger, refused func()) *share {
	return &share{Listener: l, paths: newHandover(l, log, refused)}
}

// provider makes the provider's side, before the first Accept.
func (s *share) provider() *handover {
	s.other = newHandover(s.Listener, s.paths.log, s.paths.refused)
	return s.other
}

func newHandover(l net.Listener, log zerolog.Logger, refused func()) *handover {
	return &handover{
		addr: l.Addr(), refused: refused, log: log, lines: logbound.New(log, "connections for links were refused"),
		conns: make(chan net.Conn, handedMax), done: make(chan struct{}),
	}
}

// Accept returns the next connection, of which nothing was read.
func (s *share) Accept() (net.Conn, error) {
	c, err := s.Listener.Accept()
	if err != nil {
		return nil, err
	}
	tcpConn, ok := c.(*net.TCPConn)
	if !ok {
		return c, nil // not the network's
	}
	return &undecided{TCPConn: tcpConn, of: s}, nil
}

// A handover is a side other than membership's: a listener of the connections that change hands.
type handover struct {
	addr    net.Addr
	conns   chan net.Conn
	refused func()
	log     zerolog.Logger
	lines   *logbound.Summary

	once sync.Once
	done chan struct{} // closed by Close
}

// Accept returns the next connection.
func (h *handover) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.done:
		return nil, net.ErrClosed
	}
}

// Addr returns the data port's address.
func (h *handover) Addr() net.Addr { return h.addr }

// Close ends Accept; membership closes the data port.
func (h *handover) Close() error {
	h.once.Do(func() {
		close(h.done)
		h.lines.Close()
	})
	for {
		select {
		case c := <-h.conns:
			c.Close()
		default:
			return nil
		}
	}
}

// take gives c to the provider, or closes it.
func (h *handover) take(c net.Conn) {
	select {
	case <-h.done:
		c.Close()
		return
	default:
	}
	select {
	case h.conns <- c:
	default:
		c.Close()
		h.refused()
		h.lines.Line(zerolog.InfoLevel, admission.AddressOf(c.RemoteAddr())).Str("op", "accept").
			Stringer("remote", c.RemoteAddr()).Msg("connection for a link refused: too many wait for the provider")
	}
}

// An undecided connection is one whose first bytes decide which side takes it.
type undecided struct {
	*net.TCPConn
	of *share

	head    []byte // read and not given on yet; of the goroutine that reads
	decided bool

	mu    sync.Mutex // guards gone
	gone  bool       // it has changed hands: nothing here may touch it any more
	ended bool       // it was closed here
}

// Undecided reports that nothing was read yet.
func (u *undecided) Undecided() bool { return !u.decided }

// Read returns received bytes. When they are for the provider the connection changes hands, and
// Read fails.
func (u *undecided) Read(p []byte) (int, error) {
	if !u.decided {
		if err := u.decide(); err != nil {
			return 0, err
		}
	}
	if len(u.head) > 0 {
		n := copy(p, u.head)
		u.head = u.head[n:]
		return n, nil
	}
	return u.TCPConn.Read(p)
}

// maxClientHello bounds the bytes read before the decision: one TLS record.
const maxClientHello = 5 + 16<<10

// decide reads the first bytes, as many as it needs.
func (u *undecided) decide() error {
	if u.head == nil {
		u.head = make([]byte, 0, 4<<10)
	}
	for {
		to, enough := u.of.sideOf(u.head)
		if to != nil {
			u.leave(to)
			return membership.ErrElsewhere
		}
		if enough {
			u.decided = true
			return nil
		}
		if len(u.head) == cap(u.head) {
			u.head = slices.Grow(u.head, maxClientHello-len(u.head))
		}
		n, err := u.TCPConn.Read(u.head[len(u.head):cap(u.head)])
		u.head = u.head[:len(u.head)+n]
		if n == 0 && err != nil {
			if err == io.EOF && len(u.head) > 0 {
				u.decided = true // its reader reports the error
				return nil
			}
			return err
		}
	}
}

// leave gives the connection to another side.
func (u *undecided) leave(to *handover) {
	u.mu.Lock()
	if u.ended {
		u.mu.Unlock()
		return
	}
	u.gone = true
	u.mu.Unlock()
	// It fails only where the connection has ended, which the provider sees.
	_ = u.TCPConn.SetDeadline(time.Time{})
	to.take(&handed{u.TCPConn, u.head})
}

// Close and the deadlines do nothing to a connection that has changed hands.
func (u *undecided) Close() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.gone {
		return nil
	}
	u.ended = true
	return u.TCPConn.Close()
}

func (u *undecided) SetDeadline(t time.Time) error      { return u.here(u.TCPConn.SetDeadline, t) }
func (u *undecided) SetReadDeadline(t time.Time) error  { return u.here(u.TCPConn.SetReadDeadline, t) }
func (u *undecided) SetWriteDeadline(t time.Time) error { return u.here(u.TCPConn.SetWriteDeadline, t) }

func (u *undecided) here(set func(time.Time) error, t time.Time) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.gone {
		return nil
	}
	return set(t)
}

// A handed connection begins with the bytes that were read of it.
type handed struct {
	*net.TCPConn
	head []byte
}

func (c *handed) Read(p []byte) (int, error) {
	if len(c.head) == 0 {
		return c.TCPConn.Read(p)
	}
	n := copy(p, c.head)
	c.head = c.head[n:]
	return n, nil
}

// sideOf returns the side that a connection which begins with b is for, or else whether
// b is enough to know that it is membership's.
func (s *share) sideOf(b []byte) (to *handover, enough bool) {
	if len(b) == 0 {
		return nil, false
	}
	if b[0] == path.First {
		if len(b) < path.GreetingLen {
			return nil, false
		}
		return s.paths, true
	}
	if s.other == nil {
		return nil, true
	}
	ours, enough := forProvider(b)
	if ours {
		return s.other, true
	}
	return nil, enough
}

// forProvider reports whether a connection that begins with b is for the TCP provider, or else
// whether b is enough to know that it is not. A connection without a ClientHello in one record is
// not.
func forProvider(b []byte) (ours, enough bool) {
	const recordHeader, handshake = 5, 22
	switch {
	case len(b) == 0:
		return false, false
	case b[0] != handshake:
		return false, true
	case len(b) < recordHeader:
		return false, false
	}
	n := int(binary.BigEndian.Uint16(b[3:]))
	if n > maxClientHello-recordHeader {
		return false, true
	}
	if len(b) < recordHeader+n {
		return false, false
	}
	return slices.Contains(alpn(b[recordHeader:recordHeader+n]), stream.ALPN), true
}

// alpn returns the protocol names in a ClientHello (RFC 8446 4.1.2, RFC 7301),
// none if it is malformed.
func alpn(b []byte) (names []string) {
	const clientHello, alpnExtension = 1, 16
	d := cursor{b: b}
	if d.take(1)[0] != clientHello {
		return nil
	}
	d = cursor{b: d.vector(3)}
	d.take(2 + 32) // version, random
	d.vector(1)    // session
	d.vector(2)    // cipher suites
	d.vector(1)    // compression methods
	all := cursor{b: d.vector(2)}
	for len(all.b) > 0 {
		kind := binary.BigEndian.Uint16(all.take(2))
		body := cursor{b: all.vector(2)}
		if kind != alpnExtension {
			continue
		}
		list := cursor{b: body.vector(2)}
		for len(list.b) > 0 {
			names = append(names, string(list.vector(1)))
		}
	}
	return names
}

// A cursor takes bytes from the front of b. Missing bytes are zero, and then nothing is left.
type cursor struct{ b []byte }

func (c *cursor) take(n int) []byte {
	if n > len(c.b) {
		c.b = nil
		return make([]byte, n)
	}
	p := c.b[:n]
	c.b = c.b[n:]
	return p
}

// vector takes bytes whose length stands before them, in size bytes.
func (c *cursor) vector(size int) []byte {
	n := 0
	for _, b := range c.take(size) {
		n = n<<8 | int(b)
	}
	if n > len(c.b) {
		c.b = nil
		return nil
	}
	return c.take(n)
}
