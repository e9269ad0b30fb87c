package tcp

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/internal/bubble"
	"github.com/fabricd/fabricd/internal/netsim"
	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/transport/transporttest"
)

// A rig is a provider and what it takes to be a member that does not keep to the
// protocol.
type rig struct {
	*testing.T
	network *netsim.Network
	p       *Provider
	member  Config // of idA
	log     logBuffer
}

// A logBuffer is a log that a test reads.
type logBuffer struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func hostile(t *testing.T, change func(*Config), f func(*rig)) {
	bubble.Test(t, func(t *testing.T) {
		r := &rig{T: t, network: netsim.New(1)}
		ca := transporttest.NewAuthority(t)
		r.member = member(ca, idA)
		cfg := member(ca, idB)
		cfg.MaxLanes, cfg.LaneWindow, cfg.SessionWindow = lanes, minWindow, 2*minWindow
		cfg.Log = zerolog.New(&r.log)
		change(&cfg)
		r.p = start(t, r.network, addrB, cfg)
		f(r)
		r.p.Close()
		r.network.Close()
	})
}

// dial opens a connection to the provider, with TLS if alpn is not empty.
func (r *rig) dial(alpn string) net.Conn {
	r.Helper()
	c, err := r.network.Dial(r.Context(), "10.0.0.1", addrB)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { c.Close() })
	if alpn == "" {
		return c
	}
	cfg, err := r.member.clientTLS(alpn)
	if err != nil {
		r.Fatal(err)
	}
	conn := tls.Client(c, cfg)
	if err := conn.Handshake(); err != nil {
		r.Fatal(err)
	}
	return conn
}

var ownHello = hello{from: version, to: version, bulk: 2, laneWindow: minWindow, sessionWindow: minWindow, lanes: lanes}

// session opens a session and returns both ends.
func (r *rig) session(own hello) (net.Conn, *session) {
	r.Helper()
	c := r.dial(ALPN)
	r.write(c, own.appendTo(nil))
	s, err := r.p.Accept(r.Context())
	if err != nil {
		r.Fatal(err)
	}
	if h, _ := r.frame(c); h.kind != typeHello {
		r.Fatalf("type %d instead of HELLO", h.kind)
	}
	return c, s.(*session)
}

func (r *rig) write(c net.Conn, p []byte) {
	r.Helper()
	if _, err := c.Write(p); err != nil {
		r.Fatal(err)
	}
}

// frame reads the next frame of a first connection, or one as short.
func (r *rig) frame(c net.Conn) (header, []byte) {
	r.Helper()
	return r.frameUpTo(c, maxSmall)
}

func (r *rig) frameUpTo(c net.Conn, most uint32) (header, []byte) {
	r.Helper()
	var b [headerLen]byte
	if _, err := io.ReadFull(c, b[:]); err != nil {
		r.Fatal(err)
	}
	h, err := parseHeader(b[:], most)
	if err != nil {
		r.Fatal(err)
	}
	body := make([]byte, h.length)
	if _, err := io.ReadFull(c, body); err != nil {
		r.Fatal(err)
	}
	return h, body
}

// closed reads to the CLOSE and returns it.
func (r *rig) closed(c net.Conn) (code uint64, reason string) {
	r.Helper()
	for {
		h, body := r.frame(c)
		if h.kind == typeClose {
			return h.value, string(body)
		}
	}
}

func data(lane, at uint64, n int) []byte {
	return append(header{kind: typeData, lane: lane, value: at, length: uint32(n)}.appendTo(nil), make([]byte, n)...)
}

