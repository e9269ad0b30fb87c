package hostile

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"io"
	"math/big"
	"net"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/client"
	"github.com/fabricd/fabricd/internal/path"
	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/wire"
)

// held counts the open resources of this process, which is the victim and all attackers.
type held struct{ descriptors, goroutines int }

func holding(t *testing.T) held { return held{descriptors(t), runtime.NumGoroutine()} }

// few is how many come and go by themselves.
const few = 8

// givenBack waits until no more is held than before.
func givenBack(t *testing.T, before held) {
	t.Helper()
	for limit := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		now := holding(t)
		if now.descriptors <= before.descriptors+few && now.goroutines <= before.goroutines+few {
			return
		}
		if time.Now().After(limit) {
			t.Fatalf("held are %+v, want as before: %+v", now, before)
		}
	}
}

// closeAll ends connections at both ends.
func closeAll(all []*badConn) {
	for _, c := range all {
		c.ops.Cancel()
		c.victim.Close()
	}
}

// pathFrames are said on each connection of a flood, in that order or another one: tokens
// and keys are those of all.
var pathFrames = [][]byte{
	frames(wire.Path{Token: [16]byte{1}, Key: [32]byte{2}}), frames(wire.NoPath{Passing: true}),
	frames(wire.RMAPath{Token: [16]byte{1}, Key: [32]byte{2}}), frames(wire.NoRMAPath{Reason: "no"}),
	frames(wire.NoRMAPath{Answer: true}), frames(wire.NoPath{}), frames(wire.Path{Plaintext: true}),
}

// TestFloodOfPaths: hundreds of connections ask for paths, whichever side has dialed the
// link, and nothing is at the other end of any. The victim's resources for them have a bound,
// and are given back with the connections; another node's connection goes on meanwhile.
func TestFloodOfPaths(t *testing.T) {
	for name, link := range map[string]func(r *rig) *badLink{"link dialed": (*rig).link, "link accepted": (*rig).dialedLink} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			a, b := r.friends()
			l := link(r)
			before := holding(t)
			conns := make([]*badConn, 300)
			for i := range conns {
				conns[i] = l.connect(1 << 20)
				askBack(conns[i].victim)
			}
			open := holding(t)
			grows(t, 8<<20, func() {
				for i := range 40 * len(conns) {
					c := conns[i%len(conns)]
					c.sendOp(pathFrames[(i/len(conns)+i)%len(pathFrames)])
				}
				for _, c := range conns {
					c.sendOp(pathFrames[2])
				}
				r.talk(a, b)
			})
			// A path has a socket, one goroutine that dials it and one of its application's.
			if now := holding(t); now.descriptors > open.descriptors+rigPaths+few || now.goroutines > open.goroutines+2*rigPaths+few {
				t.Errorf("held are %+v, before the flood %+v", now, open)
			}
			closeAll(conns)
			givenBack(t, before)
			r.talk(a, b)
		})
	}
}

// askBack has an application of the victim ask for the path that the peer asks for.
func askBack(ep attach.NodeEndpoint) {
	p := ep
	p.OnPath(func() {
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			if s, err := p.Path(ctx, path.Hash{3}, func() {}); err == nil {
				s.File.Close()
			}
		}()
	})
}

