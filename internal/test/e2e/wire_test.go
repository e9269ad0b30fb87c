package e2e

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/internal/path"
)

// A tap stands between nodes that advertise its address instead of their own.
// It sees every byte that another node sends to them, packets and streams, and
// keeps them.
type tap struct {
	ip      string
	mu      sync.Mutex // guards the fields below
	seen    bytes.Buffer
	closers []io.Closer
	closed  bool
	wg      sync.WaitGroup
	// meddle, set before any stream passes, takes the streams of paths, with the
	// bytes that were read; nil: they pass as all others.
	meddle func(from, on net.Conn, head []byte)
}

// tap makes the tap of a lab; it ends with the test.
func (l *lab) tap() *tap {
	at := net.ParseIP(l.ip).To4()
	at[3] += 125 // loopback uses the lower half
	p := &tap{ip: at.String()}
	l.t.Cleanup(p.close)
	return p
}

// close ends the tap and all that goes through it, and waits for it.
func (p *tap) close() {
	p.mu.Lock()
	p.closed = true
	for _, c := range p.closers {
		c.Close()
	}
	p.mu.Unlock()
	p.wg.Wait()
}

// own makes the tap close c; false: it has been closed already.
func (p *tap) own(c io.Closer) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		c.Close()
		return false
	}
	p.closers = append(p.closers, c)
	return true
}

// Write keeps the bytes that pass.
func (p *tap) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen.Write(b)
}

// capture returns the bytes that have passed so far.
func (p *tap) capture() []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	return bytes.Clone(p.seen.Bytes())
}

// serve passes on the traffic for a port of the node at ip.
func (p *tap) serve(t testing.TB, ip string, port int) {
	t.Helper()
	to := fmt.Sprintf("%s:%d", ip, port)
	streams, err := net.Listen("tcp", fmt.Sprintf("%s:%d", p.ip, port))
	if err != nil {
		t.Fatal(err)
	}
	packets, err := net.ListenPacket("udp", fmt.Sprintf("%s:%d", p.ip, port))
	if err != nil {
		streams.Close()
		t.Fatal(err)
	}
	p.own(streams)
	p.own(packets)
	p.wg.Go(func() { p.acceptStreams(streams, to) })
	p.wg.Go(func() { p.passPackets(packets, to) })
}

func (p *tap) acceptStreams(l net.Listener, to string) {
	for {
		from, err := l.Accept()
		if err != nil {
			return
		}
		on, err := net.Dial("tcp", to)
		if err != nil {
			from.Close()
			continue
		}
		if !p.own(from) || !p.own(on) {
			return
		}
		p.wg.Go(func() { p.passStream(from, on) })
	}
}

// passStream passes on a stream, whose dialer speaks first, until either side ends.
func (p *tap) passStream(from, on net.Conn) {
	defer from.Close()
	defer on.Close()
	head := make([]byte, 4<<10)
	n, err := from.Read(head)
	if err != nil {
		return
	}
	if head = head[:n]; p.meddle != nil && head[0] == path.First {
		p.meddle(from, on, head)
		return
	}
	_, _ = io.MultiWriter(on, p).Write(head)
	p.splice(from, on)
}

// splice passes on bytes both ways until either side ends.
func (p *tap) splice(from, on net.Conn) {
	pass := func(a, b net.Conn) {
		_, _ = io.Copy(io.MultiWriter(a, p), struct{ io.Reader }{b}) // an end is an end
		a.Close()
		b.Close()
	}
	var wg sync.WaitGroup
	wg.Go(func() { pass(from, on) })
	pass(on, from)
	wg.Wait()
}

// passPackets gives every sender a socket of its own towards the node.
func (p *tap) passPackets(front net.PacketConn, to string) {
	backs := map[string]net.Conn{}
	b := make([]byte, 64<<10)
	for {
		n, from, err := front.ReadFrom(b)
		if err != nil {
			return
		}
		_, _ = p.Write(b[:n])
		back := backs[from.String()]
		if back == nil {
			if back, err = net.Dial("udp", to); err != nil || !p.own(back) {
				return
			}
			backs[from.String()] = back
			p.wg.Go(func() { p.passBack(front, back, from) })
		}
		_, _ = back.Write(b[:n]) // lost, as packets may be
	}
}

func (p *tap) passBack(front net.PacketConn, back net.Conn, to net.Addr) {
	b := make([]byte, 64<<10)
	for {
		n, err := back.Read(b)
		if err != nil {
			if _, closed := err.(*net.OpError); closed && p.isClosed() {
				return
			}
			continue // the node is down for a moment
		}
		_, _ = p.Write(b[:n])
		_, _ = front.WriteTo(b[:n], to)
	}
}

func (p *tap) isClosed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed
}

// tapped makes n reachable through p only.
func (n *node) tapped(p *tap) {
	n.l.t.Helper()
	n.args = append(n.args, "--advertise", p.ip)
	p.serve(n.l.t, n.l.ip, n.data)
	p.serve(n.l.t, n.l.ip, n.gossip)
}

// TestTheWireRevealsNothing looks at all bytes between three nodes, from the
// first join to the last leave, for sent bytes and for identities.
func TestTheWireRevealsNothing(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	p := l.tap()
	host := l.prepare("secret-host-name", "--role", "host")
	host.tapped(p)
	l.token = l.dir + "/join.token"
	if _, err := l.fabricd("init", "--name", host.name, "--state-dir", host.stateDir(), "--token-file", l.token); err != nil {
		t.Fatal(err)
	}
	host.start()
	nodes := []*node{host}
	for _, name := range []string{"secret-first-name", "secret-second-name"} {
		n := l.prepare(name, "--join", fmt.Sprintf("%s:%d", p.ip, host.data), "--token-file", l.token)
		n.tapped(p)
		n.start()
		nodes = append(nodes, n)
	}
	l.agree(nodes...)

	var marker [16]byte
	if _, err := rand.Read(marker[:]); err != nil {
		t.Fatal(err)
	}
	payload := bytes.Repeat(marker[:], windowSize/len(marker))
	for i, n := range nodes {
		z := l.zombie(n, nodes[(i+1)%len(nodes)])
		if err := z.ep.VWriteTo(payload, z.off, fabric.Sync); err != nil {
			t.Fatal(err)
		}
		if _, err := z.ep.Send(within(t, stepLimit), payload); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(payload))
		if _, err := z.far.Recv(within(t, stepLimit), got); err != nil || !bytes.Equal(got, payload) {
			t.Fatalf("%v, the same: %v", err, bytes.Equal(got, payload))
		}
	}

	capture := p.capture()
	t.Logf("%d KiB passed", len(capture)>>10)
	if want := 2 * len(nodes) * windowSize; len(capture) < want {
		t.Fatalf("the tap saw %d bytes, but %d of payload were sent: it does not see all", len(capture), want)
	}
	token, err := os.ReadFile(l.token)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.TrimSpace(string(token))
	for name, secret := range map[string]string{
		"the payload": string(marker[:]), "the payload in hex": hex.EncodeToString(marker[:]),
		"the payload in base64": base64.StdEncoding.EncodeToString(marker[:15]),
		"the token":             text, "half of the token": text[len(text)/2:], "the token's beginning": text[:len(text)/2],
		"a node's name": "secret-", "the first name": nodes[1].name, "what a PEM key begins with": "PRIVATE KEY",
	} {
		if bytes.Contains(capture, []byte(secret)) {
			t.Errorf("the wire shows %s", name)
		}
	}
}
