package e2e

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/internal/path"
)

// A parley is a connection of two applications, of which one sends everything back.
type parley struct {
	l    *lab
	at   *node        // of the application that talks
	conn *fabric.Conn // its end
}

// parley connects an application at n with one at m.
func (l *lab) parley(n, m *node) *parley {
	l.t.Helper()
	listener, err := m.attach().Listen(0)
	if err != nil {
		l.t.Fatal(err)
	}
	ctx := within(l.t, time.Minute)
	go func() { // ends with the application
		c, err := listener.AcceptConn(ctx)
		if err == nil {
			_, _ = io.Copy(c, c)
		}
	}()
	c, err := n.attach().DialAddr(within(l.t, stepLimit), listener.Addr().(fabric.Addr))
	if err != nil {
		l.t.Fatal(err)
	}
	return &parley{l, n, c}
}

// trip sends text and receives it again.
func (p *parley) trip(text string) error {
	p.conn.SetDeadline(time.Now().Add(stepLimit))
	if _, err := p.conn.Write([]byte(text)); err != nil {
		return err
	}
	got := make([]byte, len(text))
	if n, err := io.ReadFull(p.conn, got); err != nil || string(got) != text {
		return fmt.Errorf("%q came back, %w", got[:n], err)
	}
	return nil
}

// way returns how the connection talks, and why it is no faster way.
func (p *parley) way() (way, why string) {
	ctx, cancel := context.WithTimeout(context.Background(), stepLimit)
	defer cancel()
	text, err := p.at.admin.Get(ctx, "conns")
	if err != nil {
		return "", err.Error()
	}
	var all struct {
		Conns []struct{ Local, Remote, Path, Why string }
	}
	if err := json.Unmarshal(text, &all); err != nil {
		return "", err.Error()
	}
	for _, c := range all.Conns {
		if c.Local == p.conn.LocalAddr().String() && c.Remote == p.conn.RemoteAddr().String() {
			return c.Path, c.Why
		}
	}
	return "", "there is no such connection"
}

// until talks until the connection takes a way, of which why says that.
func (p *parley) until(way, why string) {
	p.l.t.Helper()
	eventually(p.l.t, stepLimit, "the way is "+way, func() error {
		if err := p.trip("until it goes over"); err != nil {
			return fmt.Errorf("%w: a round trip: %w", errGiveUp, err)
		}
		if got, said := p.way(); got != way || !strings.Contains(said, why) {
			return fmt.Errorf("it is %s: %s", got, said)
		}
		return nil
	})
}

// tappedPair makes a host and a member whose data ports are reached through a tap.
func (l *lab) tappedPair(meddle func(from, on net.Conn, head []byte)) (host, member *node, p *tap) {
	l.t.Helper()
	p = l.tap()
	p.meddle = meddle
	host = l.prepare("host-node", "--role", "host", "--paths", "lazy")
	l.token = host.dir + "/join.token"
	if _, err := l.fabricd("init", "--name", host.name, "--state-dir", host.stateDir(), "--token-file", l.token); err != nil {
		l.t.Fatal(err)
	}
	host.tapped(p)
	host.start()
	member = l.member(host, "member", "--paths", "lazy")
	member.tapped(p)
	member.start()
	l.agree(host, member)
	return host, member, p
}

// TestAReaderOfPacketsSeesNothingOfAPath looks for the messages of applications
// on a path in every byte that passed between their nodes.
func TestAReaderOfPacketsSeesNothingOfAPath(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	host, member, tap := l.tappedPair(nil)
	p := l.parley(member, host)
	p.until("path", "")
	before := len(tap.capture())
	secret := rand.Text() + rand.Text()
	for range 100 {
		if err := p.trip(secret); err != nil {
			t.Fatal(err)
		}
	}
	seen := tap.capture()
	if len(seen)-before < 200*len(secret) {
		t.Fatalf("only %d bytes passed: the path does not go through the tap", len(seen)-before)
	}
	for _, part := range []string{secret, secret[:12], secret[len(secret)-12:]} {
		if bytes.Contains(seen, []byte(part)) {
			t.Errorf("%q of a message is there to be read", part)
		}
	}
}

