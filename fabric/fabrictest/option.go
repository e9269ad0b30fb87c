package fabrictest

import (
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/internal/engine"
	"github.com/fabricd/fabricd/internal/faults/failpoint"
	"github.com/fabricd/fabricd/internal/transport"
)

// An Option changes how NewCluster builds a cluster.
type Option func(*options)

type options struct {
	quic           bool
	tcp, plaintext bool
	unbroken       bool
	paths          bool
	delay, jitter  time.Duration
	seed           uint64
	faultSeed      uint64
	connectTimeout time.Duration
	log            zerolog.Logger
	labels         map[int][]string // by node
}

// QUIC makes the nodes talk QUIC over UDP sockets on the loopback interface,
// with certificates of a CA of their own. It does not work in a bubble.
func QUIC() Option { return func(o *options) { o.quic = true } }

// TCP makes the nodes talk TCP with TLS on the loopback interface, with
// certificates of a CA of their own. It does not work in a bubble.
func TCP() Option { return func(o *options) { o.tcp = true } }

// TCPPlaintext is [TCP] without TLS after the ends have authenticated each other.
func TCPPlaintext() Option { return func(o *options) { o.tcp, o.plaintext = true, true } }

// Mixed makes the nodes talk QUIC and TCP at once: links that a node with an odd ID
// dials are QUIC's, those of the others TCP's. It does not work in a bubble.
func Mixed() Option { return func(o *options) { o.quic, o.tcp = true, true } }

// Unbroken makes nodes that nothing can break: no layer stands between an engine and its
// sockets, as with a fabricd without --enable-faults, and a reader of a small operation
// applies it. Node faults are refused; Partition, and faults of links, fail the test. Every
// node is notified of a Kill before it happens, so that nothing has to be held back for it.
// With the race detector, packets of QUIC still pass a lock that the detector sees.
func Unbroken() Option { return func(o *options) { o.unbroken = true } }

// Paths lets connections of attached applications get paths: sockets on loopback, which
// nothing breaks. It has no effect on the nodes' own applications, and does not work in a
// bubble.
func Paths() Option { return func(o *options) { o.paths = true } }

// Delay makes all traffic take d to arrive, and up to jitter longer, drawn from
// seed. It fails the test of an Unbroken cluster, whose links nothing delays.
func Delay(d, jitter time.Duration, seed uint64) Option {
	return func(o *options) { o.delay, o.jitter, o.seed = d, jitter, seed }
}

// Seed seeds the random decisions of the faults of links: the same seed gives the
// n-th packet of a link the same decision in every run. Without it the seed is 1.
func Seed(seed uint64) Option { return func(o *options) { o.faultSeed = seed } }

// ConnectTimeout is how long a connect waits to be accepted; 10 s without it.
func ConnectTimeout(d time.Duration) Option { return func(o *options) { o.connectTimeout = d } }

// Labels gives node i labels, as a cluster's host does: for [fabric.Allow] and
// [fabric.Peer].
func Labels(i int, labels ...string) Option {
	return func(o *options) {
		if o.labels == nil {
			o.labels = make(map[int][]string)
		}
		o.labels[i] = labels
	}
}

// Log makes the engines log to l, with the address of a node's links in the field "node": with the
// network in memory "node-" and the ID in hexadecimal.
func Log(l zerolog.Logger) Option { return func(o *options) { o.log = l } }

func (o options) delays() bool { return o.delay != 0 || o.jitter != 0 }

func (o options) engine(all []transport.Provider, faults *failpoint.Node) engine.Config {
	if o.unbroken {
		faults = nil
	}
	return engine.Config{
		Providers:      all,
		Log:            o.log.With().Str("node", all[0].Addr()).Logger(),
		ConnectTimeout: o.connectTimeout,
		Faults:         faults,
	}
}
