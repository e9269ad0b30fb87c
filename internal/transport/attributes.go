package transport

import "time"

// Attributes say what a provider can do and what it costs, so that a node can
// choose between several. They hold for all of a provider's sessions and do not
// change. The figures are for a peer on a fast network: medians of nine runs of the
// providers' BenchmarkCosts, in turns, over the loopback interface of a machine
// with two processors that had other work to do. They rank providers, and promise
// nothing.
type Attributes struct {
	// Encrypted: nobody on the way can read or change a byte of any lane.
	Encrypted bool `json:"encrypted"`
	// Bulk: large writes have connections of their own, so that what is small
	// does not wait behind them.
	Bulk bool `json:"bulk"`
	// Datagrams pass what waits on lanes. Without, they arrive as lanes do.
	Datagrams bool `json:"datagrams"`
	// Failover: one connection of several that is cut costs no byte of a large
	// write.
	Failover bool `json:"failover"`

	// Latency is from a short Write to its Read; 0: there are no figures.
	Latency time.Duration `json:"latency_ns"`
	// Bandwidth is of one lane that is written without a pause, in bytes per
	// second.
	Bandwidth int64 `json:"bandwidth_per_second"`
}

// An Attributed is a Provider that knows its attributes.
type Attributed interface{ Attributes() Attributes }

// AttributesOf returns the attributes of p, the zero value if it tells none.
func AttributesOf(p Provider) Attributes {
	if a, ok := p.(Attributed); ok {
		return a.Attributes()
	}
	return Attributes{}
}

// Cost estimates how long n bytes take from the first of them at the writer to
// the last of them at the reader; 0 without figures.
func (a Attributes) Cost(n int) time.Duration {
	if a.Latency <= 0 || a.Bandwidth <= 0 {
		return 0
	}
	return a.Latency + time.Duration(float64(n)/float64(a.Bandwidth)*float64(time.Second))
}
