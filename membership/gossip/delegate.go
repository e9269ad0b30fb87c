package gossip

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/internal/guard"
)

// A delegate answers memberlist's callbacks. memberlist makes most of them with
// its node lock held, so none of them calls memberlist, waits, or keeps the
// node that it was given.
type delegate struct{ g *Gossip }

var (
	_ memberlist.Delegate      = delegate{}
	_ memberlist.EventDelegate = delegate{}
	_ memberlist.AliveDelegate = delegate{}
)

// NodeMeta returns this member's Meta, encoded.
func (d delegate) NodeMeta(int) []byte {
	d.g.mu.Lock()
	defer d.g.mu.Unlock()
	return d.g.meta
}

// NotifyMsg is called with a user message, a loss report or a doubt. It is memberlist's.
func (d delegate) NotifyMsg(b []byte) {
	defer guard.Recover(d.g.panicked)
	d.g.receive(b)
}

// GetBroadcasts, LocalState and MergeRemoteState carry user data of which there is none: arriving
// data is dropped.
func (delegate) GetBroadcasts(int, int) [][]byte { return nil }
func (delegate) LocalState(bool) []byte          { return nil }
func (delegate) MergeRemoteState([]byte, bool)   {}

// NotifyAlive decides whether memberlist may believe that n exists. It keeps
// out foreign clusters, malformed names and metadata, those that the register does
// not trust, and more than it holds.
func (d delegate) NotifyAlive(n *memberlist.Node) (err error) {
	defer guard.Recover(func(internal error, stack []byte) {
		d.g.panicked(internal, stack)
		err = internal
	})
	m, err := member(n)
	if err != nil {
		return err
	}
	if err := checkVersions(n); err != nil {
		return err
	}
	g := d.g
	if m.Meta.Cluster != g.cfg.Cluster {
		return fmt.Errorf("it belongs to cluster %s, this is %s", m.Meta.Cluster, g.cfg.Cluster)
	}
	if m.Key() == g.self {
		return nil
	}
	proven := g.cfg.Proven(m.Key())
	g.mu.Lock()
	defer g.mu.Unlock()
	changes, err := g.members.admit(m, proven, time.Now())
	if !g.closed {
		g.queue.putAll(changes)
	}
	return err
}

// checkVersions keeps out a member that claims other versions than SPEC.md has: one
// whose lowest version is above that of all others would make every exchange of states fail.
func checkVersions(n *memberlist.Node) error {
	const current = memberlist.ProtocolVersion2Compatible
	if n.PMin > current || n.PMax < current || n.PCur != current || n.DMin != 0 || n.DMax != 0 || n.DCur != 0 {
		return fmt.Errorf("it speaks versions %d to %d, now %d", n.PMin, n.PMax, n.PCur)
	}
	return nil
}

// NotifyJoin, NotifyLeave and NotifyUpdate copy the node and queue a change.
func (d delegate) NotifyJoin(n *memberlist.Node)   { d.g.change(Seen, n) }
func (d delegate) NotifyLeave(n *memberlist.Node)  { d.g.change(Gone, n) }
func (d delegate) NotifyUpdate(n *memberlist.Node) { d.g.change(Updated, n) }

func (g *Gossip) change(kind Kind, n *memberlist.Node) {
	defer guard.Recover(g.panicked)
	m, err := member(n)
	if err != nil || m.Key() == g.self {
		return // NotifyAlive has refused such a node, so err is nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return
	}
	proven := g.members.saw(m, kind == Gone, time.Now())
	g.queue.put(Change{Kind: kind, Member: m}, proven)
}

// panicked logs a panic of a callback: the message that caused it is dropped.
func (g *Gossip) panicked(err error, stack []byte) {
	g.panics.Line(zerolog.ErrorLevel, netip.Addr{}).Err(err).Bytes("stack", stack).Msg("gossip message dropped")
}

// member copies n, which memberlist may change as soon as its callback returns.
func member(n *memberlist.Node) (Member, error) {
	k, err := ParseKey(n.Name)
	if err != nil {
		return Member{}, err
	}
	meta, err := DecodeMeta(n.Meta)
	if err != nil {
		return Member{}, err
	}
	ip, ok := netip.AddrFromSlice(n.Addr)
	if !ok || ip.Unmap().IsUnspecified() {
		return Member{}, fmt.Errorf("address %v is none", n.Addr)
	}
	return Member{
		UUID:    k.UUID,
		Epoch:   k.Epoch,
		Address: netip.AddrPortFrom(ip.Unmap(), n.Port),
		Meta:    meta,
	}, nil
}
