package verdict

import (
	"cmp"
	"slices"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

func (h *Host) send(s SessionID, m Message) { h.out.add(Send{Session: s, Message: m}) }

// broadcast sends m to every node that holds a table, except one.
func (h *Host) broadcast(except *hostNode, m Message) {
	for _, n := range h.nodes {
		if n != except && n.up && n.phase != granting {
			h.send(n.session, m)
		}
	}
}

// newsEvery is the time between two changes of the table, the ends of incarnations aside, so
// that a storm of joins takes few messages. A change that comes alone is sent at once.
const newsEvery = 50 * time.Millisecond

// announce makes n part of the table, or changes its entry. It is sent to all at the end
// of a Step.
func (h *Host) announce(n *hostNode) {
	n.shown = true
	if !slices.Contains(h.news, n) {
		h.news = append(h.news, n)
	}
}

// tellNews sends all announced entries if newsEvery has passed since the last time.
func (h *Host) tellNews(now time.Time) {
	if len(h.news) > 0 && now.Sub(h.newsTold) >= newsEvery && !h.stopped {
		h.tellNewsNow(now)
	}
}

// tellNewsNow sends all announced entries. It comes before the end of any incarnation, so
// that the beginning of every incarnation is sent, however short the incarnation was.
func (h *Host) tellNewsNow(now time.Time) {
	for part := range slices.Chunk(h.news, MaxNews) {
		h.version++
		m := Delta{Term: h.term, Version: h.version}
		for _, n := range part {
			m.Entries = append(m.Entries, Entry{Node: n.node})
		}
		h.broadcast(nil, m)
		h.newsTold = now
	}
	h.news = nil
}

// deliver gives n its incarnation, and the table to live by.
func (h *Host) deliver(n *hostNode) {
	h.certify(n)
	h.sendTable(n)
}

// certify sends n the lease of its incarnation in our term. The lease is on disk.
func (h *Host) certify(n *hostNode) {
	h.send(n.session, Grant{Term: h.term, Incarnation: n.node.Incarnation,
		UUID: n.node.UUID, Epoch: n.node.Epoch, Name: n.node.Name(), Since: n.node.Since})
}

// sendTable sends the whole table to n, in parts.
func (h *Host) sendTable(n *hostNode) {
	entries := h.entries(n)
	first := true
	for {
		part := entries[:min(len(entries), MaxEntries)]
		entries = entries[len(part):]
		last := len(entries) == 0
		h.send(n.session, Table{Term: h.term, Version: h.version, First: first, Last: last, Entries: part})
		if last {
			return
		}
		first = false
	}
}

// entries returns the table for reader: all incarnations that were shown, reader itself,
// and of the other IDs the incarnations that ended not long ago.
func (h *Host) entries(reader *hostNode) []Entry {
	var all []Entry
	seen := make(map[addr.NodeID]bool, len(h.nodes))
	for _, n := range h.nodes {
		if n.shown || n == reader {
			all = append(all, Entry{Node: n.node})
			seen[n.id()] = true
		}
	}
	for id, e := range h.ended {
		if !seen[id] {
			all = append(all, Entry{Node: Node{Incarnation: e.incarnation, State: Removed}, Reason: e.reason})
		}
	}
	slices.SortFunc(all, func(a, b Entry) int { return cmp.Compare(a.Node.Incarnation.Node, b.Node.Incarnation.Node) })
	return all
}

// persist asks for records to be written, and stores w until that is confirmed.
func (h *Host) persist(w write, leases ...Lease) {
	h.seq++
	w.seq = h.seq
	for _, l := range leases {
		w.ids = append(w.ids, l.ID)
		delete(h.dirty, l.ID)
	}
	h.writes = append(h.writes, w)
	h.out.add(Persist{Seq: w.seq, Term: h.next, Cursor: h.table.cursor, Leases: leases})
}

// persisted goes on with everything that waited for the disk.
func (h *Host) persisted(now time.Time, seq uint64) {
	for len(h.writes) > 0 && h.writes[0].seq <= seq {
		w := h.writes[0]
		h.writes = h.writes[1:]
		switch {
		case w.term != 0:
			h.renewed(now, w.term)
		case w.node != nil && w.node.phase == granting:
			if h.find(w.node.id()) == w.node { // else it was taken back meanwhile
				h.granted(now, w.node)
			}
		case w.node != nil && w.node.phase == removing:
			h.removed(now, w.node)
		}
	}
}

// persistFailed refuses a grant, which must not happen without the disk. A removal
// happens all the same: the incarnation is over whether the disk is full or not. The
// records are written again later. An incarnation that is wrongly active on disk until
// then cannot come back, since the members that received its end never take it
// back.
func (h *Host) persistFailed(now time.Time, in PersistFailed) {
	if !slices.ContainsFunc(h.writes, func(w write) bool { return w.seq == in.Seq }) {
		return
	}
	h.persisted(now, in.Seq-1)
	w := h.writes[0]
	h.writes = h.writes[1:]
	h.note("the lease table could not be written: %s", in.Text)
	for _, id := range w.ids {
		h.dirty[id] = true
	}
	if h.retry.IsZero() || due(h.retry, now) {
		h.retry = now.Add(h.t.Stall)
	}
	switch {
	case w.term != 0:
		h.renewing = false
	case w.node != nil && w.node.phase == granting:
		h.ungrant(now, w.node, RefusedStorage, "the lease table cannot be written: "+in.Text)
	case w.node != nil && w.node.phase == removing:
		h.removed(now, w.node)
	}
}

// rewrite writes the records again that could not be written.
func (h *Host) rewrite(now time.Time) {
	var leases []Lease
	for _, l := range h.table.sorted() {
		if h.dirty[l.ID] {
			leases = append(leases, *l)
		}
	}
	h.retry = now.Add(h.t.Stall)
	h.persist(write{}, leases...)
}

// insert adds n to the nodes, in order.
func (h *Host) insert(n *hostNode) {
	i, found := h.search(n.id())
	if found {
		panic("BUG: verdict: two incarnations of node " + n.node.Incarnation.String())
	}
	h.nodes = slices.Insert(h.nodes, i, n)
}

// drop takes n out of the nodes.
func (h *Host) drop(n *hostNode) {
	if i, found := h.search(n.id()); found && h.nodes[i] == n {
		h.nodes = slices.Delete(h.nodes, i, i+1)
	}
}

// attach makes s the session of n; an older one is closed.
func (h *Host) attach(n *hostNode, s SessionID) {
	if n.up && n.session != s {
		delete(h.sessions, n.session)
		h.out.add(CloseSession{Session: n.session, Text: "a newer session took over"})
	}
	n.session, n.up, n.gone = s, true, time.Time{}
	h.sessions[s] = n
}

// detach leaves n without a session.
func (h *Host) detach(now time.Time, n *hostNode) {
	if n.up {
		delete(h.sessions, n.session)
		n.up, n.gone = false, now
	}
}
