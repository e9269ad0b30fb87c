package hostile

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/engine"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/transport/network"
	"github.com/fabricd/fabricd/internal/transport/quic"
	"github.com/fabricd/fabricd/internal/wire"
	"github.com/fabricd/fabricd/membership/trust"
)

func TestMain(m *testing.M) {
	if os.Getenv(attackEnv) != "" { // only the output for people or programs goes to standard output
		timelineOut, os.Stdout = os.Stdout, os.Stderr
	}
	// net/http gives a client that it refuses half a second to read that, also
	// when its server has closed.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"), goleak.Cleanup(func(code int) {
		if builtIn != "" {
			os.RemoveAll(builtIn)
		}
		os.Exit(code)
	}))
}

// patience bounds each wait of a test on real sockets, silenceBound how long the
// engines of a rig bear silence.
const (
	patience     = 15 * time.Second
	silenceBound = 10 * time.Second
)

// The nodes of a rig, by ID.
const (
	victimID addr.NodeID = 1
	honestID addr.NodeID = 2
	evilID   addr.NodeID = 3
)

// evilGeneration is the live generation of the bad node: neither the first nor
// the last that can be claimed.
const evilGeneration = 5

var clusterID = addr.UUID{0xC1, 0x05, 0x7E, 12: 1}

func nodeUUID(id addr.NodeID) addr.UUID { return addr.UUID{0x40, 15: byte(id) + 1} }

// A rig is a cluster on loopback, with the test as membership: two engines,
// and a third member with a certificate as good as theirs that the test plays.
type rig struct {
	t              *testing.T
	ca             *trust.CA
	victim, honest *engine.Node
	address        string // of the victim
	evil           *quic.Provider
	app            attach.NodeSession // at the victim
	evilData       net.Listener       // where engines reach the bad node's data port
}

// rigPaths is how many paths an engine of a rig makes.
const rigPaths = 32

func newRig(t *testing.T) *rig {
	t.Helper()
	ca, err := trust.NewCA(clusterID, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, ca: ca}
	if r.evilData, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	var victim, honest *quic.Provider
	for id, p := range map[addr.NodeID]**quic.Provider{victimID: &victim, honestID: &honest, evilID: &r.evil} {
		cfg := providerConfig(t, ca, trust.Identity{Cluster: clusterID, Node: nodeUUID(id)}, time.Now())
		if id == evilID {
			cfg.StreamWindow = 32 << 10 // so that a sender soon blocks at a peer that does not read
		}
		var err error
		if *p, err = quic.New(cfg); err != nil {
			t.Fatal(err)
		}
	}
	r.address = victim.Addr()
	r.victim, r.honest = r.engine(victimID, victim), r.engine(honestID, honest)
	for _, p := range []struct {
		at   *engine.Node
		id   addr.NodeID
		gen  addr.Generation
		addr string
	}{
		{r.victim, honestID, 1, honest.Addr()}, {r.victim, evilID, evilGeneration, r.evil.Addr()},
		{r.honest, victimID, 1, victim.Addr()}, {r.honest, evilID, evilGeneration, r.evil.Addr()},
	} {
		p.at.NodeUp(engine.Peer{Incarnation: addr.Incarnation{Node: p.id, Generation: p.gen}, UUID: nodeUUID(p.id), Epoch: uint64(p.gen),
			Addresses: []string{p.addr}})
	}
	r.app = r.victim.NewSession(attach.Credentials{UID: 1000})
	t.Cleanup(func() {
		r.evil.Close()
		r.honest.Close()
		r.victim.Close()
		r.evilData.Close()
	})
	return r
}