func TestPeersThatBreakTheProtocol(t *testing.T) {
	fin := header{kind: typeData, flags: flagFin, lane: 1, value: 1}.appendTo(nil)
	many := func(lane uint64, n int) (all []byte) {
		for at := 0; at < n; at += 16000 {
			all = append(all, data(lane, uint64(at), min(16000, n-at))...)
		}
		return all
	}
	for name, c := range map[string]struct {
		say  [][]byte
		want string // part of the reason
	}{
		"an unknown type":               {[][]byte{header{kind: 99}.appendTo(nil)}, "header"},
		"an enormous length":            {[][]byte{header{kind: typeData, lane: 1, length: 1 << 31}.appendTo(nil)}, "header"},
		"a second hello":                {[][]byte{ownHello.appendTo(nil)}, "type 1"},
		"BOUND on the first connection": {[][]byte{header{kind: typeBound}.appendTo(nil)}, "type 11"},
		"a lane out of turn":            {[][]byte{data(2, 0, 1)}, "behind lane 0"},
		"a gap in a lane's credit":      {[][]byte{data(1, minWindow, 1)}, "the credit ends"},
		"more than a lane's credit":     {[][]byte{many(1, minWindow+1)}, "the credit ends"},
		"more than the session's":       {[][]byte{many(1, minWindow), many(2, minWindow), many(3, 1)}, "session's credit"},
		"bytes that come twice":         {[][]byte{data(1, 0, 10), data(1, 9, 10)}, "twice"},
		"bytes behind the end":          {[][]byte{data(1, 0, 1), fin, data(1, 1, 1)}, "byte 2 of 1"},
		"two ends":                      {[][]byte{data(1, 0, 1), fin, fin}, "ends twice"},
		"an end before the last byte":   {[][]byte{data(1, 0, 10), header{kind: typeReset, lane: 1, value: 9}.appendTo(nil)}, "before its last byte"},
		"an end beyond the credit":      {[][]byte{header{kind: typeReset, lane: 1, value: minWindow + 1}.appendTo(nil)}, "beyond its credit"},
		"a lane that is over":           {[][]byte{header{kind: typeReset, lane: 1}.appendTo(nil), nil, data(1, 0, 1)}, "lane 1 is over"},
		"a STOP of no lane":             {[][]byte{header{kind: typeStop, lane: 1}.appendTo(nil)}, "not open"},
		"credit of no lane":             {[][]byte{header{kind: typeCredit, lane: 1, value: 5}.appendTo(nil)}, "not open"},
		"a token from the dialer":       {[][]byte{append(header{kind: typeToken, lane: 1, length: tokenLen}.appendTo(nil), make([]byte, tokenLen)...)}, "TOKEN from the dialer"},
		"an ACK of no connection":       {[][]byte{header{kind: typeAck, lane: 1, value: 5}.appendTo(nil)}, "bulk connection 1, the last one is 0"},
		"a LOST of no connection":       {[][]byte{header{kind: typeLost, lane: 1}.appendTo(nil)}, "bulk connection 1, the last one is 0"},
	} {
		t.Run(name, func(t *testing.T) {
			hostile(t, func(*Config) {}, func(r *rig) {
				conn, s := r.session(ownHello)
				for _, p := range c.say {
					r.write(conn, p)
					synctest.Wait()
				}
				if code, reason := r.closed(conn); code != transport.CodeProtocol || !strings.Contains(reason, c.want) {
					t.Errorf("closed with %d, %q; want %q", code, reason, c.want)
				}
				<-s.Done()
				var end *transport.CloseError
				if !errors.As(s.Err(), &end) || end.Remote || end.Code != transport.CodeProtocol {
					t.Errorf("ended with %#v", s.Err())
				}
			})
		})
	}
}

// A peer opens lanes that nobody accepts: their number is bounded.
func TestLanesThatNobodyAccepts(t *testing.T) {
	hostile(t, func(*Config) {}, func(r *rig) {
		c, s := r.session(ownHello)
		for id := range uint64(lanes) {
			r.write(c, data(id+1, 0, 1))
			r.write(c, header{kind: typeReset, lane: id + 1, value: 1}.appendTo(nil))
		}
		synctest.Wait()
		if s.Err() != nil || len(s.queue) != lanes {
			t.Fatalf("%d lanes wait, %v", len(s.queue), s.Err())
		}
		r.write(c, data(lanes+1, 0, 1))
		if code, reason := r.closed(c); code != transport.CodeProtocol || !strings.Contains(reason, "allowed") {
			t.Errorf("closed with %d, %q", code, reason)
		}
	})
}

