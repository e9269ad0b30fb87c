package state

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

// A Lease is the host's grant to this node, as the node remembers it.
type Lease struct {
	Incarnation addr.Incarnation
	Term        uint64 // of the host that granted it
	Epoch       uint64 // of the start of this fabricd that it was granted to
	Since       time.Time
	// Signed is the host's signed statement of the lease, opaque here.
	Signed []byte
}

// A Member is how to find another node again after a restart.
type Member struct {
	Incarnation addr.Incarnation
	UUID        addr.UUID
	Epoch       uint64
	Name        string
	Gossip      string   // "host:port"
	Addresses   []string // where its providers accept sessions: "host:port"
}

// maxMembers bounds the members that are remembered: every possible ID.
const maxMembers = int(addr.FirstReserved)

// Epoch returns the boot epoch that [State.NextEpoch] last returned, or the
// last one of the previous start.
func (s *State) Epoch() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.epoch
}

// NextEpoch returns the boot epoch of this start and stores it first: a counter
// in the upper half, which makes it higher than every earlier one, and random
// bits in the lower, which distinguish two copies of one directory. Later calls
// for the same start return the same epoch.
func (s *State) NextEpoch() (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.booted {
		return s.epoch, nil
	}
	var low [4]byte
	rand.Read(low[:]) // never fails
	count := s.epoch >> 32
	if count == 1<<32-1 {
		return 0, fmt.Errorf("state file %s: boot epochs are used up: make a new state directory", s.path(fileEpoch))
	}
	next := (count+1)<<32 | uint64(binary.BigEndian.Uint32(low[:]))
	if err := s.put(fileEpoch, encodeCounter(next)); err != nil {
		return 0, err
	}
	s.epoch, s.booted = next, true
	return next, nil
}

// Term returns the highest term accepted, 0 if none. On the host it is also its
// own.
func (s *State) Term() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.term
}

// AcceptTerm stores a host's term before it is acted on. A term lower than an
// accepted one is [ErrOldTerm].
func (s *State) AcceptTerm(term uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.acceptTermLocked(term)
}

func (s *State) acceptTermLocked(term uint64) error {
	if term < s.term {
		return fmt.Errorf("%w: term %d, have accepted %d", ErrOldTerm, term, s.term)
	}
	if term == s.term {
		return nil
	}
	if err := s.put(fileTerm, encodeCounter(term)); err != nil {
		return err
	}
	s.term = term
	return nil
}

const (
	// maxTerm is the highest term: node 0's generation is its host's term.
	maxTerm = 1<<32 - 2
	// maxAge is the highest age in seconds that a clock is believed, 68 years:
	// one that is farther ahead must not use up the terms.
	maxAge = 1 << 31
)

// ageLocked returns the age of the cluster in seconds by this machine's clock, 0
// if that cannot be right.
func (s *State) ageLocked() uint64 {
	age := s.now().Unix() - s.id.Created.Unix()
	if age < 0 || age > maxAge {
		return 0
	}
	return uint64(age)
}

// NextTerm begins a new term of this host: higher than its last one, than every
// other it has seen, and than the age of the cluster in seconds. A backup carries
// the time at which the cluster was made but not the terms that came after it, so
// it is the age that keeps a restored host from beginning a term again.
func (s *State) NextTerm() (uint64, error) {
	if s.leases == nil {
		return 0, fmt.Errorf("next term: %w: only the host has terms", ErrRole)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	last := max(s.term, s.leases.Term(), s.ageLocked())
	if last >= maxTerm {
		return 0, fmt.Errorf("next term: %d was the last", last)
	}
	// The plain file first: if the table is lost, the term is not.
	if err := s.acceptTermLocked(last + 1); err != nil {
		return 0, err
	}
	if err := s.leases.setTerm(last + 1); err != nil {
		return 0, err
	}
	return last + 1, nil
}

// Lease returns the node's last lease. ok is false if there is none.
func (s *State) Lease() (l Lease, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l = s.lease
	l.Signed = slices.Clone(l.Signed)
	return l, l.Incarnation.Generation != 0
}

// PutLease stores the node's lease, and its term before it. A lease of the same
// ID with a lower generation is [ErrOldGeneration].
func (s *State) PutLease(l Lease) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.Incarnation.Generation == 0 || l.Incarnation.Node >= addr.FirstReserved {
		return fmt.Errorf("put lease: %s is no incarnation", l.Incarnation)
	}
	if l.Incarnation.Node == s.lease.Incarnation.Node && l.Incarnation.Generation < s.lease.Incarnation.Generation {
		return fmt.Errorf("put lease %s: %w: have %s", l.Incarnation, ErrOldGeneration, s.lease.Incarnation)
	}
	if err := s.acceptTermLocked(l.Term); err != nil {
		return fmt.Errorf("put lease %s: %w", l.Incarnation, err)
	}
	l.Signed = slices.Clone(l.Signed)
	if err := s.put(fileLease, encodeLease(l)); err != nil {
		return err
	}
	s.lease = l
	return nil
}

