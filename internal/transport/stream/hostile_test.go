package stream

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
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

	"github.com/fabricd/fabricd/internal/test/bubble"
	"github.com/fabricd/fabricd/internal/test/netsim"
	"github.com/fabricd/fabricd/internal/test/testca"
	"github.com/fabricd/fabricd/internal/transport"
)

// A rig is a provider and the credentials of a member that violates the protocol.
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
		ca := testca.New()
		r.member = member(ca, idA)
		cfg := member(ca, idB)
		cfg.MaxStreams, cfg.StreamWindow, cfg.SessionWindow = streams, minWindow, 2*minWindow
		cfg.Log = zerolog.New(&r.log)
		change(&cfg)
		r.p = start(t, r.network, addrB, cfg)
		f(r)
		r.p.Close()
		r.network.Close()
	})
}

// dial opens a connection to the provider, with TLS if secure.
func (r *rig) dial(secure bool) net.Conn {
	r.Helper()
	c, err := r.network.Dial(r.Context(), "10.0.0.1", addrB)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { c.Close() })
	if !secure {
		return c
	}
	cfg, err := r.member.tls().ClientConfig()
	if err != nil {
		r.Fatal(err)
	}
	conn := tls.Client(c, cfg)
	if err := conn.Handshake(); err != nil {
		r.Fatal(err)
	}
	return conn
}

var ownHello = hello{from: version, to: version, streams: streams}

// session opens a session with its control stream and returns both ends.
func (r *rig) session(own hello) (net.Conn, *session) {
	r.Helper()
	c := r.dial(true)
	r.write(c, own.appendTo(nil))
	if kind, _, err := readFrame(c, make([]byte, maxBody)); err != nil || kind != typeHello {
		r.Fatalf("type %d instead of HELLO, %v", kind, err)
	}
	if own.plaintext {
		c = c.(*tls.Conn).NetConn()
	}
	r.write(c, muxFrame(muxWindow, muxSYN, controlID, 0))
	s, err := r.p.Accept(r.Context())
	if err != nil {
		r.Fatal(err)
	}
	return c, s.(*session)
}

func (r *rig) write(c net.Conn, p []byte) {
	r.Helper()
	if _, err := c.Write(p); err != nil {
		r.Fatal(err)
	}
}

// muxFrame is a frame header of yamux with a length, whatever follows.
func muxFrame(kind byte, flags uint16, id, length uint32) []byte {
	b := binary.BigEndian.AppendUint16([]byte{0, kind}, flags)
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(b, id), length)
}

// muxBytes is one with bytes of a stream.
func muxBytes(flags uint16, id uint32, p []byte) []byte {
	return append(muxFrame(muxData, flags, id, uint32(len(p))), p...)
}

// over waits until s is over, and reads its last bytes on c.
func (r *rig) over(c net.Conn, s *session) {
	r.Helper()
	c.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
		r.Error("the connection is still open")
	}
	<-s.Done()
}

// TestPeersThatBreakTheProtocol: their session ends, and no other.
func TestPeersThatBreakTheProtocol(t *testing.T) {
	control := func(p []byte) []byte { return muxBytes(0, controlID, p) }
	number := func(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }
	var many, whole []byte
	for id := uint32(3); id <= 3+2*streams; id += 2 {
		many = append(many, muxFrame(muxWindow, muxSYN, id, 0)...)
	}
	for range 5 {
		whole = append(whole, muxBytes(0, 3, make([]byte, 60000))...)
	}
	for name, c := range map[string]struct {
		say  []byte
		want string // part of the reason
	}{
		"garbage":                    {[]byte("GET / HTTP/1.1\r\n"), "version"},
		"an unknown type":            {muxFrame(9, 0, 3, 0), "type"},
		"too many streams":           {many, "more than 16 streams"},
		"a stream of ours":           {muxFrame(muxWindow, muxSYN, 2, 0), "clients"},
		"a stream twice":             {append(muxFrame(muxWindow, muxSYN, 3, 0), muxFrame(muxWindow, muxSYN, 3, 0)...), "duplicate"},
		"an enormous frame":          {append(muxFrame(muxWindow, muxSYN, 3, 0), muxFrame(muxData, 0, 3, 1<<31)...), "window exceeded"},
		"more than its window":       {append(muxFrame(muxWindow, muxSYN, 3, 0), whole...), "window exceeded"},
		"a go away":                  {muxFrame(3, 0, 0, 1), "go away"},
		"control: an unknown type":   {control([]byte{99, 0, 0}), "malformed"},
		"control: a second hello":    {control(ownHello.appendTo(nil)), "type 1"},
		"control: a long datagram":   {control([]byte{typeDatagram, 0xff, 0xff}), "malformed"},
		"control: streams of nobody": {control(appendFrame(nil, typeOver, number(1))), "streams are over"},
		"control: its end":           {muxFrame(muxWindow, 4, controlID, 0), "reset"},
		"control: its reset":         {muxFrame(muxWindow, 8, controlID, 0), "reset"},
		"control: a negative count":  {control(appendFrame(nil, typeOver, number(1<<63))), "streams are over"},
	} {
		t.Run(name, func(t *testing.T) {
			hostile(t, func(*Config) {}, func(r *rig) {
				conn, s := r.session(ownHello)
				_, honest := r.session(ownHello)
				_, _ = conn.Write(c.say) // it may be reset by then
				r.over(conn, s)
				if end := s.Err().Error(); !strings.Contains(end, c.want) {
					t.Errorf("ended with %q, want %q in it", end, c.want)
				}
				if honest.Err() != nil {
					t.Errorf("another session ended: %v", honest.Err())
				}
			})
		})
	}
}

