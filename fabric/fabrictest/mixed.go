package fabrictest

import (
	"errors"
	"net/netip"

	"github.com/fabricd/fabricd/internal/faults/inject"
	"github.com/fabricd/fabricd/internal/transport"
)

// mixed is QUIC and TCP at once, at one address of each node, as of fabricd.
// The dialing node decides: nodes with an odd ID prefer QUIC, the others TCP.
type mixed struct {
	packets *loopback
	streams *streams
}

func newMixed(o options) (*mixed, error) {
	packets, err := newLoopback()
	if err != nil {
		return nil, err
	}
	return &mixed{packets, newStreamsOf(packets.authority, o)}, nil
}

// portTries bounds how often a port that is free for TCP may be taken for UDP.
const portTries = 16

func (m *mixed) join(id transport.Identity, layer *inject.Layer) ([]transport.Provider, error) {
	var failed error
	for range portTries {
		overTCP, err := m.streams.open(id, layer)
		if err != nil {
			return nil, err
		}
		at, err := netip.ParseAddrPort(overTCP.Addr())
		if err != nil {
			return nil, errors.Join(err, overTCP.Close())
		}
		overQUIC, err := m.packets.open(id, layer, int(at.Port()))
		if err != nil {
			failed = errors.Join(err, overTCP.Close())
			continue
		}
		if id.Node[15]%2 == 1 {
			return []transport.Provider{overQUIC, overTCP}, nil
		}
		return []transport.Provider{overTCP, overQUIC}, nil
	}
	return nil, failed
}

func (m *mixed) crash(id transport.Identity) { m.packets.crash(id); m.streams.crash(id) }

func (m *mixed) cut(a, b transport.Identity) { m.packets.cut(a, b); m.streams.cut(a, b) }

func (m *mixed) mend(a, b transport.Identity) { m.packets.mend(a, b); m.streams.mend(a, b) }

func (m *mixed) close() error { return errors.Join(m.packets.close(), m.streams.close()) }
