package hostile

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/daemon"
	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/transport/network"
	"github.com/fabricd/fabricd/internal/transport/quic"
	"github.com/fabricd/fabricd/internal/wire"
	"github.com/fabricd/fabricd/membership/control"
	"github.com/fabricd/fabricd/membership/trust"
)

// TestStrangersOnEveryPort attacks all ports of a host without any secret: with
// noise, handshakes that begin and never end, and silent connections.
// Meanwhile a node joins and pings the host over a fresh link.
func TestStrangersOnEveryPort(t *testing.T) {
	c := newCluster(t)
	gossip := c.host.Status().Gossip
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	before := heap()
	stop := make(chan struct{})
	var work sync.WaitGroup
	attack := func(i uint64, f func(random *rand.Rand) bool) {
		random := rand.New(rand.NewPCG(seed, i))
		work.Go(func() {
			for f(random) {
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	packets := func(to string, make func(*rand.Rand) []byte, count int) func(*rand.Rand) bool {
		conn, err := net.Dial("udp", to)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		sent := 0
		return func(random *rand.Rand) bool {
			_, _ = conn.Write(make(random)) // an ICMP error of an earlier one is nothing to us
			if sent++; sent%256 == 0 {
				time.Sleep(time.Millisecond) // loopback takes no more anyway
			}
			return sent < count
		}
	}
	attack(1, packets(c.data(), noise, 10_000))
	attack(2, packets(c.data(), initialPacket, 10_000))
	attack(3, packets(gossip, noise, 10_000))
	attack(4, packets(gossip, gossipPacket, 10_000))
	for i, to := range []string{c.data(), gossip} {
		attack(uint64(5+i), streams(t, to, "127.0.0.2", 200))
	}

	one := c.start(c.node("one"))
	for range 3 {
		if _, err := one.Ping(within(t), addr.Host); err != nil {
			t.Errorf("ping during the attack: %v", err)
		}
	}
	close(stop)
	work.Wait()
	if grown := heap() - before; grown > 48<<20 { // the node that joined included
		t.Errorf("memory grew by %d KiB", grown>>10)
	}
	if h := c.host.Health(); !h.Healthy {
		t.Errorf("the host: %+v", h)
	}
}

// noise returns a packet of random bytes.
func noise(random *rand.Rand) []byte {
	p := make([]byte, 1+random.IntN(1400))
	for i := range p {
		p[i] = byte(random.Uint32())
	}
	return p
}

// initialPacket returns bytes like the first packet of a QUIC handshake
// up to where it has to be decrypted: the server has to make state, or to ask
// for a proof of the address.
func initialPacket(random *rand.Rand) []byte {
	p := []byte{0xc3, 0, 0, 0, 1, 8} // long header, Initial, version 1
	p = binary.BigEndian.AppendUint64(p, random.Uint64())
	p = append(p, 8)
	p = binary.BigEndian.AppendUint64(p, random.Uint64())
	p = append(p, 0) // no token
	const rest = 1200 - 25
	p = binary.BigEndian.AppendUint16(p, 0x4000|rest)
	body := make([]byte, rest)
	for i := range body {
		body[i] = byte(random.Uint32())
	}
	return append(p, body...)
}

// gossipPacket returns packets whose first bytes memberlist's decoders accept, without
// a key: plain messages, compressed ones, compound ones, labels and ciphertext.
func gossipPacket(random *rand.Rand) []byte {
	p := noise(random)
	p[0] = byte(random.IntN(16))
	switch random.IntN(4) {
	case 0:
		p[0] = 244 // a label
	case 1:
		p[0] = 7 // compound
	}
	return p
}

// streams opens connections from one address and, on each, begins something
// that it does not finish.
func streams(t *testing.T, to, from string, count int) func(*rand.Rand) bool {
	var held []net.Conn
	t.Cleanup(func() {
		for _, c := range held {
			c.Close()
		}
	})
	starts := [][]byte{
		nil,
		{0x16},                         // one byte of a TLS record
		{0x16, 3, 1, 0xff, 0xff, 1},    // a record longer than any
		{0x16, 3, 1, 0x40, 0, 1, 0xff}, // the beginning of a handshake of 16 MiB
		[]byte("GET / HTTP/1.1\r\n\r\n"),
		// memberlist's push and pull of a million members, and a message of 4 GiB
		{6, 0x83, 0xa5, 'N', 'o', 'd', 'e', 's', 0xce, 0, 0x10, 0, 0, 0xac, 'U', 's', 'e', 'r', 'S', 't', 'a', 't', 'e', 'L', 'e', 'n', 0, 0xa4, 'J', 'o', 'i', 'n', 0xc3},
		{10, 0xff, 0xff, 0xff, 0xff},
	}
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: time.Second}
	return func(random *rand.Rand) bool {
		conn, err := d.Dial("tcp", to)
		if err != nil {
			return len(held) < count
		}
		held = append(held, conn)
		_, _ = conn.Write(starts[random.IntN(len(starts))])
		return len(held) < count
	}
}

// TestSilentConnectionsKeepOutNobody has strangers at two addresses, and at one in each
// of 300 networks, open all the connections that a control port takes, and say nothing.
// A node that comes from elsewhere joins before any of them is given up.
func TestSilentConnectionsKeepOutNobody(t *testing.T) {
	var few, many []net.IP
	for i := range 280 {
		few = append(few, net.IPv4(127, 0, 0, byte(2+i%2)))
	}
	for i := range 300 {
		many = append(many, net.IPv4(127, byte(1+i/200), byte(i%200), 1))
	}
	t.Run("two addresses", func(t *testing.T) { joinsBeside(t, few) })
	t.Run("300 networks", func(t *testing.T) { joinsBeside(t, many) })
}

// joinsBeside has a node join while the host has a silent connection from each of
// these addresses.
func joinsBeside(t *testing.T, strangers []net.IP) {
	c := newCluster(t)
	for _, from := range strangers {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: from}}
		conn, err := d.DialContext(within(t), "tcp", c.data())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	began := time.Now()
	c.start(c.node("one"))
	if took := time.Since(began); took > 2500*time.Millisecond { // an opening is given up after 3 s
		t.Errorf("joining took %v", took)
	} else {
		t.Logf("joined after %v", took)
	}
}

// TestCertificatesOfStrangers tries every certificate that is not one of this
// cluster, valid now, on the control port and on the data port.
func TestCertificatesOfStrangers(t *testing.T) {
	c := newCluster(t)
	now := time.Now()
	other := addr.UUID{7, 7, 7}
	foreign, err := trust.NewCA(other, now)
	if err != nil {
		t.Fatal(err)
	}
	pretender, err := trust.NewCA(c.id, now) // same names, another key
	if err != nil {
		t.Fatal(err)
	}
	old, err := trust.NewCA(c.id, now.Add(-48*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	good, me := c.evil, c.evilID
	for name, s := range map[string]*trust.Store{
		"a good one":                    good, // shows that it is the certificate that decides
		"another cluster":               c.store(foreign, trust.Identity{Cluster: other, Node: me.Node}, now),
		"a CA of the same name":         c.store(pretender, me, now),
		"a host of a CA of that name":   c.store(pretender, trust.Identity{Cluster: c.id, Node: me.Node, Host: true}, now),
		"expired, of a CA of that name": c.store(old, me, now.Add(-47*time.Hour)),
		"expired, of the real CA":       c.store(c.ca, me, now.Add(-3*time.Hour)),
		"not valid yet, of the real CA": c.store(c.ca, me, now.Add(24*time.Hour)),
		"not valid yet, as the host":    c.store(c.ca, trust.Identity{Cluster: c.id, Node: me.Node, Host: true}, now.Add(24*time.Hour)),
	} {
		t.Run(name, func(t *testing.T) {
			before := c.host.Status().Counts.Refused
			for _, proto := range []string{control.ProtoControl, control.ProtoLifeline, trust.JoinALPN} {
				config := s.ClientTLS(nil, proto)
				config.InsecureSkipVerify, config.VerifyConnection, config.Time = true, nil, time.Now // it accepts any certificate
				if proto == trust.JoinALPN {
					continue // which asks for no certificate
				}
				r, err := dialRaw(t, c.data(), config)
				if err == nil { // a TLS 1.3 client learns of a refusal when it reads
					r.say(control.Hello{VersionMin: control.VersionMin, VersionMax: control.VersionMax, Cluster: c.id, From: control.End{UUID: me.Node, Epoch: 1}})
					if kind, _ := r.until(frameWelcome, frameRefuse); (kind == frameWelcome) != (s == good) {
						t.Errorf("%s answers with frame %d", proto, kind)
					}
				} else if s == good {
					t.Errorf("%s: %v", proto, err)
				}
			}
			p, err := quic.New(quic.Config{Address: "127.0.0.1:0", Config: network.Config{Log: zerolog.Nop(), Identify: identify, HandshakeTimeout: time.Second,
				ServerTLS: func() *tls.Config { return s.ServerTLS(quic.ALPN) },
				ClientTLS: func() *tls.Config {
					config := s.ClientTLS(nil, quic.ALPN)
					config.InsecureSkipVerify, config.Time = true, time.Now
					config.VerifyConnection = func(tls.ConnectionState) error { return nil }
					return config
				}}})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			began := time.Now()
			if _, err := p.Dial(within(t), c.data()); (err == nil) != (s == good) || err != nil && time.Since(began) > time.Second {
				t.Errorf("a session over QUIC: %v after %v", err, time.Since(began))
			}
			if s == good {
				return
			}
			const want = 3 // control, lifeline, QUIC
			for limit := time.Now().Add(patience); c.host.Status().Counts.Refused < before+want; time.Sleep(time.Millisecond) {
				if time.Now().After(limit) {
					t.Fatalf("the host has refused %d, want %d", c.host.Status().Counts.Refused-before, want)
				}
			}
		})
	}
	t.Run("none", func(t *testing.T) {
		for _, proto := range []string{control.ProtoControl, control.ProtoLifeline} {
			r, err := dialRaw(t, c.data(), &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13, NextProtos: []string{proto}})
			if err != nil {
				continue
			}
			r.say(control.Hello{VersionMin: 1, VersionMax: 1, Cluster: c.id, From: control.End{UUID: me.Node}})
			if kind, _ := r.until(frameWelcome, frameRefuse); kind != 0 {
				t.Errorf("%s answers with frame %d", proto, kind)
			}
		}
	})
	t.Run("none, behind the protocol for joining", func(t *testing.T) {
		r, err := dialRaw(t, c.data(), &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13,
			NextProtos: []string{control.ProtoControl, control.ProtoLifeline, trust.JoinALPN}})
		if err != nil {
			t.Fatal(err)
		}
		if got := r.c.ConnectionState().NegotiatedProtocol; got != trust.JoinALPN {
			t.Errorf("the host speaks %s with a stranger", got)
		}
		r.say(control.Hello{VersionMin: 1, VersionMax: 1, Cluster: c.id, From: control.End{UUID: me.Node}})
		if kind, _ := r.until(frameWelcome, frameRefuse); kind == frameWelcome {
			t.Error("the host welcomes a stranger")
		}
	})
	for name, config := range map[string]*tls.Config{
		"TLS 1.2":     {InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12, NextProtos: []string{trust.JoinALPN}},
		"no protocol": {InsecureSkipVerify: true},
		"HTTP":        {InsecureSkipVerify: true, NextProtos: []string{"h2"}},
		"QUIC's":      {InsecureSkipVerify: true, NextProtos: []string{quic.ALPN}},
	} {
		t.Run(name, func(t *testing.T) {
			if r, err := dialRaw(t, c.data(), config); err == nil {
				if kind, _ := r.until(frameWelcome, frameRefuse); kind != 0 {
					t.Errorf("answered with frame %d", kind)
				}
			}
		})
	}
}

// TestStolenCA: a certificate of the cluster's own CA for a node that the host has not
// enrolled, or has enrolled with another key, is of no use. Nothing but a lease makes a
// link or a lifeline a member's, and the host gives none.
func TestStolenCA(t *testing.T) {
	c := newCluster(t)
	one := c.start(c.node("one"))
	uuid, err := addr.ParseUUID(one.Status().Node)
	if err != nil {
		t.Fatal(err)
	}
	for name, x := range map[string]struct {
		node addr.UUID
		code control.Code
	}{
		"of nobody":               {addr.UUID{0xE, 2}, control.CodeUnknown},
		"of a node that lives":    {uuid, control.CodeUnknown},
		"of a node with no lease": {c.evilID.Node, control.CodeUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			s := c.store(c.ca, trust.Identity{Cluster: c.id, Node: x.node}, time.Now())
			dial := control.Dialer{Store: s, Dial: dialTCP, Self: func() (control.End, []byte) {
				return control.End{UUID: x.node, Epoch: 1}, nil
			}}
			_, err := dial.Session(within(t), c.data())
			if refused, ok := errors.AsType[*control.RefusedError](err); !ok || refused.Code != x.code {
				t.Errorf("a control session: %v, want a refusal with code %d", err, x.code)
			}
			if l, err := dial.Lifeline(within(t), c.data(), control.Target{}, nil); err == nil {
				t.Errorf("a lifeline is welcomed")
				l.Abort()
			}
			p, err := quic.New(quic.Config{Address: "127.0.0.1:0", Config: network.Config{Log: zerolog.Nop(), Identify: identify,
				ServerTLS: func() *tls.Config { return s.ServerTLS(quic.ALPN) },
				ClientTLS: func() *tls.Config { return s.ClientTLS(nil, quic.ALPN) }}})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			sess, err := p.Dial(within(t), c.data())
			if err != nil {
				return
			}
			defer sess.Close(transport.CodeOK, "")
			incarnation := one.Self().Incarnation
			for _, h := range []wire.Hello{{From: incarnation, FromEpoch: 1}, {From: addr.Incarnation{Node: 7, Generation: 1}, FromEpoch: 1}} {
				h.VersionMin, h.VersionMax, h.Cluster, h.FromUUID, h.To = wire.VersionMin, wire.VersionMax, c.id, x.node, c.host.Self().Incarnation
				if _, _, err := openLink(within(t), sess, wire.Lease{}.AppendTo(h.AppendTo(nil))); err == nil {
					t.Errorf("the host takes a link of %v", h.From)
				}
			}
		})
	}
	c.alive(one)
}

// TestJoiningWithTokensThatAreNone asks the host to join with every token that
// it must not accept, and parses texts that are none.
func TestJoiningWithTokensThatAreNone(t *testing.T) {
	c := newCluster(t)
	made := func(lifetime time.Duration, uses int) trust.Token {
		m, err := c.host.CreateToken(lifetime, uses)
		if err != nil {
			t.Fatal(err)
		}
		token, err := trust.ParseToken(m.Token)
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	ask := func(token trust.Token) error {
		csr, _, err := trust.NewRequest()
		if err != nil {
			t.Fatal(err)
		}
		_, err = control.Ask(within(t), dialTCP, c.data(), token, time.Now,
			control.JoinAsk{Name: fmt.Sprintf("evil-%d", rand.Uint32()), Request: csr})
		return err
	}
	once := made(time.Hour, 1)
	if err := ask(once); err != nil {
		t.Fatalf("a good token: %v", err)
	}
	short := made(50*time.Millisecond, 10)
	unknown := made(time.Hour, 10)
	unknown.ID[0]++
	wrong := made(time.Hour, 10) // the ID of one with the secret of another
	wrong.ID = made(time.Hour, 10).ID
	time.Sleep(60 * time.Millisecond)
	for name, token := range map[string]trust.Token{"used up": once, "expired": short, "unknown": unknown, "wrong secret": wrong} {
		err := ask(token)
		var refused *control.RefusedError
		if !errors.As(err, &refused) || !refused.Remote {
			t.Errorf("%s: %v, want a refusal", name, err)
			continue
		}
		if refused.Code != control.CodeToken {
			t.Errorf("%s: refused with code %v: %v", name, refused.Code, err)
		}
	}
	for _, text := range []string{"", "fab1-", "fab1-aaaa", c.token[:len(c.token)-1], c.token + "a", strings.ToUpper(c.token),
		"fab2-" + c.token[5:], strings.Repeat("a", 1<<16), c.token[:20] + "\x00" + c.token[21:]} {
		if _, err := trust.ParseToken(text); err == nil {
			t.Errorf("ParseToken accepts %.20q", text)
		} else if len(text) > 30 && strings.Contains(err.Error(), text[10:30]) {
			t.Errorf("the error repeats the token: %v", err)
		}
	}
	// A node that is pinned to another CA does not even ask.
	other := made(time.Hour, 1)
	other.Pin[0]++
	if err := ask(other); err == nil {
		t.Error("a host with another pin is believed")
	}
}

// TestFakeHostLearnsNothing has a node join at an address where a fake host
// waits, with a certificate of its own CA for the same names. The node gives
// up before it sends anything: no byte behind the handshake, and no byte of the
// token at all.
func TestFakeHostLearnsNothing(t *testing.T) {
	c := newCluster(t)
	fakeCA, err := trust.NewCA(c.id, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	fake := c.store(fakeCA, trust.Identity{Cluster: c.id, Node: addr.UUID{0xFA, 4}, Host: true}, time.Now())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wire, plain bytes.Buffer
	var mu sync.Mutex // guards both
	var work sync.WaitGroup
	var visits int
	work.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			tapped := &tap{Conn: conn, seen: func(p []byte) { mu.Lock(); wire.Write(p); visits++; mu.Unlock() }}
			s := tls.Server(tapped, fake.JoinServerTLS())
			s.SetDeadline(time.Now().Add(time.Second))
			p := make([]byte, 4096)
			n, _ := s.Read(p) // whatever it says behind the handshake
			mu.Lock()
			plain.Write(p[:n])
			mu.Unlock()
			conn.Close()
		}
	})
	node := c.node("victim")
	node.Join = []string{l.Addr().String()}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if d, err := daemon.Start(ctx, node, daemon.Options{Log: zerolog.New(c.logs)}); err == nil {
		d.Close()
		t.Error("the node joined the fake host")
	}
	l.Close()
	work.Wait()
	if visits == 0 {
		t.Fatal("the node never came")
	}
	if plain.Len() > 0 {
		t.Errorf("the fake host was sent %d bytes", plain.Len())
	}
	for _, secret := range secretsOf(c.token) {
		if bytes.Contains(wire.Bytes(), secret) || bytes.Contains([]byte(c.logs.String()), secret) {
			t.Error("the token was seen on the wire or in the log")
		}
	}
}