// TestStolenTokensOfRMAPaths: the bad node shows each token of the victim's twice, tokens of
// other connections and those that it has made up, and speaks TLS with a key that was not
// named. No window is reached, no socket is kept, and the connections go on over the link.
func TestStolenTokensOfRMAPaths(t *testing.T) {
	r := newRig(t)
	a, b := r.friends()
	l := r.link()
	before := holding(t)
	var conns []*badConn
	var tokens []path.Token
	for range rigPaths + 8 {
		c := l.connect(1 << 20)
		conns = append(conns, c)
		c.sendOp(frames(wire.RMAPath{Token: [16]byte{1}, Key: [32]byte{2}}))
		h, body, err := c.in.Next()
		for err == nil && h.Type == wire.TypeCredit {
			h, body, err = c.in.Next()
		}
		f, err2 := wire.ParseRMAPath(h.Flags, body)
		switch {
		case errors.Join(err, err2) == nil && f.Answer:
			tokens = append(tokens, f.Token)
		case err != nil || h.Type != wire.TypeNoRMAPath:
			t.Fatalf("the answer is %v, %v", h.Type, err)
		}
	}
	if len(tokens) != rigPaths {
		t.Fatalf("%d paths are made, want %d", len(tokens), rigPaths)
	}
	for i, token := range tokens {
		if err := r.show(token); err == nil {
			t.Errorf("path %d is opened with a key that nobody named", i)
		} else if errors.Is(err, path.ErrRefused) {
			t.Errorf("path %d: %v: its token was not used", i, err)
		}
		for _, wrong := range []path.Token{token, {1}, path.NewToken()} {
			if err := r.show(wrong); !errors.Is(err, path.ErrRefused) {
				t.Errorf("path %d: a token that is no path's: %v", i, err)
			}
		}
	}
	for i, c := range conns { // the reason for the missing path is known, and the link carries the messages
		c.sendOp(frames(wire.Mark{Request: 1}))
		var all []wire.Type
		for !slices.Contains(all, wire.TypeMarked) {
			h, _, err := c.in.Next()
			if err != nil {
				t.Fatalf("connection %d: %v behind %v", i, err, all)
			}
			all = append(all, h.Type)
		}
	}
	closeAll(conns)
	givenBack(t, before)
	r.talk(a, b)
}

// show shows a token at the victim's data port, and speaks TLS there with a key of its own.
func (r *rig) show(token path.Token) error {
	data, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.t.Fatal(err)
	}
	defer data.Close()
	near, err := net.Dial("tcp", data.Addr().String())
	if err != nil {
		r.t.Fatal(err)
	}
	defer near.Close()
	far, err := data.Accept()
	if err != nil {
		r.t.Fatal(err)
	}
	taken := make(chan struct{})
	go func() {
		defer close(taken)
		r.victim.AcceptPath(far.(*net.TCPConn), far)
	}()
	defer func() { <-taken }()
	near.SetDeadline(time.Now().Add(patience))
	if err := path.Greet(near, token); err != nil {
		return err
	}
	secure := tls.Client(near, &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{nobody()}, InsecureSkipVerify: true,
		NextProtos: []string{"fabricd-path/1"}})
	if err := secure.Handshake(); err != nil {
		return err
	}
	_, err = io.ReadFull(secure, make([]byte, 32)) // the certificate is refused behind the handshake
	return err
}

// nobody returns a certificate for a key that no node has named.
func nobody() tls.Certificate {
	key, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Unix(1<<32, 0)}
	der, _ := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// Operations of the attach protocol about connections and their paths.
const (
	opConnect   = 11
	opJoined    = 34
	opPath      = 64
	opRMAPath   = 70
	opNoRMAPath = 71
	opFarWindow = 72
)

// TestFloodOfAsksForPaths: an application asks for paths as fast as it can, for connections
// that it has, for endpoints without one and for none, receives the results, and
// uses none. Another one of its machine talks meanwhile, over paths of its own.
func TestFloodOfAsksForPaths(t *testing.T) {
	c := newCluster(t)
	member := c.start(c.node("member"))
	server := dialApp(t, member.Status().Socket)
	l, err := server.Open()
	if err != nil {
		t.Fatal(err)
	}
	port, err := l.Bind(0)
	if err == nil {
		err = l.Listen(64)
	}
	if err != nil {
		t.Fatal(err)
	}
	to := addr.Addr{Node: c.incarnations[member].Node, Port: port}
	polite, err := dialApp(t, c.host.Status().Socket).Open()
	if err != nil {
		t.Fatal(err)
	}
	connected := make(chan error, 1)
	go func() { connected <- connectPatiently(within(t), polite, to) }()
	far, _, err := l.Accept(within(t))
	if err := errors.Join(err, <-connected); err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t}
	r.talk(polite, far)
	before := holding(t)
	bad := greet(t, c.host.Status().Socket)
	const conns, asks = 40, 20_000
	const unanswered = 1024 // requests of a kind, of a session (internal/attach/proto/SPEC.md)
	endpoints, others := bad.connectAll(conns, to, l)
	done := make(chan int, 1)
	grows(t, 16<<20, func() {
		go func() { done <- bad.takeAnswers() }()
		bad.floodOfAsks(endpoints, asks, func() { r.talk(polite, far) })
		// A connection has its data sockets and the goroutines that move its bytes, and each ask that
		// is not answered yet a goroutine: a session may have so many, whatever it sends.
		now := holding(t)
		if now.descriptors > before.descriptors+6*conns+few || now.goroutines > before.goroutines+6*conns+unanswered+few {
			t.Errorf("held are %+v, before the flood %+v", now, before)
		}
	})
	bad.conn.Close()
	if n := <-done; n < asks/2 {
		t.Errorf("%d of %d asks were answered", n, asks)
	}
	r.talk(polite, far)
	for _, e := range others {
		e.Close()
	}
	givenBack(t, before)
}

