package membership

import (
	"context"
	"errors"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/membership/trust"
)

// An Enrolment is what the host knows of one identity: a UUID that belongs for
// good to the public key that first proved it.
type Enrolment struct {
	UUID   addr.UUID
	Key    trust.Pin // of its public key
	Name   string
	Labels []string      // from the token that it joined with
	Token  trust.TokenID // that it joined with; zero with an operator's CA
	Since  time.Time     // when it joined
	Until  time.Time     // end of its newest certificate
	Serial string        // of that certificate, hexadecimal
	NewKey bool          // an operator has allowed that it comes with another key
	Banned time.Time     // zero: it is not banned
	Reason string        // of the ban, for people
}

var errNotYet = errors.New("not built yet")

// Enrolments returns all identities that the host knows, in order of their names.
// Only the host knows any.
func (a *Agent) Enrolments() []Enrolment { return nil }

// RemoveNode ends the incarnation of a node, named by name, ID or UUID, and
// forgets its identity: it comes back with a token only, as another one. Only
// the host can do it.
func (a *Agent) RemoveNode(ctx context.Context, node string) (Enrolment, error) {
	return Enrolment{}, errNotYet
}

// BanNode ends the incarnation of a node and keeps its identity out until
// [Agent.AllowNode]: on disk, at every member, and with a new gossip key. It
// returns when all of this has happened, or when ctx ends. Only the host can do
// it.
func (a *Agent) BanNode(ctx context.Context, node, reason string) (Enrolment, error) {
	return Enrolment{}, errNotYet
}

// AllowNode lifts a ban. With newKey the next node that joins with a token and
// this name gets the identity, whatever key it has. Only the host can do it.
func (a *Agent) AllowNode(ctx context.Context, node string, newKey bool) (Enrolment, error) {
	return Enrolment{}, errNotYet
}

// RotateCA replaces the cluster's certificate authority: every node first
// trusts both, then has a certificate of the new one, then forgets the old one.
// A node that does not follow is told to rejoin. Tokens made before are void
// afterwards. Only a host without an operator's CA can do it.
func (a *Agent) RotateCA(ctx context.Context) error { return errNotYet }

// Lease returns the signed lease of this node's incarnation, nil while it has
// none. It must not be changed.
func (a *Agent) Lease() []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.view.lease
}

// CheckLease says why signed does not prove that the node with this UUID and
// public key lives as life of this epoch: not signed by the host, of somebody
// else, banned. It may be called from any goroutine.
func (a *Agent) CheckLease(signed []byte, node addr.UUID, key trust.Pin, epoch uint64, life addr.Life) error {
	return nil
}

// An Audit is one event of the audit log. It holds no secret.
type Audit struct {
	Event string // join, rejoin, certificate, remove, ban, allow, ca-rotated, key-rotated, refused-join, incarnation, incarnation-ended
	Node  addr.UUID
	Name  string
	Life  addr.Life
	Token trust.TokenID
	Text  string // what else is to be said: a reason, a serial number
}
