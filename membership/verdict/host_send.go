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

// changesEvery is the time between two changes of the table, the ends of incarnations aside, so
// that a storm of joins takes few messages. A change that comes alone is sent at once.
const changesEvery = 50 * time.Millisecond

// changes are the nodes whose entries in the table are new and not sent yet.
type changes struct {
	nodes []*hostNode
	sent  time.Time // when the last ones were
}

func (c *changes) add(n *hostNode) {
	if !slices.Contains(c.nodes, n) {
		c.nodes = append(c.nodes, n)
	}
}

// due returns when they may be sent.
func (c *changes) due() time.Time { return c.sent.Add(changesEvery) }

// announce makes n part of the table, or changes its entry. It is sent to all at the end
// of a Step.
func (h *Host) announce(n *hostNode) {
	n.shown = true
	h.changes.add(n)
}

// sendChanges sends all announced entries if changesEvery has passed since the last time.
func (h *Host) sendChanges(now time.Time) {
	if !now.Before(h.changes.due()) && !h.stopped {
		h.sendChangesNow(now)
	}
}

// sendChangesNow sends all announced entries. It comes before the end of any incarnation, so
// that the beginning of every incarnation is sent, however short the incarnation was.
func (h *Host) sendChangesNow(now time.Time) {
	for part := range slices.Chunk(h.changes.nodes, MaxDelta) {
		h.version++
		m := Delta{Term: h.term, Version: h.version}
		for _, n := range part {
			m.Entries = append(m.Entries, Entry{Node: n.node})
		}
		h.broadcast(nil, m)
		h.changes.sent = now
	}
	h.changes.nodes = nil
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