// selfSigned returns a key unknown to all nodes, with a certificate as paths have them.
func selfSigned(t testing.TB) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Unix(1<<32, 0)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// A meddler stands in the middle of paths.
type meddler struct {
	mu    sync.Mutex // guards the fields below
	times int        // paths that it was in the middle of
	read  []byte     // bytes read from either application
	head  []byte     // first bytes of the last path
}

// note keeps bytes that were read.
func (m *meddler) note(p []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.read = append(m.read, p...)
}

func (m *meddler) begin(head []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.times++
	m.head = bytes.Clone(head)
}

func (m *meddler) seen() (times int, read, head []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.times, bytes.Clone(m.read), bytes.Clone(m.head)
}

// inTheMiddle passes the greeting on and then speaks TLS with both applications, with
// its own key.
func (m *meddler) inTheMiddle(cert tls.Certificate, from, on net.Conn, head []byte) {
	m.begin(head)
	answer := make([]byte, 1)
	if _, err := on.Write(head); err != nil {
		return
	}
	if _, err := io.ReadFull(on, answer); err != nil {
		return
	}
	if _, err := from.Write(answer); err != nil {
		return
	}
	config := &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert}, InsecureSkipVerify: true,
		NextProtos: []string{"fabricd-path/1"}, ClientAuth: tls.RequireAnyClientCert}
	a, b := tls.Server(from, config), tls.Client(on, config)
	defer a.Close()
	defer b.Close()
	var wg sync.WaitGroup
	pass := func(to, from *tls.Conn) {
		p := make([]byte, 4<<10)
		for {
			n, err := from.Read(p)
			m.note(p[:n])
			if err != nil {
				return
			}
			if _, err := to.Write(p[:n]); err != nil {
				return
			}
		}
	}
	wg.Go(func() { pass(a, b) })
	pass(b, a)
	wg.Wait()
}

// TestAManInTheMiddleOfAPathIsRefused: both applications accept the key that the link
// has named and no other. The connection goes on over the link, and says why.
func TestAManInTheMiddleOfAPathIsRefused(t *testing.T) {
	t.Parallel()
	for _, fromHost := range []bool{false, true} { // each side opens the connection once
		l := newLab(t)
		m, cert := &meddler{}, selfSigned(t)
		a, b, _ := l.tappedPair(func(from, on net.Conn, head []byte) { m.inTheMiddle(cert, from, on, head) })
		if !fromHost {
			a, b = b, a
		}
		p := l.parley(a, b)
		eventually(t, stepLimit, "it was in the middle, and failed", func() error {
			if err := p.trip("a secret of two applications"); err != nil {
				return fmt.Errorf("%w: the connection does not go on over its link: %w", errGiveUp, err)
			}
			way, why := p.way()
			if times, _, _ := m.seen(); times == 0 || way == "path" || !strings.Contains(why, "path") {
				return fmt.Errorf("%d times in the middle, and the way is %s: %s", times, way, why)
			}
			return nil
		})
		for range 20 {
			if err := p.trip("a secret of two applications"); err != nil {
				t.Fatal(err)
			}
		}
		if _, read, _ := m.seen(); len(read) > 0 {
			t.Errorf("it has read %q of the applications", read)
		}
		if way, why := p.way(); way == "path" {
			t.Errorf("the connection is on a path: %s", why)
		} else {
			t.Logf("why: %s", why)
		}
	}
}

// TestAStolenTokenOpensNothing: a process that has seen the token of a path on its way, and
// shows it first, has a socket at which the application refuses it.
func TestAStolenTokenOpensNothing(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	m, cert := &meddler{}, selfSigned(t)
	steal := func(from, on net.Conn, head []byte) { // the right one gets nothing
		m.begin(head)
		if _, err := on.Write(head); err != nil {
			return
		}
		if _, err := io.ReadFull(on, make([]byte, 1)); err != nil {
			return
		}
		thief := tls.Client(on, &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert}, InsecureSkipVerify: true,
			NextProtos: []string{"fabricd-path/1"}})
		thief.SetDeadline(time.Now().Add(stepLimit))
		p := make([]byte, 4<<10)
		n, _ := thief.Read(p)
		m.note(p[:n])
	}
	a, b, _ := l.tappedPair(steal)
	p := l.parley(b, a)
	for range 50 {
		if err := p.trip("not for thieves"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond)
	}
	times, read, _ := m.seen()
	if way, why := p.way(); times == 0 || way == "path" || len(read) > 0 {
		t.Errorf("%d tokens were stolen, %d bytes read, the way is %s: %s", times, len(read), way, why)
	}
}

