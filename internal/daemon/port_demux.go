package daemon

import (
	"crypto/tls"
	"errors"
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

// A portDemux is the data port's TCP listener for three: membership, which accepts
// from it, the TCP provider and the paths of connections, which accept from its
// other sides. The first bytes of a connection show its side. Membership reads them, in the places
// that it has for connections that are not authenticated yet; when they turn out to be for another
// side, the connection changes hands.
type portDemux struct {
	net.Listener           // membership's side
	other        *handover // the provider's side; nil: there is none
	paths        *handover // the side of paths
}

// handedMax bounds the connections that wait for the provider, which accepts
// them at once. Further ones are closed.
const handedMax = 128

// newPortDemux divides l between membership and paths. refused is called for each
// connection that finds no room.
func newPortDemux(l net.Listener, log zerolog.Logger, refused func()) *portDemux {
	return &portDemux{Listener: l, paths: newHandover(l, log, refused)}
}

// provider makes the provider's side, before the first Accept.
func (s *portDemux) provider() *handover {
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
func (s *portDemux) Accept() (net.Conn, error) {
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
	of *portDemux

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
	to, err := u.side()
	switch {
	case err == io.EOF && len(u.head) > 0: // its reader reports the error
	case err != nil:
		return err
	case to != nil:
		u.leave(to)
		return membership.ErrElsewhere
	}
	u.decided = true
	return nil
}

// side returns the side that the connection is for, nil for membership's. After an error it can be
// asked again.
func (u *undecided) side() (*handover, error) {
	for len(u.head) == 0 || u.head[0] == path.First && len(u.head) < path.GreetingLen {
		if err := u.more(); err != nil {
			return nil, err
		}
	}
	switch {
	case u.head[0] == path.First:
		return u.of.paths, nil
	case u.of.other == nil:
		return nil, nil
	}
	hello := &helloReader{Conn: u.TCPConn, of: u}
	if slices.Contains(hello.protocols(), stream.ALPN) {
		return u.of.other, nil
	}
	return nil, hello.err
}

// more reads more of the first bytes.
func (u *undecided) more() error {
	if len(u.head) == cap(u.head) {
		u.head = slices.Grow(u.head, min(max(len(u.head), 4<<10), maxClientHello-len(u.head)))
	}
	n, err := u.TCPConn.Read(u.head[len(u.head):cap(u.head)])
	u.head = u.head[:len(u.head)+n]
	if n > 0 {
		return nil
	}
	return err
}

// A helloReader shows crypto/tls the first bytes of a connection, which stay in its head.
type helloReader struct {
	net.Conn
	of  *undecided
	at  int   // in the head
	err error // of the connection
}

func (r *helloReader) Read(p []byte) (int, error) {
	if r.at == len(r.of.head) {
		if r.at >= maxClientHello {
			return 0, io.ErrShortBuffer // no ClientHello in one record
		}
		if r.err = r.of.more(); r.err != nil {
			return 0, r.err
		}
	}
	n := copy(p, r.of.head[r.at:])
	r.at += n
	return n, nil
}

// Write drops an alert: the peer is answered by the side that gets the connection.
func (r *helloReader) Write(p []byte) (int, error) { return len(p), nil }

// protocols returns the protocol names (ALPN) in a ClientHello, none if there is no such thing.
func (r *helloReader) protocols() (names []string) {
	config := &tls.Config{GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		names = hello.SupportedProtos
		return nil, errors.New("read")
	}}
	_ = tls.Server(r, config).Handshake() // which fails at the latest then
	return names
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