// What answers a peer that does not read waits in bounded memory; then the peer
// is cut off.
func TestAnswersThatNobodyReads(t *testing.T) {
	hostile(t, func(*Config) {}, func(r *rig) {
		_, s := r.session(ownHello)
		for range hardBacklog {
			s.say(header{kind: typeCredit, value: 1})
			if s.out.backlog.Load() > maxBacklog {
				if err := s.SendDatagram([]byte("dropped")); err != nil && s.Err() == nil {
					t.Error(err)
				}
			}
			s.out.mu.Lock()
			err := s.out.err
			s.out.mu.Unlock()
			if err != nil {
				break
			}
		}
		if b := s.out.backlog.Load(); b < hardBacklog || b > hardBacklog+1<<10 {
			t.Errorf("%d bytes wait", b)
		}
		<-s.Done()
		if end := s.Err(); !strings.Contains(end.Error(), errNotRead.Error()) {
			t.Errorf("ended with %v", end)
		}
	})
}

// token asks for a token.
func (r *rig) token(c net.Conn) binding {
	r.Helper()
	r.write(c, header{kind: typeWant}.appendTo(nil))
	return r.given(c)
}

// given reads until there is a token.
func (r *rig) given(c net.Conn) binding {
	r.Helper()
	for {
		if h, body := r.frame(c); h.kind == typeToken {
			at := binding{session: h.value}
			copy(at.token[:], body)
			return at
		}
	}
}

// present shows a token on a new connection and reports whether it was taken.
func (r *rig) present(alpn string, at binding) bool {
	r.Helper()
	c := r.dial(alpn)
	r.write(c, at.appendTo(nil))
	var b [headerLen]byte
	_, err := io.ReadFull(c, b[:])
	return err == nil && frameType(b[0]) == typeBound
}

func TestTokens(t *testing.T) {
	for name, plaintext := range map[string]bool{"tls": false, "plaintext": true} {
		alpn := BulkALPN
		if plaintext {
			alpn = ""
		}
		t.Run(name, func(t *testing.T) {
			hostile(t, func(c *Config) { c.Plaintext = plaintext }, func(r *rig) {
				own := ownHello
				own.plaintext = plaintext
				c, s := r.session(own)
				first := r.token(c)
				forged := first
				forged.token[31] ^= 1
				if r.present(alpn, forged) {
					t.Error("a forged token was taken")
				}
				other := first
				other.session++
				if r.present(alpn, other) {
					t.Error("a token of no session was taken")
				}
				if wrong := map[string]string{BulkALPN: "", "": BulkALPN}[alpn]; wrong != "" && r.present(wrong, first) {
					t.Error("a token was taken on a connection of the other kind")
				}
				if !r.present(alpn, first) {
					t.Error("a token was refused")
				}
				if r.present(alpn, first) {
					t.Error("a token was taken twice")
				}
				old := r.token(c)
				time.Sleep(tokenLife + time.Second)
				if r.present(alpn, old) {
					t.Error("a token that has expired was taken")
				}
				last := r.token(c)
				c.Close()
				<-s.Done()
				if r.present(alpn, last) {
					t.Error("a token of a session that has ended was taken")
				}
				if s.Err() == nil || !strings.Contains(r.log.String(), "no session has given this token") {
					t.Errorf("logged %s", r.log.String())
				}
			})
		})
	}
}

