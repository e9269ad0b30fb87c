package main

import (
	"context"
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