// secretsOf returns forms in which a token's secret could show: its text, and
// the part of the text that holds it.
func secretsOf(text string) [][]byte {
	return [][]byte{[]byte(text), []byte(text[len(text)-50:])}
}

// adminGet returns the answer of the admin interface.
func adminGet(t *testing.T, socket, path string) []byte {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		}}}
	resp, err := client.Get("http://admin" + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// A tap passes the bytes read from a connection to seen.
type tap struct {
	net.Conn
	seen func([]byte)
}

func (t *tap) Read(p []byte) (int, error) {
	n, err := t.Conn.Read(p)
	t.seen(p[:n])
	return n, err
}

// TestSecretsStayInTheirFiles looks for the cluster's secrets where other users may
// read: logs at the finest level, admin answers, and the public state of the
// process.
func TestSecretsStayInTheirFiles(t *testing.T) {
	c := newCluster(t)
	node := c.node("one")
	one := c.start(node)
	if _, err := one.Ping(within(t), addr.Host); err != nil {
		t.Fatal(err)
	}
	made, err := c.host.CreateToken(time.Hour, 1)
	if err != nil {
		t.Fatal(err)
	}
	keyring, err := os.ReadFile(filepath.Join(node.StateDir, "keyring"))
	if err != nil {
		t.Fatal(err)
	}
	secrets := append(secretsOf(c.token), secretsOf(made.Token)...)
	secrets = append(secrets, keyring[len(keyring)/2:])
	for _, text := range []string{c.token, made.Token} {
		raw, err := TokenSecret(text)
		if err != nil {
			t.Fatal(err)
		}
		secrets = append(secrets, raw)
	}

	// The public state of processes is TestSecretsAreInNoProcess of
	// internal/test/e2e: here the nodes are in this process, which holds the secrets.
	shown := map[string][]byte{"log": []byte(c.logs.String())}
	for _, path := range []string{"/v1/status", "/v1/nodes", "/v1/health", "/v1/ports", "/v1/conns", "/v1/windows", "/v1/links", "/v1/tokens"} {
		shown[path] = adminGet(t, node.Local.AdminSocket, path)
	}
	for where, text := range shown {
		for i, secret := range secrets {
			if how := Shows(text, secret); how != "" {
				t.Errorf("%s shows secret %d %s", where, i, how)
			}
		}
	}
	if len(shown["log"]) == 0 {
		t.Error("nothing was logged, so that nothing was looked at")
	}
	err = filepath.WalkDir(node.StateDir, func(path string, e os.DirEntry, err error) error {
		info, ierr := e.Info()
		if err := errors.Join(err, ierr); err != nil {
			return err
		}
		if info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