// Members returns the members that were last stored. The caller owns them.
func (s *State) Members() []Member {
	s.mu.Lock()
	defer s.mu.Unlock()
	return cloneMembers(s.members)
}

// PutMembers replaces the members that are remembered.
func (s *State) PutMembers(members []Member) error {
	if len(members) > maxMembers {
		return fmt.Errorf("put members: %d, want at most %d", len(members), maxMembers)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	members = cloneMembers(members)
	if err := s.put(fileMembers, encodeMembers(members)); err != nil {
		return err
	}
	s.members = members
	return nil
}

func cloneMembers(members []Member) []Member {
	members = slices.Clone(members)
	for i := range members {
		members[i].Addresses = slices.Clone(members[i].Addresses)
	}
	return members
}

// encodeCounter and decodeCounter are the content of the epoch and term files.
func encodeCounter(n uint64) []byte { return mustJSON(n) }

func decodeCounter(b []byte) (n uint64, err error) {
	if err := json.Unmarshal(b, &n); err != nil {
		return 0, damaged("%w", err)
	}
	return n, nil
}

type leaseJSON struct {
	Node       addr.NodeID     `json:"node"`
	Generation addr.Generation `json:"generation"`
	Term       uint64          `json:"term"`
	Epoch      uint64          `json:"epoch"`
	Since      int64           `json:"since"` // nanoseconds since 1970
	Signed     []byte          `json:"signed,omitempty"`
}

func encodeLease(l Lease) []byte {
	return mustJSON(leaseJSON{l.Incarnation.Node, l.Incarnation.Generation, l.Term, l.Epoch, l.Since.UnixNano(), l.Signed})
}

func decodeLease(b []byte) (Lease, error) {
	var j leaseJSON
	if err := json.Unmarshal(b, &j); err != nil {
		return Lease{}, damaged("%w", err)
	}
	if j.Generation == 0 || j.Node >= addr.FirstReserved {
		return Lease{}, damaged("no incarnation")
	}
	incarnation := addr.Incarnation{Node: j.Node, Generation: j.Generation}
	return Lease{incarnation, j.Term, j.Epoch, time.Unix(0, j.Since).UTC(), j.Signed}, nil
}

type memberJSON struct {
	Node       addr.NodeID     `json:"node"`
	Generation addr.Generation `json:"generation"`
	UUID       addr.UUID       `json:"uuid"`
	Epoch      uint64          `json:"epoch"`
	Name       string          `json:"name"`
	Gossip     string          `json:"gossip"`
	Addresses  []string        `json:"addresses"`
}

func encodeMembers(members []Member) []byte {
	list := make([]memberJSON, 0, len(members))
	for _, m := range members {
		list = append(list, memberJSON{m.Incarnation.Node, m.Incarnation.Generation, m.UUID, m.Epoch, m.Name, m.Gossip, m.Addresses})
	}
	return mustJSON(list)
}

func decodeMembers(b []byte) ([]Member, error) {
	var list []memberJSON
	if err := json.Unmarshal(b, &list); err != nil {
		return nil, damaged("%w", err)
	}
	if len(list) > maxMembers {
		return nil, damaged("%d members", len(list))
	}
	members := make([]Member, 0, len(list))
	for _, j := range list {
		incarnation := addr.Incarnation{Node: j.Node, Generation: j.Generation}
		members = append(members, Member{incarnation, j.UUID, j.Epoch, j.Name, j.Gossip, j.Addresses})
	}
	return members, nil
}