// providerConfig configures a QUIC provider on loopback whose certificate is for
// id and valid for an hour from now on.
func providerConfig(t *testing.T, ca *trust.CA, id trust.Identity, now time.Time) quic.Config {
	t.Helper()
	creds, err := trust.IssueCredentials(ca, id, now, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	store, err := trust.NewStore(creds, func() time.Time { return now.Add(time.Since(now) % time.Minute) })
	if err != nil {
		t.Fatal(err)
	}
	return quic.Config{
		Address:     "127.0.0.1:0",
		IdleTimeout: silenceBound, // both ends are in this process, with everything that attacks them
		Config: network.Config{
			ServerTLS: func() *tls.Config { return store.ServerTLS(quic.ALPN) },
			ClientTLS: func() *tls.Config { return store.ClientTLS(nil, quic.ALPN) },
			Identify:  identify,
			Log:       zerolog.Nop(),
		},
	}
}

// identify returns the identity that a verified certificate names.
func identify(cs tls.ConnectionState) (transport.Identity, error) {
	id, err := trust.IdentityOf(cs)
	return transport.Identity{Cluster: id.Cluster, Node: id.Node, Host: id.Host}, err
}

func (r *rig) engine(id addr.NodeID, p *quic.Provider) *engine.Node {
	n := engine.Start(engine.Config{Providers: []transport.Provider{p}, Log: zerolog.Nop(), DialTimeout: 300 * time.Millisecond,
		SilenceBound: silenceBound, Fence: silenceBound, Paths: &engine.PathNetwork{Dial: r.dialData, Max: rigPaths}})
	n.SetSelf(engine.Self{Self: attach.Self{Cluster: clusterID, Incarnation: addr.Incarnation{Node: id, Generation: 1}}, UUID: nodeUUID(id), Epoch: 1, Term: 1})
	return n
}

// dialData dials the bad node's data port.
func (r *rig) dialData(ctx context.Context, _ string) (*net.TCPConn, error) {
	var d net.Dialer
	s, err := d.DialContext(ctx, "tcp", r.evilData.Addr().String())
	if err != nil {
		return nil, err
	}
	return s.(*net.TCPConn), nil
}

// within returns a context that ends when the test has waited long enough.
func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// listen returns an endpoint of the victim's application that listens.
func (r *rig) listen(backlog int) (attach.NodeEndpoint, addr.Port) {
	r.t.Helper()
	ep, err := r.app.Open()
	if err != nil {
		r.t.Fatal(err)
	}
	port, err := ep.Bind(0)
	if err == nil {
		err = ep.Listen(backlog)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return ep, port
}

// on returns r for a sub-test, at which errors are reported.
func (r *rig) on(t *testing.T) *rig {
	sub := *r
	sub.t = t
	return &sub
}

// on returns l for a sub-test.
func (l *badLink) on(t *testing.T) *badLink {
	l.r = l.r.on(t)
	return l
}

// friends returns the two ends of a connection from the honest node to the
// victim.
func (r *rig) friends() (honest, victim attach.NodeEndpoint) {
	r.t.Helper()
	l, port := r.listen(1)
	defer l.Close()
	honest, err := r.honest.NewSession(attach.Credentials{UID: 1000}).Open()
	if err != nil {
		r.t.Fatal(err)
	}
	connected := make(chan error, 1)
	go func() { connected <- connectPatiently(within(r.t), honest, addr.Addr{Node: victimID, Port: port}) }()
	victim, _, err = l.Accept(within(r.t))
	if err := errors.Join(err, <-connected); err != nil {
		r.t.Fatalf("honest node cannot connect: %v", err)
	}
	return honest, victim
}

// connectPatiently connects, and again where no link came about in the short time
// that the engines of a rig have for it: the machine may have been busy.
func connectPatiently(ctx context.Context, ep connector, to addr.Addr) error {
	for {
		_, err := ep.Connect(ctx, to)
		if status.Of(err) != status.NoDevice || ctx.Err() != nil {
			return err
		}
	}
}

// A connector is an endpoint of a node, or of an application.
type connector interface {
	Connect(context.Context, addr.Addr) (addr.Port, error)
	Send(context.Context, []byte) (int, error)
	Recv(context.Context, []byte) (int, error)
}

// talk sends something both ways.
func (r *rig) talk(a, b connector) {
	r.t.Helper()
	for _, d := range []struct{ from, to connector }{{a, b}, {b, a}} {
		if _, err := d.from.Send(within(r.t), []byte("hello")); err != nil {
			r.t.Errorf("honest connection, send: %v", err)
		}
		p := make([]byte, 16)
		if n, err := d.to.Recv(within(r.t), p); err != nil || string(p[:n]) != "hello" {
			r.t.Errorf("honest connection, receive: %q, %v", p[:n], err)
		}
	}
}

// hello returns the HELLO that the bad node would send if it were good.
func hello() wire.Hello {
	return wire.Hello{VersionMin: wire.VersionMin, VersionMax: wire.VersionMax, Cluster: clusterID, Term: 1,
		From: addr.Incarnation{Node: evilID, Generation: evilGeneration}, FromUUID: nodeUUID(evilID), FromEpoch: evilGeneration,
		To: addr.Incarnation{Node: victimID, Generation: 1}}
}

// dial returns an authenticated session that has said nothing.
func (r *rig) dial() transport.Session {
	r.t.Helper()
	s, err := r.evil.Dial(within(r.t), r.address)
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

// A badLink is an established link of the bad node. It answers heartbeats and
// probes in the background, so that only the test's own actions are bad about it.
type badLink struct {
	r    *rig
	sess transport.Session
	ctrl transport.SendStream
	conn wire.ConnID // the last one used
	mu   sync.Mutex  // orders writes to ctrl
	work sync.WaitGroup
}

func (r *rig) link() *badLink {
	r.t.Helper()
	l, in := r.unreadLink()
	l.work.Go(func() { l.answerProbes(in) })
	return l
}

// unreadLink is link without a reader of the control stream, which it
// returns.
func (r *rig) unreadLink() (*badLink, *wire.Reader) {
	r.t.Helper()
	l := &badLink{r: r, sess: r.dial()}
	in, h, _ := l.greet(hello())
	if h.Type != wire.TypeHello {
		r.t.Fatalf("the answer to a good HELLO is %v", h.Type)
	}
	return l, in
}

// dialedLink is link over a session that the victim has dialed.
func (r *rig) dialedLink() *badLink {
	r.t.Helper()
	ep, err := r.app.Open()
	if err != nil {
		r.t.Fatal(err)
	}
	refused := make(chan error, 1)
	go func() {
		_, err := ep.Connect(within(r.t), addr.Addr{Node: evilID, Port: 9})
		refused <- err
	}()
	l := &badLink{r: r}
	if l.sess, err = r.evil.Accept(within(r.t)); err != nil {
		r.t.Fatal(err)
	}
	answer := hello()
	answer.Answer, answer.VersionMin = true, wire.VersionMax
	in, h, _ := l.greet(answer)
	if h.Type != wire.TypeHello {
		r.t.Fatalf("the victim begins with %v", h.Type)
	}
	l.work.Go(func() { l.answerProbes(in) })
	_, h, body := l.accept()
	f, err := wire.ParseConnect(h.Flags, body)
	if err != nil {
		r.t.Fatalf("behind HELLO comes %v, %v", h.Type, err)
	}
	l.say(frames(wire.Refuse{Peer: f.Conn, Code: status.Refused}))
	if err := <-refused; !errors.Is(err, status.Refused) {
		r.t.Fatalf("the victim's connect: %v", err)
	}
	return l
}

// greet says h on a control stream, which it opens, and returns the victim's and its first
// frame.
func (l *badLink) greet(h wire.Hello) (*wire.Reader, wire.Header, []byte) {
	r := l.r
	r.t.Helper()
	ctrl, err := l.sess.OpenStream(within(r.t))
	if err != nil {
		r.t.Fatal(err)
	}
	l.ctrl = ctrl
	l.write(ctrl, wire.Lease{}.AppendTo(h.AppendTo(nil)))
	l.work.Go(l.answerBeats)
	r.t.Cleanup(func() {
		l.sess.Close(transport.CodeOK, "test over")
		l.work.Wait()
	})
	return l.accept()
}

// write writes to a stream of the bad node. That the victim has cut it off is for
// the test to judge.
func (l *badLink) write(stream transport.SendStream, p []byte) { _, _ = stream.Write(p) }

// say writes to the control stream.
func (l *badLink) say(p []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.write(l.ctrl, p)
}

// accept returns the next stream that the victim opens, and its first frame.
func (l *badLink) accept() (*wire.Reader, wire.Header, []byte) {
	l.r.t.Helper()
	stream, err := l.sess.AcceptStream(within(l.r.t))
	if err != nil {
		l.r.t.Fatal(err)
	}
	in := wire.NewReader(stream)
	h, body, err := in.Next()
	if err != nil {
		l.r.t.Fatal(err)
	}
	return in, h, body
}

func (l *badLink) answerProbes(in *wire.Reader) {
	for {
		h, body, err := in.Next()
		if err != nil {
			return
		}
		if p, err := wire.ParseProbe(h.Flags, body); h.Type == wire.TypeProbe && err == nil {
			l.say(wire.ProbeAck{Nonce: p.Nonce, From: p.To, To: p.From}.AppendTo(nil))
		}
	}
}

func (l *badLink) answerBeats() {
	for {
		p, err := l.sess.ReceiveDatagram(context.Background())
		if err != nil {
			return
		}
		if b, err := wire.ParseHeartbeat(p); err == nil {
			_ = l.sess.SendDatagram(wire.HeartbeatAck{Seq: b.Seq, Sent: b.Sent, From: b.To, To: b.From}.AppendTo(nil))
		}
	}
}

// open opens a stream that begins with first.
func (l *badLink) open(first []byte) transport.SendStream {
	l.r.t.Helper()
	stream, err := l.sess.OpenStream(within(l.r.t))
	if err != nil {
		l.r.t.Fatal(err)
	}
	l.write(stream, first)
	return stream
}

// A badConn is a connection of the bad node to an endpoint of the victim.
type badConn struct {
	*badLink
	ops    transport.SendStream
	in     *wire.Reader // the victim's operations
	peer   wire.ConnID  // the victim's name of it
	limit  uint64       // of message bytes that the victim takes
	victim attach.NodeEndpoint
}

// connect connects to a fresh port of the victim, which may send limit bytes.
func (l *badLink) connect(limit uint64) *badConn {
	l.r.t.Helper()
	listener, port := l.r.listen(1)
	defer listener.Close()
	l.conn++
	c := &badConn{badLink: l}
	c.ops = l.open(wire.Connect{Conn: l.conn, From: 2000, To: port, Limit: limit}.AppendTo(nil))
	accepted := make(chan attach.NodeEndpoint, 1)
	go func() {
		ep, _, err := listener.Accept(within(l.r.t))
		if err != nil {
			l.r.t.Error(err)
		}
		accepted <- ep
	}()
	in, h, body := l.accept()
	f, err := wire.ParseAccept(h.Flags, body)
	if h.Type != wire.TypeAccept || err != nil {
		l.r.t.Fatalf("the answer to a connect is %v, %v", h.Type, err)
	}
	c.in, c.peer, c.limit = in, f.Conn, f.Limit
	c.sendOp(wire.Credit{Limit: limit}.AppendTo(nil))
	if c.victim = <-accepted; c.victim == nil {
		l.r.t.FailNow()
	}
	return c
}

// sendOp writes to the operations stream.
func (c *badConn) sendOp(p []byte) { c.write(c.ops, p) }

// messages opens a message stream.
func (c *badConn) messages() transport.SendStream {
	return c.open(wire.Stream{Peer: c.peer}.AppendTo(nil))
}

// wantReset waits until the victim's end is cut off.
func (c *badConn) wantReset() {
	c.r.t.Helper()
	ctx, cancel := context.WithTimeout(c.r.t.Context(), 5*time.Second)
	defer cancel()
	p := make([]byte, 64<<10)
	for {
		_, err := c.victim.Recv(ctx, p)
		if errors.Is(err, context.DeadlineExceeded) {
			c.r.t.Error("the victim's end of the connection goes on")
			return
		}
		if err != nil {
			return
		}
	}
}

// wantClosed waits until the victim has closed the session, checks the code and
// returns the reason.
func wantClosed(t *testing.T, s transport.Session, code uint64) string {
	t.Helper()
	select {
	case <-s.Done():
	case <-time.After(patience):
		t.Error("the victim keeps the session")
		return ""
	}
	var ce *transport.CloseError
	if err := s.Err(); !errors.As(err, &ce) || !ce.Remote || ce.Code != code || ce.Reason == "" {
		t.Errorf("session ended with %v, want code %d with a reason of the victim", err, code)
		return ""
	}
	return ce.Reason
}

// heap returns the bytes that live on the heap.
func heap() int64 {
	runtime.GC()
	runtime.GC() // memory that finalizers and pools held
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}
