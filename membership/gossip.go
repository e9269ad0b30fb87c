package membership

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/fabricd/fabricd/membership/gossip"
	"github.com/fabricd/fabricd/membership/state"
	"github.com/fabricd/fabricd/membership/trust"
	"github.com/fabricd/fabricd/membership/verdict"
)

// startGossip begins to gossip. The keys come from the state directory.
func (a *Agent) startGossip(epoch uint64) error {
	ring, err := trust.DecodeKeyring(a.cfg.State.Secret(state.SecretKeyring))
	if err != nil {
		return err
	}
	g := a.cfg.Gossip
	a.gossip, err = gossip.Start(gossip.Config{
		Cluster:    a.cfg.State.Identity().Cluster,
		UUID:       a.self.UUID,
		Epoch:      epoch,
		Meta:       a.meta(),
		Keys:       ring.Keys(),
		Bind:       g.Bind,
		Advertise:  g.Advertise,
		Packets:    g.Packets,
		Streams:    g.Streams,
		Dial:       g.Dial,
		Seeds:      a.gossipSeeds(),
		Profile:    a.cfg.Detection,
		MaxMembers: maxGossiping,
		Proven:     a.proven,
		Known:      a.Knows,
		Seed:       a.cfg.Seed,
		Log:        a.log.With().Str("part", "gossip").Logger(),
	})
	return err
}

// gossipSeeds returns the addresses to gossip with first: those configured, else the
// port after each seed's data port; and the members of the last start.
func (a *Agent) gossipSeeds() []string {
	seeds := slices.Clone(a.cfg.Gossip.Seeds)
	if len(seeds) == 0 {
		for _, s := range a.cfg.Seeds {
			host, port, err := net.SplitHostPort(s)
			if err != nil {
				continue
			}
			if n, err := strconv.ParseUint(port, 10, 16); err == nil && n < 0xFFFF {
				seeds = append(seeds, net.JoinHostPort(host, strconv.FormatUint(n+1, 10)))
			}
		}
	}
	for _, m := range a.cfg.State.Members() {
		if _, err := netip.ParseAddrPort(m.Gossip); err == nil && len(seeds) < 64 {
			seeds = append(seeds, m.Gossip)
		}
	}
	return seeds
}

// meta returns this node's own metadata. Fields that do not fit are left out: the
// table has all of them.
func (a *Agent) meta() gossip.Meta {
	m := gossip.Meta{Cluster: a.cfg.State.Identity().Cluster, Host: a.cfg.host()}
	if a.member != nil {
		m.Incarnation, m.Term = a.member.Self().Incarnation, a.member.Term()
	}
	if a.host != nil {
		m.Term, m.Serving = a.host.Term(), a.host.Serving()
	}
	for _, p := range a.cfg.Node.Providers {
		if len(m.Providers) < gossip.MaxProviders {
			m.Providers = append(m.Providers, p)
		}
	}
	for _, d := range a.cfg.Node.Addresses {
		longer := m
		longer.Addresses = append(slices.Clone(m.Addresses), d)
		if _, err := longer.Append(nil); err == nil {
			m = longer
		}
	}
	return m
}

// gossipSelf spreads the changed metadata of this node.
func (a *Agent) gossipSelf() {
	m := a.meta()
	a.gossiped.serving = m.Serving
	if err := a.gossip.Update(m); err != nil && !errors.Is(err, net.ErrClosed) {
		a.log.Warn().Err(err).Msg("gossip metadata")
	}
}

// takeGossip takes the reports of gossip.
func (a *Agent) takeGossip() {
	for _, r := range a.gossip.Take() {
		m, k := r.Member, r.Member.Key()
		gone := r.Kind == gossip.Gone
		if !a.gossiped.put(m, gone) {
			continue
		}
		if a.cfg.Gossip.Sighted != nil {
			a.cfg.Gossip.Sighted(m.UUID, m.Address)
		}
		if n, ok := a.living(k); ok {
			a.feedGossip(n)
		}
		if a.host != nil {
			a.lookForHost(k, lookAgain)
		}
	}
	for _, w := range a.gossip.TakeLossReports() {
		a.onLossReport(w)
	}
	for _, d := range a.gossip.TakeDoubts() {
		a.takeDoubt(d)
	}
}

// feedGossip passes gossip's opinion of an incarnation, if any, on to the member. The table
// identifies the incarnation, not the claim of the gossiping member.
func (a *Agent) feedGossip(n Node) {
	k := gossip.Key{UUID: n.UUID, Epoch: n.Epoch}
	if _, ok := a.gossiped.members[k]; !ok {
		return
	}
	state := verdict.GossipAlive
	if a.gossiped.gone[k] {
		state = verdict.GossipDead
	}
	a.feedMember(verdict.Gossip{Incarnation: n.Incarnation, State: state})
}

// A memory is what the agent writes down for the next start. Owned by the loop.
type memory struct {
	lookedAt time.Time           // when members were last looked at
	members  []state.Member      // as last given to the disk
	pending  *pendingIncarnation // our own incarnation, if it is not on disk
}

// rememberEvery is how often the members are written to disk, if they changed.
const rememberEvery = 5 * time.Second

// rememberMembers writes down where others are, for the next start.
func (a *Agent) rememberMembers(now time.Time) {
	if now.Sub(a.memory.lookedAt) < rememberEvery {
		return
	}
	a.memory.lookedAt = now
	var list []state.Member
	for _, n := range a.member.Nodes() {
		m := state.Member{Incarnation: n.Incarnation, UUID: n.UUID, Epoch: n.Epoch, Name: n.Name(), Addresses: n.Addresses()}
		if h, ok := a.gossiped.members[gossip.Key{UUID: n.UUID, Epoch: n.Epoch}]; ok {
			m.Gossip = h.Address.String()
		}
		list = append(list, m)
	}
	same := slices.EqualFunc(list, a.memory.members, func(x, y state.Member) bool {
		return x.Incarnation == y.Incarnation && x.UUID == y.UUID && x.Epoch == y.Epoch && x.Gossip == y.Gossip &&
			slices.Equal(x.Addresses, y.Addresses)
	})
	if len(list) == 0 || same {
		return // an empty view is no reason to forget the nodes' addresses
	}
	a.memory.members = list
	a.disk.putMembers(list)
}
