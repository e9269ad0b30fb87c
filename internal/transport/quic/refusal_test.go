package quic

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	quicgo "github.com/quic-go/quic-go"
	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/internal/test/bubble"
	"github.com/fabricd/fabricd/internal/test/netsim"
	"github.com/fabricd/fabricd/internal/test/testca"
	"github.com/fabricd/fabricd/internal/transport"
)

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

func TestRefusedPeersLearnWhy(t *testing.T) {
	refusing := func(tls.ConnectionState) (transport.Identity, error) {
		return transport.Identity{}, errors.New("incarnation 7 was removed")
	}
	fenced := func(tls.ConnectionState) (transport.Identity, error) {
		return transport.Identity{}, &transport.CloseError{Code: transport.CodeFenced, Reason: "incarnation 7 was removed"}
	}
	for _, c := range []struct {
		name           string
		change         func(ca, other *testca.Authority, dialer, accepter *Config)
		dialer, logged string // parts of each side's error or log
		want           transport.CloseError
	}{
		{
			"the dialer is of another cluster",
			func(ca, other *testca.Authority, dialer, _ *Config) {
				dialer.ClientTLS = mixed(config(ca, other.Issue(idA, testca.Forever)), *dialer)
			},
			"unknown certificate authority", "unknown authority",
			transport.CloseError{Remote: true, Code: transport.CodeWrongCluster},
		},
		{
			"the accepter is of another cluster",
			func(_, other *testca.Authority, _, accepter *Config) {
				*accepter = member(other, idB)
			},
			"unknown authority", "refused by peer",
			transport.CloseError{Code: transport.CodeProtocol},
		},
		{
			"the dialer's certificate has expired",
			func(ca, _ *testca.Authority, dialer, _ *Config) {
				dialer.ClientTLS = mixed(config(ca, ca.Issue(idA, testca.Epoch.Add(-time.Hour))), *dialer)
			},
			"expired certificate", "expired",
			transport.CloseError{Remote: true, Code: transport.CodeProtocol},
		},
		{
			"the dialer has no certificate",
			func(ca, _ *testca.Authority, dialer, _ *Config) {
				dialer.ClientTLS = mixed(config(ca, tls.Certificate{}), *dialer)
			},
			"certificate required", "didn't provide a certificate",
			transport.CloseError{Remote: true, Code: transport.CodeProtocol},
		},
		{
			"the accepter refuses the identity",
			func(_, _ *testca.Authority, _, accepter *Config) { accepter.Identify = refusing },
			"incarnation 7 was removed", "incarnation 7 was removed",
			transport.CloseError{Remote: true, Code: transport.CodeWrongCluster},
		},
		{
			"the dialer refuses the identity",
			func(_, _ *testca.Authority, dialer, _ *Config) { dialer.Identify = fenced },
			"incarnation 7 was removed", "incarnation 7 was removed",
			transport.CloseError{Code: transport.CodeFenced},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				ca, other := testca.New(), testca.New()
				dialer, accepter := member(ca, idA), member(ca, idB)
				c.change(ca, other, &dialer, &accepter)
				var log logBuffer
				accepter.Log = zerolog.New(&log)
				net := netsim.New(1)
				a, b := start(t, net, addrA, dialer), start(t, net, addrB, accepter)

				_, err := a.Dial(t.Context(), addrB)
				var got *transport.CloseError
				if !errors.As(err, &got) || got.Code != c.want.Code || got.Remote != c.want.Remote {
					t.Errorf("dialer got %#v (%v), want like %#v", got, err, c.want)
				}
				if err == nil || !strings.Contains(err.Error(), c.dialer) {
					t.Errorf("dialer's error %q does not say %q", err, c.dialer)
				}
				synctest.Wait()
				if !strings.Contains(log.String(), c.logged) {
					t.Errorf("accepter's log %q does not say %q", log.String(), c.logged)
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				if s, err := b.Accept(ctx); err == nil {
					t.Errorf("a refused session was accepted: %v", s.Peer())
				}
			})
		})
	}
}

// mixed returns own's client configuration without looking at the server.
func mixed(own, trusting Config) func() *tls.Config {
	verify := trusting.ClientTLS().VerifyConnection
	return func() *tls.Config {
		t := own.ClientTLS()
		t.VerifyConnection = verify
		return t
	}
}

// rawDial opens a QUIC connection to B with a good certificate, without the
// provider's confirmation.
func rawDial(t *testing.T, net *netsim.Network, cfg Config) *quicgo.Conn {
	t.Helper()
	socket, err := net.ListenPacket(addrA)
	if err != nil {
		t.Fatal(err)
	}
	client := &quicgo.Transport{Conn: socket}
	cfg, err = cfg.withDefaultsForTest()
	if err != nil {
		t.Fatal(err)
	}
	tlsConfig, err := cfg.tls(nil).ClientConfig()
	if err != nil {
		t.Fatal(err)
	}
	to, err := resolve(t.Context(), addrB)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := client.Dial(t.Context(), to, tlsConfig, cfg.quicConfig())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.CloseWithError(0, "")
		client.Close()
		socket.Close()
	})
	return conn
}

