package stream

import (
	"context"
	"crypto/tls"
	"net"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/fabricd/fabricd/internal/test/netsim"
	"github.com/fabricd/fabricd/internal/test/testca"
	"github.com/fabricd/fabricd/internal/test/transporttest"
	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/transport/network"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	addrA   = "10.0.0.1:7000"
	addrB   = "10.0.0.2:7000"
	nowhere = "10.0.0.3:7000"
	streams = 16
)

var idA, idB = transporttest.NodeID(1), transporttest.NodeID(2)

// config returns the configuration of a node that has cert and trusts ca.
func config(ca *testca.Authority, cert tls.Certificate) Config {
	base := ca.TLS(cert)
	return Config{Config: network.Config{ServerTLS: base, ClientTLS: base, Identify: testca.Identify}}
}

// member returns the configuration of a node with a certificate of ca.
func member(ca *testca.Authority, id transport.Identity) Config {
	return config(ca, ca.Issue(id, testca.Forever))
}

// start starts a provider with cfg at address of net.
func start(t testing.TB, network *netsim.Network, address string, cfg Config) *Provider {
	t.Helper()
	return startWith(t, network, address, cfg, func(*Config) {})
}

// startWith is start, with cfg's ways to listen and dial modified by change.
func startWith(t testing.TB, network *netsim.Network, address string, cfg Config, change func(*Config)) *Provider {
	t.Helper()
	l, err := network.Listen(address)
	if err != nil {
		t.Fatal(err)
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Listener = l
	cfg.Dial = func(ctx context.Context, to string) (net.Conn, error) { return network.Dial(ctx, host, to) }
	change(&cfg)
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// simulated returns two providers over network.
func simulated(t testing.TB, network *netsim.Network, change func(*Config)) (a, b *Provider) {
	ca := testca.New()
	cfgA, cfgB := member(ca, idA), member(ca, idB)
	for _, cfg := range []*Config{&cfgA, &cfgB} {
		cfg.MaxStreams = streams
		change(cfg)
	}
	return start(t, network, addrA, cfgA), start(t, network, addrB, cfgB)
}

// variants are the settings under which a provider keeps the contract.
var variants = map[string]func(*Config){
	"tls":       func(*Config) {},
	"plaintext": func(c *Config) { c.Plaintext = true },
	"small windows": func(c *Config) {
		c.StreamWindow, c.SessionWindow = minWindow, 2*minWindow
	},
}

func TestConformance(t *testing.T) {
	for name, change := range variants {
		t.Run(name, func(t *testing.T) {
			transporttest.Run(t, func(t *testing.T) transporttest.Pair {
				network := netsim.New(1)
				t.Cleanup(func() { network.Close() })
				network.SetDefaultRules(netsim.Rules{Delay: 100 * time.Microsecond})
				a, b := simulated(t, network, change)
				return transporttest.Pair{A: a, B: b, IDA: idA, IDB: idB, MaxStreams: streams, Nowhere: nowhere}
			})
		})
	}
}

func TestConformanceOnSockets(t *testing.T) {
	for name, change := range variants {
		t.Run(name, func(t *testing.T) {
			transporttest.RunOnSockets(t, func(t *testing.T) transporttest.Pair {
				a, b := onSockets(t, change)
				return transporttest.Pair{A: a, B: b, IDA: idA, IDB: idB, MaxStreams: streams, Nowhere: transporttest.DeadAddress(t)}
			})
		})
	}
}

// onSockets returns two providers on the loopback interface.
func onSockets(t testing.TB, change func(*Config)) (a, b *Provider) {
	t.Helper()
	ca := testca.New()
	open := func(id transport.Identity) *Provider {
		cfg := member(ca, id)
		cfg.Address = "127.0.0.1:0"
		cfg.MaxStreams = streams
		cfg.HandshakeTimeout = 10 * time.Second // 64 of them at once, on a machine that others keep busy
		change(&cfg)
		p, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Close() })
		return p
	}
	return open(idA), open(idB)
}
