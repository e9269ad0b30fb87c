package engine

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/fabricd/fabricd/internal/transport"
)

// A pair of nodes has one link, and while it goes back to a provider that its dialer prefers, two:
// connections stay on the link that they began on, new ones take the newer one. Both nodes list the
// links in the order in which they were established, and close those over which nothing goes.

const (
	// backEvery is how long a link stays with a provider that its dialer prefers less,
	// before the others are tried, which takes as long as a dial.
	backEvery = 20 * time.Second
	// unusedFor is how long a link stays that carries no connection, and asideFor, one
	// behind which there is a newer one: longer than closeLinger, so that both ends
	// have forgotten its connections.
	unusedFor = 5 * time.Minute
	asideFor  = 2 * closeLinger
)

// besideVersion is the first version of the protocol in which a HELLO can have beside.
const besideVersion = 3

// errUnused is why a link ends that is not needed.
var errUnused = errors.New("link unused")

// link returns the link for new connections: the newest that is not silent, else the
// newest; nil if there is none. The caller holds Node.mu.
func (p *peerState) link() *link {
	for _, l := range slices.Backward(p.links) {
		if l.silence.Load() == alive {
			return l
		}
	}
	if len(p.links) == 0 {
		return nil
	}
	return p.links[len(p.links)-1]
}

// maintain closes links that are not used, and begins to dial where a link fell back.
func (n *Node) maintain(now time.Duration) {
	limits := make(map[*link]time.Duration)
	n.mu.Lock()
	for _, p := range n.peers {
		for i, l := range p.links {
			limits[l] = asideFor
			if i == len(p.links)-1 {
				limits[l] = unusedFor
			}
		}
		n.goBackLocked(p, now)
	}
	n.mu.Unlock()
	for l, limit := range limits {
		if l.unused(now, limit) {
			l.fail(transport.CodeOK, errUnused)
		}
	}
}

// unused reports whether the link has carried no connection for d.
func (l *link) unused(now, d time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.conns.all) == 0 && now-l.used >= d
}

// use keeps the link from being unused: it is asked for something that is no
// connection, or not yet.
func (l *link) use() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.used = l.n.now()
}

// goBackLocked begins to dial p over the providers that this node prefers to the one
// of the link, if it dialed that. The caller holds mu.
func (n *Node) goBackLocked(p *peerState, now time.Duration) {
	l := p.link()
	if l == nil || !l.dialed || l.version < besideVersion || now < p.backAt || p.dialing != nil || p.welcomed != nil {
		return
	}
	better := slices.IndexFunc(n.cfg.Providers, func(p transport.Provider) bool { return p.Name() == l.provider })
	if better <= 0 {
		return
	}
	c, err := newChoice(n.cfg.Providers, p.Peer)
	if err != nil {
		return
	}
	if c.spared = len(n.cfg.Providers) - better; c.attempts() == 0 {
		return
	}
	p.dialing = make(chan struct{})
	peer := p.Peer
	n.work.run(func() { n.goBack(p, peer, c) })
}

// goBack tries once to establish a link beside the one that p has.
func (n *Node) goBack(p *peerState, peer Peer, c *choice) {
	err := n.dialGuarded(p, peer.Incarnation, func(ctx context.Context) error { return n.dialChoice(ctx, p, peer, c) })
	n.mu.Lock()
	p.dialErr = nil // the error of this dial is not the existing link's: without one, a dial follows
	close(p.dialing)
	p.dialing = nil
	p.backAt = n.now() + backEvery
	n.mu.Unlock()
	if err != nil {
		n.log.Debug().Stringer("peer", peer.Incarnation).Err(err).Msg("link stays with its provider")
		return
	}
	n.log.Info().Stringer("peer", peer.Incarnation).Msg("link goes back to a preferred provider")
	n.noteLink("link-back", peer.Incarnation, "to a preferred provider")
}
