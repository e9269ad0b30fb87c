package verdict

import (
	"bytes"
	"slices"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

// Each incarnation but the host's has watchers, whatever the size of the cluster: they keep
// a lifeline to it and notice first that it is silent. With a host they report that.
// Without one they send a doubt to all the others, which then dial it themselves.

const (
	// watchSide is how many watchers an incarnation has on each side of it.
	watchSide = 4
	// lookEvery is the time between two looks at an incarnation because of doubts, however
	// many there are and whichever member raises them.
	lookEvery = time.Second
)

// Watched returns those of the incarnations, none of which is self's, that self watches, and
// which watch it: the nearest four on each side of it on the ring of all UUIDs. Node 0
// is none of them: each has a session with it.
func Watched(self addr.UUID, incarnations []Node) map[addr.Incarnation]bool {
	ring := slices.DeleteFunc(slices.Clone(incarnations), func(n Node) bool { return n.Incarnation.Node == addr.Host })
	slices.SortFunc(ring, func(a, b Node) int { return bytes.Compare(a.UUID[:], b.UUID[:]) })
	at, _ := slices.BinarySearchFunc(ring, self, func(n Node, u addr.UUID) int { return bytes.Compare(n.UUID[:], u[:]) })
	watched := make(map[addr.Incarnation]bool, 2*watchSide)
	for i := range min(watchSide, len(ring)) {
		watched[ring[(at+i)%len(ring)].Incarnation] = true
		watched[ring[(at+len(ring)-1-i)%len(ring)].Incarnation] = true
	}
	return watched
}

// Watches reports whether this node watches l.
func (m *Member) Watches(l addr.Incarnation) bool {
	if m.watched == nil {
		m.watched = Watched(m.cfg.Self.UUID, m.Nodes())
	}
	return m.watched[l]
}

// doubted looks at an incarnation because one of its watchers doubts it, which is a reason to
// look and no more: the incarnation is over only if it does not answer us for as long as a
// link may be silent. A watcher of the incarnation has evidence of its own.
func (m *Member) doubted(now time.Time, in Doubt) {
	p, by := m.known(in.Incarnation), m.known(in.By)
	if p == nil || by == nil || !m.host.alone || m.Watches(in.Incarnation) || now.Sub(p.looked) < lookEvery {
		return
	}
	others := slices.DeleteFunc(append(m.Nodes(), m.Self()), func(n Node) bool { return n.Incarnation == in.By })
	if !Watched(by.node.UUID, others)[in.Incarnation] {
		return
	}
	p.doubted, p.looked = true, now
	m.out.add(Look{p.node.Contact()})
	m.consider(now, p)
}
