package stream

import "github.com/fabricd/fabricd/internal/transport"

// Attributes implements transport.Attributed.
func (p *Provider) Attributes() transport.Attributes {
	return transport.Attributes{Encrypted: !p.cfg.Plaintext}
}