func dialApp(t *testing.T, socket string) attach.Session {
	t.Helper()
	s, err := client.Dial(within(t), socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// connectAll returns endpoints that are connected with those that l accepts, and as many
// that are not, and the others' ends.
func (c *rawClient) connectAll(n int, to addr.Addr, l attach.Endpoint) (endpoints []uint32, others []attach.Endpoint) {
	c.t.Helper()
	for i := range 2 * n {
		e := c.open()
		if endpoints = append(endpoints, e); i%2 == 1 {
			continue
		}
		other, data := c.connect(e, to, l)
		data.Close()
		others = append(others, other)
	}
	return endpoints, others
}

func (c *rawClient) open() uint32 {
	c.t.Helper()
	code, body := c.ask(opOpen, 0, nil, nil)
	if code != status.OK || len(body) < 4 {
		c.t.Fatalf("OPEN: %v %q", code, body)
	}
	return binary.LittleEndian.Uint32(body)
}

// connect connects endpoint e with the one that l accepts, and returns that and e's data socket.
func (c *rawClient) connect(e uint32, to addr.Addr, l attach.Endpoint) (other attach.Endpoint, data *os.File) {
	c.t.Helper()
	at := binary.LittleEndian.AppendUint16(binary.LittleEndian.AppendUint16(nil, uint16(to.Node)), uint16(to.Port))
	accepted := make(chan error, 1)
	go func() {
		var err error
		other, _, err = l.Accept(within(c.t))
		accepted <- err
	}()
	code, body, data := c.askFor(opConnect, e, at, nil)
	if code != status.OK || data == nil {
		c.t.Fatalf("CONNECT: %v %q", code, body)
	}
	if err := <-accepted; err != nil {
		c.t.Fatal(err)
	}
	return other, data
}

// floodOfAsks asks n times, for each of endpoints and for none, and does between now and then.
func (c *rawClient) floodOfAsks(endpoints []uint32, n int, between func()) {
	c.t.Helper()
	key := make([]byte, 32)
	joined := func(ok byte) []byte { return append([]byte{ok, 0, 0, 0, 2, 0}, "no"...) }
	asks := []struct {
		op   uint16
		body []byte
	}{
		{opPath, key}, {opRMAPath, key}, {opJoined, joined(1)}, {opPath, key}, {opFarWindow, make([]byte, 8)},
		{opJoined, joined(0)}, {opNoRMAPath, joined(0)}, {opRMAPath, key},
	}
	for i := range n {
		e := uint32(1 << 30) // there is none
		if i%10 > 0 {
			e = endpoints[i/len(asks)%len(endpoints)]
		}
		binary.LittleEndian.PutUint64(key, uint64(i))
		ask := asks[i%len(asks)]
		if err := shm.Send(c.conn, c.request(ask.op, e, ask.body), nil); err != nil {
			c.t.Fatalf("ask %d: %v", i, err)
		}
		if i%(n/8) == 0 {
			between()
		}
	}
}

// takeAnswers reads until the end, and returns how many answers came.
func (c *rawClient) takeAnswers() (n int) {
	in := shm.NewReceiver(c.conn)
	for p := make([]byte, 1<<16); ; {
		k, f, err := in.Recv(p)
		if f != nil {
			f.Close()
		}
		if err != nil || k < headerBytes {
			return n
		}
		if binary.LittleEndian.Uint16(p)&replyBit != 0 {
			n++
		}
	}
}