// withDefaultsForTest is withDefaults for a client without a provider.
func (c Config) withDefaultsForTest() (Config, error) {
	c.Address = addrA
	return c.withDefaults()
}

func TestPeerThatDoesNotConfirmIsDropped(t *testing.T) {
	for _, c := range []struct {
		name, says string
		send       []byte
		after      time.Duration
	}{
		{"silent", "handshake too slow", nil, 2 * time.Second},
		{"wrong byte", "confirmation", []byte{9}, 0},
		{"too long", "confirmation", []byte{1, 1, 1}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				ca := testca.New()
				cfg := member(ca, idA)
				net := netsim.New(1)
				b := start(t, net, addrB, member(ca, idB))
				conn := rawDial(t, net, cfg)
				began := time.Now()
				if c.send != nil {
					stream, err := conn.OpenUniStream()
					if err != nil {
						t.Fatal(err)
					}
					stream.Write(c.send)
					stream.Close()
				}
				<-conn.Context().Done()
				got := closeError(context.Cause(conn.Context()))
				if !got.Remote || got.Code != transport.CodeProtocol || !strings.Contains(got.Reason, c.says) {
					t.Errorf("dropped with %#v, want CodeProtocol and %q", got, c.says)
				}
				if d := time.Since(began); d > c.after+50*time.Millisecond {
					t.Errorf("dropped after %v, want %v", d, c.after)
				}
				synctest.Wait()
				if n, _ := b.incoming.Taken(); n != 0 {
					t.Errorf("%d places are still taken", n)
				}
			})
		})
	}
}

func TestFewHandshakesAtOnceStillServeAStorm(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ca := testca.New()
		cfgB := member(ca, idB)
		cfgB.MaxHandshakes = 16 // address checks from the fourth on
		net := netsim.New(1)
		net.SetDefaultRules(netsim.Rules{Delay: time.Millisecond})
		a := start(t, net, addrA, member(ca, idA))
		b := start(t, net, addrB, cfgB)
		const count = 24
		var all sync.WaitGroup
		for range count {
			all.Go(func() {
				if _, err := a.Dial(t.Context(), addrB); err != nil {
					t.Errorf("dial: %v", err)
				}
			})
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for range count {
			if _, err := b.Accept(ctx); err != nil {
				t.Fatal(err)
			}
			if n, _ := b.incoming.Taken(); n > 16 {
				t.Errorf("%d handshakes under way, want at most 16", n)
			}
		}
		all.Wait()
	})
}

func TestSessionsThatNobodyAcceptsAreBounded(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ca := testca.New()
		cfgB := member(ca, idB)
		cfgB.MaxHandshakes = 3
		net := netsim.New(1)
		a := start(t, net, addrA, member(ca, idA))
		start(t, net, addrB, cfgB)
		for i := range 3 {
			if _, err := a.Dial(t.Context(), addrB); err != nil {
				t.Fatalf("dial %d: %v", i, err)
			}
		}
		_, err := a.Dial(t.Context(), addrB)
		var why *transport.CloseError
		if !errors.As(err, &why) && !errors.Is(err, ErrRefused) {
			t.Errorf("dial beyond the bound: %v, want a refusal", err)
		}
	})
}

func TestConfigIsChecked(t *testing.T) {
	ca := testca.New()
	good := member(ca, idA)
	for name, change := range map[string]func(*Config){
		"no socket":        func(c *Config) {},
		"bad address":      func(c *Config) { c.Address = "nonsense" },
		"no server TLS":    func(c *Config) { c.Address = "127.0.0.1:0"; c.ServerTLS = nil },
		"no client TLS":    func(c *Config) { c.Address = "127.0.0.1:0"; c.ClientTLS = nil },
		"no identify":      func(c *Config) { c.Address = "127.0.0.1:0"; c.Identify = nil },
		"negative timeout": func(c *Config) { c.Address = "127.0.0.1:0"; c.IdleTimeout = -1 },
		"negative streams": func(c *Config) { c.Address = "127.0.0.1:0"; c.MaxStreams = -1 },
	} {
		cfg := good
		change(&cfg)
		if p, err := New(cfg); err == nil {
			t.Errorf("%s: accepted", name)
			p.Close()
		}
	}
}

func TestUnverifiedTLSIsRefused(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ca := testca.New()
		careless := member(ca, idA)
		careless.ClientTLS = func() *tls.Config { return &tls.Config{InsecureSkipVerify: true} }
		open := member(ca, idB)
		strict := open.ServerTLS
		open.ServerTLS = func() *tls.Config {
			c := strict()
			c.ClientAuth = tls.NoClientCert
			return c
		}
		net := netsim.New(1)
		a := start(t, net, addrA, careless)
		b := start(t, net, addrB, open)
		if _, err := a.Dial(t.Context(), addrB); err == nil || !strings.Contains(err.Error(), "does not verify") {
			t.Errorf("dial without verification: %v", err)
		}
		if _, err := b.Dial(t.Context(), addrB); err == nil {
			t.Error("a server that asks for no certificate accepted a session")
		}
	})
}
