package engine

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/fabricd/fabricd/internal/transport"
)

// Considered is the result for one provider when a link was established.
type Considered struct {
	Provider string `json:"provider"`
	Chosen   bool   `json:"chosen"`
	Reason   string `json:"reason"`
	Tried    bool   `json:"tried"` // and it did not reach the peer

	Attributes transport.Attributes `json:"attributes"`
}

// maxAddresses bounds the addresses of a peer that are dialed: membership allows no more.
const maxAddresses = 8

// A choice is made between the providers of this node, the preferred one first,
// when it dials a peer. It has at least one provider that the peer offers, as far
// as is known, and at least one address.
type choice struct {
	addresses  []string // at most maxAddresses
	considered []Considered
	spared     int // how many of them, from the end, are not tried: the link has the first of those
}

// Reasons of a choice.
const (
	reasonFirst      = "the first of this node's that the peer offers"
	reasonFallback   = "the ones before did not work"
	reasonNotOffered = "the peer does not offer it"
	reasonNotNeeded  = "not needed"
	reasonTheirs     = "the peer dialed"
)

// newChoice returns the choice for a dial to peer. A choice between nothing is an error.
func newChoice(providers []transport.Provider, peer Peer) (*choice, error) {
	c := &choice{addresses: peer.Addresses[:min(len(peer.Addresses), maxAddresses)], considered: make([]Considered, len(providers))}
	common, own := false, make([]string, len(providers))
	for i, p := range providers {
		own[i] = p.Name()
		c.considered[i] = Considered{Provider: own[i], Reason: reasonNotNeeded, Attributes: p.Attributes()}
		if len(peer.Providers) > 0 && !slices.Contains(peer.Providers, own[i]) {
			c.considered[i].Reason = reasonNotOffered
		}
		common = common || c.offered(i)
	}
	switch {
	case len(c.addresses) == 0:
		return nil, unreachable{errors.New("no address is known")}
	case len(own) == 0:
		return nil, unreachable{errors.New("this node has no provider")}
	case !common:
		return nil, unreachable{fmt.Errorf("no provider in common: %s here, %s there",
			strings.Join(own, ", "), strings.Join(peer.Providers, ", "))}
	}
	return c, nil
}

// offered reports whether the peer offers the i-th provider, as far as is known.
func (c *choice) offered(i int) bool { return c.considered[i].Reason != reasonNotOffered }

// beside reports whether the link that is dialed stands beside the one that there is.
func (c *choice) beside() bool { return c.spared > 0 }

// attempts returns how many dials the choice allows.
func (c *choice) attempts() (n int) {
	for i := range len(c.considered) - c.spared {
		if c.offered(i) {
			n += len(c.addresses)
		}
	}
	return n
}

// failed returns why the i-th provider did not reach the peer.
func (c *choice) failed(i int, err error) {
	c.considered[i].Reason, c.considered[i].Tried = err.Error(), true
}

// chose returns the choice with the provider that did.
func (c *choice) chose(provider string) []Considered {
	out := slices.Clone(c.considered)
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

// dialed returns the choice that was the peer's.
func (n *Node) dialed(provider string) []Considered {
	c := Considered{Provider: provider, Chosen: true, Reason: reasonTheirs}
	for _, p := range n.cfg.Providers {
		if p.Name() == provider {
			c.Attributes = p.Attributes()
		}
	}
	return []Considered{c}
}

// why returns one line with the reason for a link's provider.
func why(weighed []Considered) string {
	for _, c := range weighed {
		if c.Chosen {
			return c.Reason
		}
	}
	return ""
}

// logFallback logs that a link does not have the provider that this node
// prefers, although the peer offers it.
func (n *Node) logFallback(l *link) {
	for _, p := range l.weighed {
		if p.Chosen {
			return
		}
		if p.Reason != reasonNotOffered {
			n.log.Warn().Str("op", "link").Stringer("peer", l.peer.Incarnation).Str("provider", p.Provider).Str("reason", p.Reason).
				Msg("link falls back to " + l.provider)
			n.noteLink("link-fallback", l.peer.Incarnation, "from %s to %s: %s", p.Provider, l.provider, p.Reason)
		}
	}
}
