package engine

import (
	"context"
	"slices"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/wire"
)

const (
	// linksVersion is the version of the protocol that knows AskLinks.
	linksVersion = 6
	// linksShown is how many AskLinks of one link are answered in a minute.
	linksShown = 60
	// measureEvery is the time between two calls of Measure that do something.
	measureEvery = 5 * time.Second
	// measureTime is how long a round trip may take for it.
	measureTime = 2 * time.Second
	// meshMost is how many other nodes a node makes links to because a peer looks.
	meshMost = 32
)

// LinksOf asks a node for its links to others. Only the form of its answer is checked.
func (n *Node) LinksOf(ctx context.Context, node addr.NodeID) ([]LinkInfo, error) {
	l, err := n.linkTo(ctx, node)
	if err != nil {
		return nil, err
	}
	if l.otherEnd != nil || l.version < linksVersion {
		return nil, status.NotSupp
	}
	f, err := exchange(ctx, l, &l.requests.rows, func(id uint64) { l.sendFrameInTurn(wire.AskLinks{Request: id}.AppendTo(nil)) })
	if err != nil {
		return nil, err
	}
	rows := make([]LinkInfo, 0, len(f.Rows))
	for _, r := range f.Rows {
		rows = append(rows, infoOf(r))
	}
	return rows, nil
}

var carriers = map[string]uint8{"quic": wire.CarrierQUIC, "tcp": wire.CarrierTCP}

// infoOf returns a peer's report about a link of its own.
func infoOf(r wire.LinkRow) LinkInfo {
	info := LinkInfo{Node: r.Peer.Node, Generation: r.Peer.Generation, SilentMS: int64(r.SilentMS), LossPercent: float64(r.Loss) / 100,
		RoundTripUS: int64(r.RoundTripUS), DeviationUS: int64(r.DeviationUS), ShortestUS: int64(r.ShortestUS)}
	for name, carrier := range carriers {
		if r.Carrier == carrier {
			info.Provider = name
		}
	}
	if r.Fallback {
		info.Considered = []Considered{{Tried: true}}
	}
	return info
}

// rowOf is the opposite of infoOf.
func rowOf(l LinkInfo) wire.LinkRow {
	cut := func(v int64) uint32 { return uint32(min(max(v, 0), 1<<32-1)) }
	return wire.LinkRow{Peer: addr.Incarnation{Node: l.Node, Generation: l.Generation}, Carrier: carriers[l.Provider],
		Fallback: slices.ContainsFunc(l.Considered, func(c Considered) bool { return c.Tried && !c.Chosen }),
		SilentMS: cut(l.SilentMS), RoundTripUS: cut(l.RoundTripUS), DeviationUS: cut(l.DeviationUS), ShortestUS: cut(l.ShortestUS), Loss: uint16(l.LossPercent * 100)}
}

// askedLinks answers a peer that asks for this node's links, and starts Measure.
func (l *link) askedLinks(f wire.AskLinks) error {
	n := l.n
	l.mu.Lock()
	shown := l.shown.shown(n.now(), linksShown)
	l.mu.Unlock()
	if !shown {
		return nil
	}
	answer := wire.Links{Request: f.Request}
	for _, info := range n.Links() {
		row := rowOf(info)
		if last := len(answer.Rows) - 1; last >= 0 && answer.Rows[last].Peer.Node == row.Peer.Node {
			answer.Rows[last] = row // of two links of a pair the newest
			continue
		}
		answer.Rows = append(answer.Rows, row)
	}
	l.sendFrame(answer.AppendTo(nil))
	n.work.run(func() { n.Measure(contextUntil(n.done), meshMost) })
	return nil
}

// A measurement is the last call of Measure. Guarded by Node.mu.
type measurement struct {
	running bool
	began   time.Duration // Node.now; 0: there has been none
}

// tooSoon reports whether the last one is under way, or began shortly before now.
func (m *measurement) tooSoon(now time.Duration) bool {
	return m.running || m.began != 0 && now-m.began < measureEvery
}

// Measure makes a link to each live node that has none, so that its round trips are known,
// unless there are more nodes than most. A call soon after another one does nothing.
func (n *Node) Measure(ctx context.Context, most int) {
	n.mu.Lock()
	busy := n.measurement.tooSoon(n.now()) || len(n.peers) > most
	var far []addr.NodeID
	for id, p := range n.peers {
		if !busy && p.link() == nil && !isClosed(p.lost) {
			far = append(far, id)
		}
	}
	if !busy {
		n.measurement.running, n.measurement.began = true, n.now()
	}
	n.mu.Unlock()
	if busy {
		return
	}
	for _, id := range far {
		ctx, cancel := context.WithTimeout(ctx, measureTime)
		// A node that cannot be reached is seen in the table of links, and in the log.
		_, _ = n.Ping(ctx, id)
		cancel()
	}
	n.mu.Lock()
	n.measurement.running = false
	n.mu.Unlock()
}
