package quic

import (
	"crypto/tls"
	"os"
	"testing"
	"time"

	"github.com/fabricd/fabricd/internal/test/netsim"
	"github.com/fabricd/fabricd/internal/test/testca"
	"github.com/fabricd/fabricd/internal/test/transporttest"
	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/transport/network"
)

func TestMain(m *testing.M) {
	// quic-go logs the text of BufferWarning to the standard log.
	os.Setenv("QUIC_GO_DISABLE_RECEIVE_BUFFER_WARNING", "1")
	os.Exit(m.Run())
}

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
func start(t testing.TB, net *netsim.Network, address string, cfg Config) *Provider {
	t.Helper()
	conn, err := net.ListenPacket(address)
	if err != nil {
		t.Fatal(err)
	}
	cfg.PacketConn = conn
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// simulated returns two providers over net.
func simulated(t testing.TB, net *netsim.Network) (a, b *Provider) {
	ca := testca.New()
	cfgA, cfgB := member(ca, idA), member(ca, idB)
	cfgA.MaxStreams, cfgB.MaxStreams = streams, streams
	return start(t, net, addrA, cfgA), start(t, net, addrB, cfgB)
}

func conformance(t *testing.T, rules netsim.Rules) {
	transporttest.Run(t, func(t *testing.T) transporttest.Pair {
		net := netsim.New(1)
		net.SetDefaultRules(rules)
		a, b := simulated(t, net)
		return transporttest.Pair{A: a, B: b, IDA: idA, IDB: idB, MaxStreams: streams, Nowhere: nowhere}
	})
}

func TestConformance(t *testing.T) {
	conformance(t, netsim.Rules{Delay: 100 * time.Microsecond})
}

func TestConformanceOnSockets(t *testing.T) {
	transporttest.RunOnSockets(t, func(t *testing.T) transporttest.Pair {
		ca := testca.New()
		a := listen(t, member(ca, idA))
		b := listen(t, member(ca, idB))
		return transporttest.Pair{A: a, B: b, IDA: idA, IDB: idB, MaxStreams: streams, Nowhere: transporttest.DeadAddress(t)}
	})
}

// listen starts a provider on a socket of the loopback interface.
func listen(t testing.TB, cfg Config) *Provider {
	t.Helper()
	cfg.Address = "127.0.0.1:0"
	cfg.MaxStreams = streams
	cfg.HandshakeTimeout = 5 * time.Second // 64 of them at once take more than one on a machine that others keep busy
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p
}
