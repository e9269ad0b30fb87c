package membership

import (
	"errors"
	"fmt"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/membership/control"
	"github.com/fabricd/fabricd/membership/state"
	"github.com/fabricd/fabricd/membership/trust"
	"github.com/fabricd/fabricd/membership/verdict"
)

// signed returns the grant of our host with its lease, which is on disk. The lease
// is that of the key that the session has proved.
func (a *Agent) signed(g verdict.Grant, id verdict.SessionID) (verdict.Grant, error) {
	key := a.cfg.Trust.Identity().Key
	if id != verdict.LocalSession {
		s := a.sessions.open[id]
		if s == nil {
			return g, errors.New("its session has ended")
		}
		key = s.Identity().Key
	}
	var err error
	g.Lease, err = control.SignLease(a.cfg.Trust, control.Lease{
		Cluster:     a.cfg.State.Identity().Cluster,
		UUID:        g.UUID,
		Key:         key,
		Epoch:       g.Epoch,
		Incarnation: g.Incarnation,
		Term:        g.Term,
		Since:       g.Since,
		Name:        g.Name,
	})
	return g, err
}

// lastLease returns the lease of this node's last start, the zero Lease if
// there is none that still proves anything: the host would not accept
// it, and knows this node by its UUID.
func (a *Agent) lastLease() state.Lease {
	lease, ok := a.cfg.State.Lease()
	if !ok || a.cfg.host() {
		return state.Lease{}
	}
	proved, err := control.VerifyLease(a.cfg.Trust, lease.Signed)
	if err == nil && proved.Key != a.cfg.Trust.Identity().Key {
		err = errors.New("it is that of another key")
	}
	if err == nil && (proved.UUID != a.self.UUID || proved.Incarnation != lease.Incarnation) {
		err = fmt.Errorf("it is signed for incarnation %s of node %s", proved.Incarnation, proved.UUID)
	}
	if err != nil {
		a.log.Warn().Err(err).Stringer("incarnation", lease.Incarnation).Msg("the remembered lease proves nothing; this node joins without it")
		return state.Lease{}
	}
	return lease
}

// admit refuses incarnations that are over, leases that are out of date, and every node
// once this one has left. It runs on the server's goroutines.
func (a *Agent) admit(proto string, h control.Hello, id trust.Identity, lease control.Lease) error {
	if a.hasDeparted() {
		return control.Refusef(control.CodeStopped, "this node leaves the cluster")
	}
	if err := a.keptOut(id.Node); err != nil {
		return err
	}
	a.takeClaim(lease)
	if a.enroller != nil {
		if err := a.enroller.check(id, ""); err != nil {
			return err
		}
	}
	if proto != control.ProtoLifeline || h.From.Incarnation == noIncarnation {
		return nil // a control session serves to learn the current state
	}
	if err := a.fenced(h.From.Incarnation); err != nil {
		return err
	}
	return a.outdated(h.From, lease)
}

// takeClaim shows our host a lease that a node has proved without asking for an incarnation:
// the host's table may be older than the lease, and may not know the node at all.
func (a *Agent) takeClaim(l control.Lease) {
	if a.host != nil && l.UUID != a.self.UUID && l.Incarnation != noIncarnation {
		a.post(func() { a.feedHost(verdict.Claim{UUID: l.UUID, Incarnation: l.Incarnation, Term: l.Term}) })
	}
}

// fenced refuses an incarnation that this node has reported as over.
func (a *Agent) fenced(l addr.Incarnation) error {
	a.view.mu.Lock()
	defer a.view.mu.Unlock()
	if over := a.view.over[l.Node]; over >= l.Generation {
		return control.Refusef(control.CodeFenced, "incarnation %s is over", l)
	}
	return nil
}

// outdated refuses a lease of an earlier term that the host's table does not
// bear out: the ID may be another node's by now. A node that has not resumed
// yet after a restart of the host is in the table all the same. Without a host
// the signature alone counts.
func (a *Agent) outdated(peer control.End, lease control.Lease) error {
	a.view.mu.Lock()
	defer a.view.mu.Unlock()
	if lease.Term >= a.view.term || peer.Incarnation == noIncarnation || a.view.hostText != verdict.HostReachable {
		return nil
	}
	for _, n := range a.view.nodes {
		if n.Incarnation == peer.Incarnation && n.UUID == peer.UUID && n.Epoch == peer.Epoch {
			return nil
		}
	}
	return control.Refusef(control.CodeFenced, "the lease of incarnation %s is of term %d; the host of term %d does not know that incarnation",
		peer.Incarnation, lease.Term, a.view.term)
}
