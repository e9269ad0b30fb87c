package fabrictest

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/faults/inject"
	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/transport/stream"
)

// streams is TCP over the loopback interface. A cut holds back bytes that have arrived:
// as with TCP, they pass when the cut ends.
type streams struct {
	authority *authority
	plaintext bool

	mu      sync.Mutex // guards the fields below and those of every plug
	plugs   map[addr.UUID]*plug
	places  map[string]*plug // by the addresses of listeners and of dialed connections
	changed chan struct{}    // closed and replaced when a way opens
}

// A plug is one incarnation of a node.
type plug struct {
	net.Listener
	net  *streams
	dead bool
	cut  map[*plug]bool
}

func newStreams(o options) (*streams, error) {
	a, err := newAuthority()
	if err != nil {
		return nil, err
	}
	return newStreamsOf(a, o), nil
}

func newStreamsOf(a *authority, o options) *streams {
	return &streams{authority: a, plaintext: o.plaintext, plugs: make(map[addr.UUID]*plug),
		places: make(map[string]*plug), changed: make(chan struct{})}
}

func (s *streams) join(id transport.Identity, layer *inject.Layer) ([]transport.Provider, error) {
	p, err := s.open(id, layer)
	if err != nil {
		return nil, err
	}
	return []transport.Provider{p}, nil
}

// open returns a node's provider.
func (s *streams) open(id transport.Identity, layer *inject.Layer) (transport.Provider, error) {
	who, err := s.authority.config(id)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	own := &plug{Listener: l, net: s, cut: make(map[*plug]bool)}
	cfg := stream.Config{Listener: l, Plaintext: s.plaintext,
		ServerTLS: who.ServerTLS, ClientTLS: who.ClientTLS, Identify: who.Identify}
	if layer != nil {
		cfg.Listener, cfg.Dial = own, own.dial
	}
	p, err := stream.New(cfg)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.plugs[id.Node], s.places[l.Addr().String()] = own, own
	return through(layer, p, false), nil
}

func (s *streams) crash(id transport.Identity) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.plugs[id.Node]; p != nil {
		p.dead = true
	}
}

func (s *streams) cut(a, b transport.Identity) {
	s.mu.Lock()
	defer s.mu.Unlock()
	pa, pb := s.plugs[a.Node], s.plugs[b.Node]
	if pa != nil && pb != nil {
		pa.cut[pb], pb.cut[pa] = true, true
	}
}

func (s *streams) mend(a, b transport.Identity) {
	s.mu.Lock()
	defer s.mu.Unlock()
	pa, pb := s.plugs[a.Node], s.plugs[b.Node]
	if pa != nil && pb != nil {
		delete(pa.cut, pb)
		delete(pb.cut, pa)
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

// close checks that the nodes have closed their listeners.
func (s *streams) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var open error
	for _, p := range s.plugs {
		if err := p.Listener.Close(); err == nil {
			open = errors.Join(open, errors.New("a node left its listener open: "+p.Addr().String()))
		}
	}
	return open
}

// way reports whether bytes pass between p and the node at address. If not, changed
// is closed when a way opens. A node that has crashed gets an error itself, and is
// silent to others.
func (p *plug) way(address string) (open bool, changed <-chan struct{}, err error) {
	p.net.mu.Lock()
	defer p.net.mu.Unlock()
	if p.dead {
		return false, nil, syscall.ECONNRESET
	}
	other := p.net.places[address]
	return other == nil || !other.dead && !p.cut[other], p.net.changed, nil
}

// dial waits while the way to address is cut.
func (p *plug) dial(ctx context.Context, address string) (net.Conn, error) {
	for {
		open, changed, err := p.way(address)
		if err != nil {
			return nil, err
		}
		if open {
			break
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	p.net.mu.Lock()
	p.net.places[c.LocalAddr().String()] = p
	p.net.mu.Unlock()
	return p.wrap(c, address), nil
}

// Accept returns the next connection.
func (p *plug) Accept() (net.Conn, error) {
	c, err := p.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return p.wrap(c, c.RemoteAddr().String()), nil
}

func (p *plug) wrap(c net.Conn, remote string) net.Conn {
	return &cable{Conn: c, plug: p, remote: remote, closed: make(chan struct{}), poked: make(chan struct{}, 1)}
}

// A cable is one end of a connection, whose bytes are held back while the way is
// cut.
type cable struct {
	net.Conn
	plug   *plug
	remote string
	once   sync.Once
	closed chan struct{}
	poked  chan struct{} // holds a token when the deadline has changed

	held []byte // read during a cut; of the goroutine that reads
	err  error  // after held

	mu       sync.Mutex // guards deadline
	deadline time.Time
}

// Read returns bytes that have arrived and are not held back.
func (c *cable) Read(p []byte) (int, error) {
	for {
		if err := c.await(); err != nil {
			return 0, err
		}
		if len(c.held) > 0 {
			n := copy(p, c.held)
			c.held = c.held[n:]
			return n, nil
		}
		if c.err != nil {
			return 0, c.err
		}
		n, err := c.Conn.Read(p)
		if open, _, _ := c.plug.way(c.remote); open || errors.Is(err, os.ErrDeadlineExceeded) && n == 0 {
			return n, err
		}
		c.held, c.err = append([]byte(nil), p[:n]...), err
	}
}

// await waits while the way is cut.
func (c *cable) await() error {
	for {
		open, changed, err := c.plug.way(c.remote)
		if open || err != nil {
			return err
		}
		c.mu.Lock()
		t, deadline := c.deadline, (<-chan time.Time)(nil)
		c.mu.Unlock()
		if !t.IsZero() {
			timer := time.NewTimer(time.Until(t))
			defer timer.Stop()
			deadline = timer.C
		}
		select {
		case <-changed:
		case <-c.poked:
		case <-deadline:
			return os.ErrDeadlineExceeded
		case <-c.closed:
			return net.ErrClosed
		}
	}
}

// SetReadDeadline and SetDeadline end a wait too.
func (c *cable) SetReadDeadline(t time.Time) error {
	c.poke(t)
	return c.Conn.SetReadDeadline(t)
}

func (c *cable) SetDeadline(t time.Time) error {
	c.poke(t)
	return c.Conn.SetDeadline(t)
}

func (c *cable) poke(t time.Time) {
	c.mu.Lock()
	c.deadline = t
	c.mu.Unlock()
	select {
	case c.poked <- struct{}{}:
	default:
	}
}

// Write takes the network's lock before it writes, and Read after it has read. So the
// race detector, which knows nothing of sockets, learns their order. Bytes that a
// crashed node writes are lost.
func (c *cable) Write(p []byte) (int, error) {
	if _, _, err := c.plug.way(c.remote); err != nil {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

// Close ends a wait.
func (c *cable) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}