// TestStreamsOfNobodyComeAndGo: streams that are opened and dropped at once, more than
// there may be, leave nothing.
func TestStreamsOfNobodyComeAndGo(t *testing.T) {
	hostile(t, func(*Config) {}, func(r *rig) {
		c, s := r.session(ownHello)
		go io.Copy(io.Discard, c)
		for id := uint32(3); id < 3+2*1000; id += 2 {
			r.write(c, append(muxBytes(muxSYN, id, []byte("x")), muxFrame(muxWindow, 8, id, 0)...))
			l, err := s.AcceptStream(r.Context())
			if err != nil {
				r.Fatal(err)
			}
			l.Cancel()
		}
		synctest.Wait()
		s.conn.mu.Lock()
		defer s.conn.mu.Unlock()
		if s.Err() != nil || len(s.conn.streams) != 0 || s.conn.unread != 0 || s.mux.NumStreams() != 1 {
			r.Errorf("%d streams with %d bytes, %d streams: %v", len(s.conn.streams), s.conn.unread, s.mux.NumStreams(), s.Err())
		}
	})
}

// TestWhatNobodyReadsIsBounded: a peer fills all its streams with as small frames as it
// can, and no more is read than the session may hold.
func TestWhatNobodyReadsIsBounded(t *testing.T) {
	hostile(t, func(*Config) {}, func(r *rig) {
		c, s := r.session(ownHello)
		go io.Copy(io.Discard, c)
		go func() { // ends with the session
			for id := uint32(3); id < 3+2*streams; id += 2 {
				all := muxFrame(muxWindow, muxSYN, id, 0)
				for range 2000 {
					all = append(all, muxBytes(0, id, []byte("x"))...)
				}
				if _, err := c.Write(all); err != nil {
					return
				}
			}
		}()
		time.Sleep(time.Minute)
		s.conn.mu.Lock()
		unread := s.conn.unread
		s.conn.mu.Unlock()
		if most := 2*minWindow + 16<<10/(muxHeader+1)*(frameCost+1); unread > most || unread < minWindow {
			t.Errorf("%d bytes are kept, want %d at most", unread, most)
		}
		s.Close(transport.CodeOK, "")
	})
}

// TestPeersThatDoNotRead: frames to them wait in bounded memory, and the end of their session does
// not wait for them.
func TestPeersThatDoNotRead(t *testing.T) {
	hostile(t, func(*Config) {}, func(r *rig) {
		c, s := r.session(ownHello)
		for range 20_000 { // pings, which are answered
			r.write(c, muxFrame(2, muxSYN, 0, 7))
		}
		for range 20_000 {
			if err := s.SendDatagram(make([]byte, transport.MaxDatagram)); err != nil {
				r.Fatal(err)
			}
		}
		l, err := s.OpenStream(r.Context())
		if err != nil {
			r.Fatal(err)
		}
		l.SetWriteDeadline(time.Now().Add(time.Second))
		if n, err := l.Write(make([]byte, 64<<20)); !errors.Is(err, os.ErrDeadlineExceeded) || n > 8<<20 {
			t.Errorf("wrote %d bytes, %v", n, err)
		}
		l.Cancel()
		began := time.Now()
		s.Close(transport.CodeOK, "")
		r.p.Close()
		if d := time.Since(began); d > time.Second {
			t.Errorf("the end took %v", d)
		}
	})
}

// Connections that say nothing, or not enough, take a bounded number of places
// for a bounded time.
func TestSlowHandshakes(t *testing.T) {
	for name, c := range map[string]struct {
		plaintext bool
		say       string
	}{
		"nothing": {}, "half a record": {say: "\x16\x03\x01\x02\x00\x01"}, "nothing, plaintext": {plaintext: true},
	} {
		t.Run(name, func(t *testing.T) {
			hostile(t, func(cfg *Config) { cfg.MaxHandshakes, cfg.Plaintext = 32, c.plaintext }, func(r *rig) {
				var slow []net.Conn
				for range 8 {
					conn := r.dial(false)
					if c.say != "" {
						r.write(conn, []byte(c.say))
					}
					slow = append(slow, conn)
				}
				synctest.Wait()
				if _, err := r.dial(false).Read(make([]byte, 1)); err == nil {
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
		return transport.Identity{}, &transport.CloseError{Code: transport.CodeFenced, Reason: "incarnation 7 was removed"}
	}
	for _, c := range []struct {
		name   string
		change func(ca, other *testca.Authority, dialer, accepter *Config)
		said   string // part of the dialer's error
		want   transport.CloseError
	}{
		{"the dialer is of another cluster", func(ca, other *testca.Authority, dialer, _ *Config) {
			strange := member(other, idA)
			own := dialer.ClientTLS
			dialer.ClientTLS = func() *tls.Config {
				c := own().Clone()
				c.Certificates = strange.ClientTLS().Certificates
				return c
			}
		}, "refused by peer", transport.CloseError{Remote: true, Code: transport.CodeWrongCluster}},
		{"the accepter is of another cluster", func(_, other *testca.Authority, _, accepter *Config) {
			*accepter = member(other, idB)
		}, "unknown authority", transport.CloseError{Code: transport.CodeWrongCluster}},
		{"the accepter refuses the dialer", func(_, _ *testca.Authority, _, accepter *Config) {
			accepter.Identify = fenced
		}, "incarnation 7 was removed", transport.CloseError{Remote: true, Code: transport.CodeFenced}},
		{"the dialer refuses the accepter", func(_, _ *testca.Authority, dialer, _ *Config) {
			dialer.Identify = fenced
		}, "incarnation 7 was removed", transport.CloseError{Code: transport.CodeFenced}},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				network := netsim.New(1)
				defer network.Close()
				ca, other := testca.New(), testca.New()
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
