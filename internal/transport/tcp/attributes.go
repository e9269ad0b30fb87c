package tcp

import (
	"time"

	"github.com/fabricd/fabricd/internal/transport"
)

// Attributes implements transport.Attributed.
func (p *Provider) Attributes() transport.Attributes {
	a := transport.Attributes{
		Encrypted: !p.cfg.Plaintext,
		Bulk:      p.cfg.MaxBulk > 0,
		Failover:  p.cfg.MaxBulk > 0,
		Latency:   11300 * time.Nanosecond, // 11.2 to 11.4 µs, with TLS and without: half a round trip of 64 bytes
		Bandwidth: 630 << 20,               // 347 to 737 MiB/s
	}
	if p.cfg.Plaintext {
		a.Bandwidth = 1390 << 20 // 1036 to 1547 MiB/s
	}
	return a
}
