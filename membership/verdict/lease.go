package verdict

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

// A LeaseState is the state of a lease. Its numbers are those of the record on disk.
type LeaseState uint8

const (
	LeaseFree       LeaseState = iota + 1 // may go to any node; the generation is kept
	LeaseActive                           // held by an incarnation
	LeaseQuarantine                       // over, but not long enough
)

// String returns a word for the state.
func (s LeaseState) String() string {
	switch s {
	case LeaseFree:
		return "free"
	case LeaseActive:
		return "active"
	case LeaseQuarantine:
		return "quarantine"
	}
	return "unknown"
}

// A Lease is the record of one node ID: one line of the lease table on disk.
type Lease struct {
	ID         addr.NodeID // 1 … addr.FirstReserved − 1
	UUID       addr.UUID   // of the last incarnation, also when free
	Name       string
	Generation addr.Generation // of the last incarnation, ≥ 1; never goes back
	Epoch      uint64
	State      LeaseState
	Reason     Reason    // of the end, unless active
	Since      time.Time // of the state, host time; only for people once it was on disk
}

// Incarnation returns the incarnation that the lease is or was last given to.
func (l Lease) Incarnation() addr.Incarnation {
	return addr.Incarnation{Node: l.ID, Generation: l.Generation}
}

// maxGeneration is never granted: a lease that reaches it is retired.
const maxGeneration = ^addr.Generation(0)

var errFull = errors.New("every node ID is taken or in quarantine")

// A leaseTable is the authority's memory of every ID that was ever granted.
//
// Invariants: at most one lease per ID; owner maps a UUID to the one ID that
// it held last and that no other node got since; at most one active lease per
// UUID; generations only grow.
type leaseTable struct {
	leases map[addr.NodeID]*Lease
	owner  map[addr.UUID]addr.NodeID
	cursor addr.NodeID     // the ID granted last to a newcomer; the search goes on after it
	floor  addr.Generation // every incarnation begins above it; only grows
}

// newLeaseTable builds the table from the records on disk. Two records of one
// ID, two active ones of one UUID, or values out of range are an error: the
// table is damaged.
func newLeaseTable(records []Lease, cursor addr.NodeID, floor addr.Generation) (*leaseTable, error) {
	t := &leaseTable{
		leases: make(map[addr.NodeID]*Lease, len(records)),
		owner:  make(map[addr.UUID]addr.NodeID, len(records)),
		cursor: cursor,
		floor:  floor,
	}
	if floor >= maxGeneration-1 {
		return nil, fmt.Errorf("no generation is left above the floor %d", floor)
	}
	for _, l := range records {
		if err := t.load(l); err != nil {
			return nil, fmt.Errorf("lease of node %d: %w", l.ID, err)
		}
	}
	return t, nil
}

func (t *leaseTable) load(l Lease) error {
	switch {
	case l.ID == addr.Host || l.ID >= addr.FirstReserved:
		return errors.New("the ID is never leased")
	case l.UUID.IsZero() || l.Generation == 0:
		return errors.New("no UUID or no generation")
	case l.State < LeaseFree || l.State > LeaseQuarantine:
		return errors.New("unknown state")
	case t.leases[l.ID] != nil:
		return errors.New("recorded twice")
	}
	if id, ok := t.owner[l.UUID]; ok {
		other := t.leases[id]
		if other.State == LeaseActive && l.State == LeaseActive {
			return fmt.Errorf("UUID %v also holds node %d", l.UUID, id)
		}
		if other.State == LeaseActive || (l.State != LeaseActive && other.ID < l.ID) {
			t.leases[l.ID] = &l
			return nil // the other record stays the one to come back to
		}
	}
	t.leases[l.ID] = &l
	t.owner[l.UUID] = l.ID
	return nil
}

// lookup returns the lease that u holds or held last, or nil.
func (t *leaseTable) lookup(u addr.UUID) *Lease {
	if id, ok := t.owner[u]; ok {
		return t.leases[id]
	}
	return nil
}

// sorted returns all leases in order of ID.
func (t *leaseTable) sorted() []*Lease {
	ids := slices.Sorted(maps.Keys(t.leases))
	all := make([]*Lease, len(ids))
	for i, id := range ids {
		all[i] = t.leases[id]
	}
	return all
}

// grant gives u an incarnation: its own ID with the next generation; else that of its
// previous incarnation if no node has it; else the next free one after the cursor. The
// caller has ended the previous incarnation before, and knows that it was u's. The
// generation is above every one that the ID can have had: in the table, up to the
// floor, and in the previous incarnation.
//
// A node that wants one ID gets that one: the caller has found it to be this node's, or
// free.
func (t *leaseTable) grant(now time.Time, u addr.UUID, epoch uint64, name string, previous addr.Incarnation, want addr.NodeID) (*Lease, error) {
	id := want
	if id == 0 {
		var ok bool
		if id, ok = t.choose(u, previous); !ok {
			return nil, errFull
		}
	}
	l := t.leases[id]
	if l == nil {
		l = &Lease{ID: id}
		t.leases[id] = l
	} else if l.UUID != u && t.owner[l.UUID] == id {
		delete(t.owner, l.UUID)
	}
	if l.State == LeaseActive {
		panic("BUG: verdict: grant of an active lease")
	}
	last := max(l.Generation, t.floor)
	if previous.Node == id {
		last = max(last, previous.Generation)
	}
	*l = Lease{ID: id, UUID: u, Name: name, Generation: last + 1, Epoch: epoch, State: LeaseActive, Since: now}
	t.owner[u] = id
	return l, nil
}

// bound returns the ID that u has and keeps: the one that it held last, or else that of
// its previous incarnation if no node has it.
func (t *leaseTable) bound(u addr.UUID, previous addr.Incarnation) (addr.NodeID, bool) {
	usedUp := previous.Generation >= maxGeneration-1
	if l := t.lookup(u); l != nil && l.Generation < maxGeneration-1 && (l.ID != previous.Node || !usedUp) {
		return l.ID, true
	}
	return previous.Node, t.free(previous.Node) && !usedUp
}

func (t *leaseTable) choose(u addr.UUID, previous addr.Incarnation) (addr.NodeID, bool) {
	if id, ok := t.bound(u, previous); ok {
		return id, true
	}
	id := t.cursor
	for range addr.FirstReserved {
		if id++; id >= addr.FirstReserved {
			id = 1
		}
		if t.free(id) {
			t.cursor = id
			return id, true
		}
	}
	return 0, false
}

// free reports whether id may go to any node.
func (t *leaseTable) free(id addr.NodeID) bool {
	if id == addr.Host || id >= addr.FirstReserved {
		return false
	}
	l := t.leases[id]
	return l == nil || (l.State == LeaseFree && l.Generation < maxGeneration-1)
}

// end puts the lease into quarantine.
func (l *Lease) end(now time.Time, why Reason) {
	l.State, l.Since, l.Reason = LeaseQuarantine, now, why
}

// raise makes every later incarnation begin above floor.
func (t *leaseTable) raise(floor addr.Generation) {
	t.floor = max(t.floor, min(floor, maxGeneration-2))
}

// lacks reports whether u was granted an incarnation that this table does not know of.
func (t *leaseTable) lacks(u addr.UUID, incarnation addr.Incarnation) bool {
	if incarnation.Generation == 0 || incarnation.Node == addr.Host {
		return false
	}
	l := t.leases[incarnation.Node]
	return l == nil || l.Generation < incarnation.Generation || l.Generation == incarnation.Generation && l.UUID != u
}
