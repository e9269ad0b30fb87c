package verdict

import (
	"bytes"
	"slices"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

// Each life but the host's has watchers, whatever the size of the cluster: they keep
// a lifeline to it and notice first that it is silent. With a host they report that.
// Without one they send a doubt to all the others, which then dial it themselves.

const (
	// watchSide is how many watchers a life has on each side of it.
	watchSide = 4
	// lookEvery is the time between two looks at a life because of doubts, however
	// many there are and whichever member raises them.
	lookEvery = time.Second
)

// Watched returns those of the lives, none of which is self's, that self watches, and
// which watch it: the nearest four on each side of it on the ring of all UUIDs. Node 0
// is none of them: each has a session with it.
func Watched(self addr.UUID, lives []Node) map[addr.Life]bool {
	ring := slices.DeleteFunc(slices.Clone(lives), func(n Node) bool { return n.Life.Node == addr.Host })
	slices.SortFunc(ring, func(a, b Node) int { return bytes.Compare(a.UUID[:], b.UUID[:]) })
	at, _ := slices.BinarySearchFunc(ring, self, func(n Node, u addr.UUID) int { return bytes.Compare(n.UUID[:], u[:]) })
	watched := make(map[addr.Life]bool, 2*watchSide)
	for i := range min(watchSide, len(ring)) {
		watched[ring[(at+i)%len(ring)].Life] = true
		watched[ring[(at+len(ring)-1-i)%len(ring)].Life] = true
	}
	return watched
}

// Watches reports whether this node watches l.
func (m *Member) Watches(l addr.Life) bool {
	if m.watched == nil {
		m.watched = Watched(m.cfg.Self.UUID, m.Nodes())
	}
	return m.watched[l]
}

// doubted looks at a life because one of its watchers doubts it, which is a reason to
// look and no more: the life is over only if it does not answer us for as long as a
// link may be silent. A watcher of the life has evidence of its own.
func (m *Member) doubted(now time.Time, in Doubt) {
	p, by := m.known(in.Life), m.known(in.By)
	if p == nil || by == nil || !m.alone || m.Watches(in.Life) || now.Sub(p.looked) < lookEvery {
		return
	}
	others := slices.DeleteFunc(append(m.Nodes(), m.Self()), func(n Node) bool { return n.Life == in.By })
	if !Watched(by.node.UUID, others)[in.Life] {
		return
	}
	p.doubted, p.looked = true, now
	m.out.add(Look{p.node.Contact()})
	m.consider(now, p)
}
