package control

import (
	"errors"
	"fmt"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/membership/trust"
	"github.com/fabricd/fabricd/membership/verdict"
)

// leasePurpose keeps signed leases apart from every other signed statement.
const leasePurpose = "lease 2"

// A Lease is a grant of the host: this start of this node lives as Incarnation. It names its cluster by
// the certificate of the host that signed it, too.
type Lease struct {
	Cluster     addr.UUID
	UUID        addr.UUID // of the node
	Key         trust.Pin // of the node: a lease is of no use to others
	Epoch       uint64    // of the start of its fabricd
	Incarnation addr.Incarnation
	Term        uint64    // of the host
	Since       time.Time // when the incarnation began, host time
	Name        string    // of the node, at most verdict.MaxName bytes
}

// SignLease returns l signed by the host whose credentials are in store. It is
// at most [verdict.MaxLease] bytes, some 700 with a CA of the cluster's own.
func SignLease(store *trust.Store, l Lease) ([]byte, error) {
	e := encoder{}
	writer(&e).lease(&l)
	if !e.OK() {
		return nil, fmt.Errorf("sign lease of %s: %w", l.Incarnation, ErrTooLarge)
	}
	return store.Sign(leasePurpose, e.Encoded())
}

// VerifyLease returns the lease in signed, which a host of this cluster has
// signed while its certificate was valid. Whether the incarnation goes on it does not
// say.
func VerifyLease(store *trust.Store, signed []byte) (Lease, error) {
	if len(signed) > verdict.MaxLease {
		return Lease{}, fmt.Errorf("lease: %w: %d bytes", trust.ErrTooBig, len(signed))
	}
	message, by, _, err := store.VerifyHost(leasePurpose, signed)
	if err != nil {
		return Lease{}, err
	}
	l, err := parseLease(message)
	if err != nil {
		return Lease{}, err
	}
	if l.Cluster != by.Cluster {
		return Lease{}, fmt.Errorf("lease of cluster %s, signed in cluster %s: %w", l.Cluster, by.Cluster, trust.ErrWrongCluster)
	}
	return l, nil
}

func parseLease(b []byte) (l Lease, err error) {
	d := from(b)
	reader(&d).lease(&l)
	if !d.Whole() {
		return Lease{}, fmt.Errorf("lease: %w", ErrMalformed)
	}
	return l, nil
}

func (c coder) lease(l *Lease) {
	c.uuid(&l.Cluster)
	c.uuid(&l.UUID)
	c.fixed(l.Key[:])
	c.u64(&l.Epoch)
	c.incarnation(&l.Incarnation)
	c.u64(&l.Term)
	c.time(&l.Since)
	c.text(&l.Name, verdict.MaxName)
}

// checkEnd returns the lease that an end of a lifeline has shown, the zero
// Lease if it has no incarnation yet. An end with an incarnation must prove it, and that the
// lease is that of its key.
func checkEnd(store *trust.Store, e End, key trust.Pin, signed []byte) (Lease, error) {
	if e.Incarnation == (addr.Incarnation{}) && len(signed) == 0 {
		return Lease{}, nil
	}
	l, err := CheckHolder(store, e, key, signed)
	if err != nil {
		return Lease{}, Refusef(CodeIdentity, "incarnation %s of node %s: %v", e.Incarnation, e.UUID, err)
	}
	return l, nil
}

// CheckHolder verifies a lease and that it is that of the incarnation of holder, and of the
// public key of its node.
func CheckHolder(store *trust.Store, holder End, key trust.Pin, signed []byte) (Lease, error) {
	l, err := leaseOf(store, holder.UUID, key, signed)
	if err == nil && (l.Incarnation != holder.Incarnation || l.Epoch != holder.Epoch) {
		return Lease{}, fmt.Errorf("it shows the lease of incarnation %s of start %d, not of incarnation %s of start %d",
			l.Incarnation, l.Epoch, holder.Incarnation, holder.Epoch)
	}
	return l, err
}

// leaseOf verifies a lease and that it is that of the node with this UUID and public key.
func leaseOf(store *trust.Store, node addr.UUID, key trust.Pin, signed []byte) (Lease, error) {
	l, err := VerifyLease(store, signed)
	if err != nil {
		return Lease{}, err
	}
	if l.UUID != node {
		return Lease{}, fmt.Errorf("its lease is that of node %s", l.UUID)
	}
	if l.Key != key {
		return Lease{}, errors.New("its lease is that of another key")
	}
	return l, nil
}

// proveJoin keeps only those claims of a Join that its lease proves.
func proveJoin(store *trust.Store, key trust.Pin, m verdict.Join) (verdict.Join, error) {
	if len(m.Lease) == 0 {
		m.Previous, m.Term = addr.Incarnation{}, 0
		return m, nil
	}
	l, err := leaseOf(store, m.UUID, key, m.Lease)
	if err != nil {
		return m, Refusef(CodeIdentity, "JOIN of node %s: %v", m.UUID, err)
	}
	if l.Incarnation != m.Previous {
		return m, Refusef(CodeIdentity, "JOIN of node %s claims incarnation %s with the lease of incarnation %s", m.UUID, m.Previous, l.Incarnation)
	}
	m.Term = min(m.Term, l.Term)
	return m, nil
}

// proveResume is the same for a Resume, whose incarnation must be proved.
func proveResume(store *trust.Store, key trust.Pin, m verdict.Resume) (verdict.Resume, error) {
	l, err := CheckHolder(store, End{UUID: m.UUID, Epoch: m.Epoch, Incarnation: m.Incarnation}, key, m.Lease)
	if err != nil {
		return m, Refusef(CodeIdentity, "RESUME of incarnation %s of node %s: %v", m.Incarnation, m.UUID, err)
	}
	m.Term = min(m.Term, l.Term)
	return m, nil
}

// proveGrant checks at a node that a Grant is for itself, and signed.
func proveGrant(store *trust.Store, self End, m verdict.Grant) error {
	self.Incarnation = m.Incarnation
	l, err := CheckHolder(store, self, store.Identity().Key, m.Lease)
	if err == nil && l.Term != m.Term {
		err = fmt.Errorf("its lease was granted in term %d, not in term %d", l.Term, m.Term)
	}
	if err != nil {
		return Refusef(CodeIdentity, "GRANT of incarnation %s: %v", m.Incarnation, err)
	}
	return nil
}
