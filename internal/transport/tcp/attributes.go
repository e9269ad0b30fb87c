package tcp

import (
	"time"

	"github.com/fabricd/fabricd/internal/transport"
)

// Attributes implements transport.Attributed. With Plaintext what is estimated is
// between two nodes that both allow it, and what is promised is what holds without
// knowing the peer.
func (p *Provider) Attributes() transport.Attributes {
	a := transport.Attributes{
		Encrypted: !p.cfg.Plaintext,
		Bulk:      p.cfg.MaxBulk > 0,
		Failover:  p.cfg.MaxBulk > 0,
		Latency:   7 * time.Microsecond, // half a round trip of 64 bytes, with TLS
		Bandwidth: 700 << 20,
	}
	if p.cfg.Plaintext {
		a.Bandwidth = 1900 << 20
	}
	return a
}
