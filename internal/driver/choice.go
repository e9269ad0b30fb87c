package driver

import (
	"fmt"
	"slices"
	"strings"

	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/transport"
)

// Considered is what became of one provider when a link was established.
type Considered struct {
	Provider string `json:"provider"`
	Chosen   bool   `json:"chosen"`
	Reason   string `json:"reason"`
}

// A choice is made between the providers of this node, the preferred one first,
// when it dials a peer.
type choice []Considered

// Reasons of a choice.
const (
	reasonFirst      = "the first of this node's that the peer offers"
	reasonFallback   = "the ones before did not work"
	reasonNotOffered = "the peer does not offer it"
	reasonNotNeeded  = "not needed"
)

func newChoice(providers []transport.Provider, peer Peer) *choice {
	c := make(choice, len(providers))
	for i, p := range providers {
		c[i] = Considered{Provider: p.Name(), Reason: reasonNotNeeded}
		if len(peer.Providers) > 0 && !slices.Contains(peer.Providers, p.Name()) {
			c[i].Reason = reasonNotOffered
		}
	}
	return &c
}

// offered reports whether the peer offers the i-th provider, as far as is known.
func (c *choice) offered(i int) bool { return (*c)[i].Reason != reasonNotOffered }

// dialable returns the error of a choice between nothing.
func (c *choice) dialable(peer Peer) error {
	var own []string
	for _, p := range *c {
		own = append(own, p.Provider)
	}
	if len(own) > 0 && !slices.ContainsFunc(*c, func(p Considered) bool { return p.Reason != reasonNotOffered }) {
		return fmt.Errorf("%w: no provider in common: %s here, %s there", status.NoDevice,
			strings.Join(own, ", "), strings.Join(peer.Providers, ", "))
	}
	return fmt.Errorf("%w: no address is known", status.NoDevice)
}

// failed says why the i-th provider did not reach the peer.
func (c *choice) failed(i int, err error) { (*c)[i].Reason = err.Error() }

// chose returns the choice with the provider that did.
func (c *choice) chose(provider string) []Considered {
	out := slices.Clone(*c)
	reason := reasonFirst
	for i := range out {
		if out[i].Provider == provider {
			out[i].Chosen, out[i].Reason = true, reason
			return out
		}
		if out[i].Reason != reasonNotOffered {
			reason = reasonFallback
		}
	}
	return out
}

// tellFallback logs that a link does not have the provider that this node
// prefers, although the peer offers it.
func (n *Node) tellFallback(l *link) {
	for _, p := range l.weighed {
		if p.Chosen {
			return
		}
		if p.Reason != reasonNotOffered {
			n.log.Warn().Str("op", "link").Stringer("peer", l.peer.Life).Str("provider", p.Provider).Str("reason", p.Reason).
				Msg("link falls back to " + l.provider)
		}
	}
}