// A token binds a connection of its session's peer only.
func TestTokenOfAnotherNode(t *testing.T) {
	ca := transporttest.NewAuthority(t)
	hostile(t, func(c *Config) { *c = withLimits(member(ca, idB), c) }, func(r *rig) {
		r.member = member(ca, idA)
		c, s := r.session(ownHello)
		stolen := r.token(c)
		r.member = member(ca, transporttest.NodeID(3))
		if r.present(BulkALPN, stolen) || s.bulkCount() > 0 {
			t.Error("another node has used the token")
		}
	})
}

// withLimits returns c with the limits and the log of from.
func withLimits(c Config, from *Config) Config {
	c.MaxLanes, c.LaneWindow, c.SessionWindow, c.Log = from.MaxLanes, from.LaneWindow, from.SessionWindow, from.Log
	return c
}

// withBulk opens a session without TLS on bulk connections, one lane of it and one
// bulk connection, and returns the peer's ends and the provider's.
func (r *rig) withBulk() (first, more net.Conn, s *session) {
	r.Helper()
	return r.withBulkOf(ownHello)
}

// withBulkOf is withBulk of a peer that says own.
func (r *rig) withBulkOf(own hello) (first, more net.Conn, s *session) {
	r.Helper()
	own.plaintext = true
	first, s = r.session(own)
	r.write(first, data(1, 0, 1))
	at := r.token(first)
	more = r.dial("")
	r.write(more, at.appendTo(nil))
	r.frame(more)
	synctest.Wait()
	return first, more, s
}

// What is said on a bulk connection is checked like the rest.
func TestBulkThatBreaksTheProtocol(t *testing.T) {
	for name, c := range map[string]struct {
		say  []byte
		want string
	}{
		"another frame":          {header{kind: typeWant}.appendTo(nil), "type 9"},
		"an end":                 {header{kind: typeData, flags: flagFin, lane: 1, value: 1}.appendTo(nil), "flags 1"},
		"a lane that is not":     {data(lanes+1, 0, 1), "not open"},
		"more than its credit":   {data(1, minWindow, 1), "the credit ends"},
		"bytes that came before": {data(1, 0, 1), "twice"},
		"an enormous piece":      {header{kind: typeData, lane: 1, length: maxPiece + 1}.appendTo(nil), "header"},
	} {
		t.Run(name, func(t *testing.T) {
			hostile(t, func(c *Config) { c.Plaintext = true }, func(r *rig) {
				first, more, s := r.withBulk()
				r.write(more, c.say)
				if code, reason := r.closed(first); code != transport.CodeProtocol || !strings.Contains(reason, c.want) {
					t.Errorf("closed with %d, %q; want %q", code, reason, c.want)
				}
				<-s.Done()
			})
		})
	}
}

// What a peer says to have got of a bulk connection is checked.
func TestPositionsOfABulkConnection(t *testing.T) {
	for name, c := range map[string]struct {
		say  []header
		want string
	}{
		"ACK of what was not sent":  {[]header{{kind: typeAck, lane: 1, value: 1}}, "position 1"},
		"LOST of what was not sent": {[]header{{kind: typeLost, lane: 1, value: 1}}, "position 1"},
		"two last words":            {[]header{{kind: typeLost, lane: 1}, {kind: typeLost, lane: 1}}, "lost twice"},
	} {
		t.Run(name, func(t *testing.T) {
			hostile(t, func(c *Config) { c.Plaintext = true }, func(r *rig) {
				first, _, s := r.withBulk()
				var say []byte // in one record: nothing happens in between
				for _, h := range c.say {
					say = h.appendTo(say)
				}
				r.write(first, say)
				if code, reason := r.closed(first); code != transport.CodeProtocol || !strings.Contains(reason, c.want) {
					t.Errorf("closed with %d, %q; want %q", code, reason, c.want)
				}
				<-s.Done()
			})
		})
	}
}

