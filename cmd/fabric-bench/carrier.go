package main

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/fabricd/fabricd/fabric"
)

// A linkInfo is what a fabricd's admin interface tells of a link.
type linkInfo struct {
	Node     fabric.NodeID `json:"node"`
	Provider string        `json:"provider"`
	Sent     int64         `json:"sent_bytes"`
	Received int64         `json:"received_bytes"`
}

// linksOf asks a fabricd for its links.
func linksOf(ctx context.Context, admin *http.Client) ([]linkInfo, error) {
	var body struct {
		Links []linkInfo `json:"links"`
	}
	err := askAdmin(ctx, admin, http.MethodGet, "links", nil, &body)
	return body.Links, err
}

// A carrier is what carries the data between the daemons of a fleet: the
// providers of the links that were seen, in the order of their names.
type carrier struct {
	setting string // --providers; empty: as fabricd has it
	seen    []string
}

// see adds the links of a node to other nodes.
func (c *carrier) see(links []linkInfo, own fabric.NodeID) {
	for _, l := range links {
		if l.Node != own && !slices.Contains(c.seen, l.Provider) {
			c.seen = append(c.seen, l.Provider)
		}
	}
	slices.Sort(c.seen)
}

// String is what rows say. Without a link it is the setting as it was written, and
// without one of these the first of fabricd's own.
func (c carrier) String() string {
	switch {
	case len(c.seen) > 0:
		return strings.Join(c.seen, "+")
	case c.setting != "":
		return c.setting
	}
	return providerQUIC
}

// carriedBy makes a row one of a fleet. Its daemons have TLS on all links: no
// setting of ours is without.
func (r *Row) carriedBy(c carrier) { r.Provider, r.Security = c.String(), "tls1.3" }

// look sees what carries the data of daemon i now.
func (g *trial) look(ctx context.Context, i int) error {
	links, err := linksOf(ctx, adminClient(g.fleet.daemons[i].admin()))
	if err == nil {
		g.carrier.see(links, g.posts[i].node.ID())
	}
	return err
}

// unknownCarrier is what rows say where nobody tells what carries the data.
const unknownCarrier = "unknown"

// carried returns what carries the data to the peer now, and what protects it, as
// fabricd tells. Within one node no link does, whatever fabricd tells.
func (n *nodes) carried(ctx context.Context) (provider, security string) {
	if n.target.Node == n.client.ID() {
		return providerAttach, secured(providerAttach)
	}
	links, err := linksOf(ctx, n.meter.http)
	if err != nil {
		return unknownCarrier, unknownCarrier
	}
	var status struct {
		Plaintext bool `json:"tcp_plaintext"`
	}
	for _, l := range links {
		if l.Node != n.target.Node {
			continue
		}
		if l.Provider != providerTCP {
			return l.Provider, secured(l.Provider)
		}
		if err := askAdmin(ctx, n.meter.http, http.MethodGet, "status", nil, &status); err != nil {
			return providerTCP, unknownCarrier
		}
		if status.Plaintext { // links over tcp are all without TLS, at both ends
			return providerTCPPlain, secured(providerTCPPlain)
		}
		return providerTCP, secured(providerTCP)
	}
	return unknownCarrier, unknownCarrier
}

// carrierNotes says what the rows of a run against a peer do not: that nobody told
// what carries the data, or that it is another provider by now.
func (n *nodes) carrierNotes(ctx context.Context) []string {
	if n.provider == unknownCarrier {
		return []string{"what carries the data is not known: the admin socket of fabricd does not tell (--admin names it)"}
	}
	if now, _ := n.carried(ctx); now != unknownCarrier && now != n.provider {
		return []string{fmt.Sprintf("the rows say %s, which the link was over as the run began; as it ended it was over %s", n.provider, now)}
	}
	return nil
}
