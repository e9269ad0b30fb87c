package sim

import (
	"encoding/binary"
	"maps"
	"slices"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/membership/verdict"
)

// A disk is the state directory of a machine: its content survives the process. A write
// counts once it is synced, and not before.
type disk struct {
	uuid     addr.UUID
	resetKey uint64
	epochs   uint64 // starts of fabricd

	// Of the host.
	term   uint64
	cursor addr.NodeID
	leases map[addr.NodeID]verdict.Lease

	// Of every node.
	incarnation addr.Incarnation
	lease       []byte
	known       uint64 // highest term accepted

	full    bool          // every write fails: no space
	failing bool          // every sync fails
	slow    time.Duration // each write takes so much longer
	refused uint64        // writes that failed by one of these
}

// broken reports whether a write fails, and counts it.
func (d *disk) broken() bool {
	if d.full || d.failing {
		d.refused++
		return true
	}
	return false
}

// records returns the lease table as it is on disk.
func (d *disk) records() []verdict.Lease {
	all := make([]verdict.Lease, 0, len(d.leases))
	for _, id := range slices.Sorted(maps.Keys(d.leases)) {
		all = append(all, d.leases[id])
	}
	return all
}

// store puts a synced write of the host into the table.
func (d *disk) store(x verdict.Persist) {
	d.term, d.cursor = max(d.term, x.Term), x.Cursor
	for _, l := range x.Leases {
		d.leases[l.ID] = l
	}
}

// A grantLease is the content of a lease. No node in the simulation forges one, so it
// carries no signature.
type grantLease struct {
	UUID        addr.UUID
	Epoch       uint64
	Incarnation addr.Incarnation
	Term        uint64
}

func (l grantLease) encode() []byte {
	return must(binary.Append(nil, binary.BigEndian, l))
}

// decodeLease returns the zero lease, which proves nothing, for anything else.
func decodeLease(b []byte) (l grantLease, ok bool) {
	if len(b) != binary.Size(l) {
		return l, false
	}
	_, err := binary.Decode(b, binary.BigEndian, &l)
	return l, err == nil
}

// prove reduces the claims of a member's message to those that its lease proves. It
// reports false for a message that a session refuses.
func prove(m verdict.Message, peer controlEnd) (verdict.Message, bool) {
	switch m := m.(type) {
	case verdict.Join:
		if len(m.Lease) == 0 {
			m.Previous, m.Term = addr.Incarnation{}, 0
			return m, m.UUID == peer.uuid && m.Epoch == peer.epoch
		}
		l, ok := decodeLease(m.Lease)
		m.Term = min(m.Term, l.Term)
		return m, ok && l.UUID == m.UUID && l.Incarnation == m.Previous && m.UUID == peer.uuid && m.Epoch == peer.epoch
	case verdict.Resume:
		l, ok := decodeLease(m.Lease)
		m.Term = min(m.Term, l.Term)
		return m, ok && l.UUID == m.UUID && l.Incarnation == m.Incarnation && l.Epoch == m.Epoch && m.UUID == peer.uuid && m.Epoch == peer.epoch
	}
	return m, true
}
