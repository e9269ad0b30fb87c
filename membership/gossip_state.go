package membership

import (
	"cmp"
	"slices"

	"github.com/fabricd/fabricd/membership/gossip"
)

// maxGossiping bounds the gossiping members that the agent remembers.
const maxGossiping = 4096

// A gossipState is what gossip has reported about other members, and what this node
// announces there. Owned by the loop.
type gossipState struct {
	members map[gossip.Key]gossip.Member // as last reported
	gone    map[gossip.Key]bool          // of members: given up
	dialed  map[gossip.Key]bool          // those that gossip as host and are being dialed
	serving bool                         // it is announced that this host has members
}

func newGossipState() gossipState {
	return gossipState{members: make(map[gossip.Key]gossip.Member), gone: make(map[gossip.Key]bool), dialed: make(map[gossip.Key]bool)}
}

// put records a member. It reports false if there are too many.
func (g *gossipState) put(m gossip.Member, gone bool) bool {
	k := m.Key()
	if _, known := g.members[k]; !known && len(g.members) >= maxGossiping && !g.forget() {
		return false
	}
	g.members[k], g.gone[k] = m, gone
	return true
}

// forget drops one member that is gone.
func (g *gossipState) forget() bool {
	for k, gone := range g.gone {
		if gone {
			delete(g.members, k)
			delete(g.gone, k)
			return true
		}
	}
	return false
}

// hosts returns the addresses of those that gossip as host, the highest term first.
func (g *gossipState) hosts() (list []string) {
	var hosts []gossip.Member
	for k, m := range g.members {
		if m.Meta.Host && !g.gone[k] {
			hosts = append(hosts, m)
		}
	}
	slices.SortFunc(hosts, func(x, y gossip.Member) int { return cmp.Compare(y.Meta.Term, x.Meta.Term) })
	for _, m := range hosts {
		list = append(list, m.Meta.Addresses...)
	}
	return list
}