// TestTokensAreOfUseOnce shows the token of a path again, and thousands that were guessed,
// while the path is used.
func TestTokensAreOfUseOnce(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	m := &meddler{}
	var tap *tap
	watch := func(from, on net.Conn, head []byte) {
		m.begin(head)
		if _, err := on.Write(head); err == nil {
			tap.splice(from, on)
		}
	}
	a, b, tap := l.tappedPair(watch)
	p := l.parley(b, a)
	p.until("path", "")
	_, _, head := m.seen()
	if len(head) < 16 {
		t.Fatalf("a path begins with % x", head)
	}
	for _, at := range []*node{a, b} {
		if got := show(at.addr(), head); got != nil {
			t.Errorf("a used token is answered with % x", got)
		}
		for range scale(2000, 500, 20_000) {
			guess := bytes.Clone(head)
			_, _ = rand.Read(guess[len(guess)-16:])
			if got := show(at.addr(), guess); got != nil {
				t.Fatalf("a guessed token is answered with % x", got)
			}
		}
	}
	for range 20 {
		if err := p.trip("it goes on"); err != nil {
			t.Fatal(err)
		}
	}
	p.until("path", "")
}

// show shows a greeting and returns the answer; nil: the end.
func show(address string, head []byte) []byte {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return nil
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(stepLimit))
	if _, err := c.Write(head); err != nil {
		return nil
	}
	var answer [1]byte
	n, err := c.Read(answer[:])
	if errors.Is(err, context.DeadlineExceeded) {
		return []byte("no answer at all")
	}
	if n == 0 {
		return nil
	}
	return answer[:n]
}

// TestGarbageAtTheDataPort: thousands of sockets that begin as paths and say nothing, half
// a token, or nonsense. Paths that are there go on, and new ones are made meanwhile or
// soon after.
func TestGarbageAtTheDataPort(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	nodes := l.cluster(1, "--paths", "lazy")
	p := l.parley(nodes[1], nodes[0])
	p.until("path", "")
	first := []byte{path.First}
	var open []net.Conn
	for i := range scale(3000, 1000, 20_000) {
		c, err := net.Dial("tcp", nodes[i%2].addr())
		if err != nil {
			continue // it may refuse them
		}
		switch i % 3 {
		case 0:
			_, _ = c.Write(first)
		case 1:
			_, _ = c.Write(append(first, 1, 2, 3, 4, 5))
		case 2:
			_, _ = c.Write(append(first, bytes.Repeat([]byte("nonsense"), 100)...))
		}
		if open = append(open, c); len(open) > 200 {
			open[0].Close()
			open = open[1:]
		}
		if i%500 == 0 {
			if err := p.trip("it goes on"); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, c := range open {
		c.Close()
	}
	l.parley(nodes[1], nodes[0]).until("path", "")
	l.parley(nodes[0], nodes[1]).until("path", "")
	p.until("path", "")
	l.agree(nodes...)
}

// noPaths checks that connections with a node of a build that knows no paths stay on the
// link, and that `fabricd why` says so.
func noPaths(t *testing.T, past string) {
	l := newLab(t)
	host := l.host("--paths", "lazy")
	m := l.member(host, "past", "--paths", "lazy")
	m.exe = past
	m.start()
	l.agree(host, m)
	for _, ends := range [][2]*node{{host, m}, {m, host}} {
		p := l.parley(ends[0], ends[1])
		p.until("socket", "the peer's fabricd knows no paths")
		for range 20 {
			if err := p.trip("over the link"); err != nil {
				t.Fatal(err)
			}
		}
	}
}