// Connections that say nothing, or not enough, take a bounded number of places
// for a bounded time.
func TestSlowHandshakes(t *testing.T) {
	for name, c := range map[string]struct {
		plaintext bool
		say       string
	}{
		"nothing": {}, "half a record": {say: "\x16\x03\x01\x02\x00\x01"}, "nothing, plaintext": {plaintext: true},
		"half a token": {plaintext: true, say: magic + "abc"},
	} {
		t.Run(name, func(t *testing.T) {
			hostile(t, func(cfg *Config) { cfg.MaxHandshakes, cfg.Plaintext = 32, c.plaintext }, func(r *rig) {
				var slow []net.Conn
				for range 8 {
					conn := r.dial("")
					if c.say != "" {
						r.write(conn, []byte(c.say))
					}
					slow = append(slow, conn)
				}
				synctest.Wait()
				if _, err := r.dial("").Read(make([]byte, 1)); err == nil {
					t.Error("a handshake too many was not closed")
				}
				other, err := r.network.Dial(r.Context(), "10.0.0.9", addrB)
				if err != nil {
					t.Fatal(err)
				}
				defer other.Close()
				other.SetReadDeadline(time.Now().Add(time.Second))
				if _, err := other.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("another address was kept out: %v", err)
				}
				began := time.Now()
				for _, conn := range slow {
					if _, err := conn.Read(make([]byte, 1)); err == nil {
						t.Error("a slow handshake was not closed")
					}
				}
				if d := time.Since(began); d > 3*time.Second {
					t.Errorf("slow handshakes were closed after %v", d)
				}
				synctest.Wait()
				own := ownHello
				own.plaintext = c.plaintext
				r.session(own) // there is room again
			})
		})
	}
}

func TestRefusedPeersLearnWhy(t *testing.T) {
	fenced := func(tls.ConnectionState) (transport.Identity, error) {
		return transport.Identity{}, &transport.CloseError{Code: transport.CodeFenced, Reason: "life 7 was removed"}
	}
	for _, c := range []struct {
		name   string
		change func(ca, other *transporttest.Authority, dialer, accepter *Config)
		said   string // part of what the dialer says
		want   transport.CloseError
	}{
		{"the dialer is of another cluster", func(ca, other *transporttest.Authority, dialer, _ *Config) {
			strange := member(other, idA)
			own := dialer.ClientTLS
			dialer.ClientTLS = func() *tls.Config {
				c := own().Clone()
				c.Certificates = strange.ClientTLS().Certificates
				return c
			}
		}, "refused by peer", transport.CloseError{Remote: true, Code: transport.CodeWrongCluster}},
		{"the accepter is of another cluster", func(_, other *transporttest.Authority, _, accepter *Config) {
			*accepter = member(other, idB)
		}, "unknown authority", transport.CloseError{Code: transport.CodeWrongCluster}},
		{"the accepter refuses the dialer", func(_, _ *transporttest.Authority, _, accepter *Config) {
			accepter.Identify = fenced
		}, "life 7 was removed", transport.CloseError{Remote: true, Code: transport.CodeFenced}},
		{"the dialer refuses the accepter", func(_, _ *transporttest.Authority, dialer, _ *Config) {
			dialer.Identify = fenced
		}, "life 7 was removed", transport.CloseError{Code: transport.CodeFenced}},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				network := netsim.New(1)
				defer network.Close()
				ca, other := transporttest.NewAuthority(t), transporttest.NewAuthority(t)
				dialer, accepter := member(ca, idA), member(ca, idB)
				c.change(ca, other, &dialer, &accepter)
				a, b := start(t, network, addrA, dialer), start(t, network, addrB, accepter)
				defer b.Close()
				defer a.Close()
				_, err := a.Dial(t.Context(), b.Addr())
				var end *transport.CloseError
				if !errors.As(err, &end) || end.Remote != c.want.Remote || end.Code != c.want.Code || !strings.Contains(err.Error(), c.said) {
					t.Errorf("dial: %v (%#v), want %q and %#v", err, end, c.said, c.want)
				}
			})
		})
	}
}
