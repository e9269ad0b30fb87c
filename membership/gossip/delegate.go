package gossip

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/hashicorp/memberlist"
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

var errTooMany = errors.New("too many members")

// NodeMeta returns what we say of ourselves.
func (d delegate) NodeMeta(int) []byte {
	d.g.mu.Lock()
	defer d.g.mu.Unlock()
	return d.g.meta
}

// NotifyMsg is called with a user message, which is a word. It is memberlist's.
func (d delegate) NotifyMsg(b []byte) { d.g.hear(b) }

// GetBroadcasts, LocalState and MergeRemoteState carry user data of which there is
// none: what arrives is dropped.
func (delegate) GetBroadcasts(int, int) [][]byte { return nil }
func (delegate) LocalState(bool) []byte          { return nil }
func (delegate) MergeRemoteState([]byte, bool)   {}

// NotifyAlive decides whether memberlist may believe that n exists. It keeps
// out foreign clusters, malformed names and metadata, and more members than
// the bound.
func (d delegate) NotifyAlive(n *memberlist.Node) error {
	m, err := member(n)
	if err != nil {
		return err
	}
	g := d.g
	if m.Meta.Cluster != g.cfg.Cluster {
		return fmt.Errorf("it belongs to cluster %s, this is %s", m.Meta.Cluster, g.cfg.Cluster)
	}
	if m.Key() == g.self {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.members[m.Key()] == nil && len(g.members) >= g.cfg.MaxMembers && !g.forgetOldest() {
		return errTooMany
	}
	return nil
}

// forgetOldest drops the member that is gone for longest, if any is gone.
// g.mu is held.
func (g *Gossip) forgetOldest() bool {
	var oldest Key
	var at time.Time
	for k, r := range g.members {
		if r.gone && (at.IsZero() || r.at.Before(at)) {
			oldest, at = k, r.at
		}
	}
	if at.IsZero() {
		return false
	}
	delete(g.members, oldest)
	return true
}

// NotifyJoin, NotifyLeave and NotifyUpdate copy the node and queue a rumour.
func (d delegate) NotifyJoin(n *memberlist.Node)   { d.g.rumour(Seen, n) }
func (d delegate) NotifyLeave(n *memberlist.Node)  { d.g.rumour(Gone, n) }
func (d delegate) NotifyUpdate(n *memberlist.Node) { d.g.rumour(Updated, n) }

func (g *Gossip) rumour(kind Kind, n *memberlist.Node) {
	m, err := member(n)
	if err != nil || m.Key() == g.self {
		return // NotifyAlive has refused such a node, so err is nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return
	}
	g.members[m.Key()] = &record{member: m, gone: kind == Gone, at: time.Now()}
	g.queue.put(Rumour{Kind: kind, Member: m})
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
