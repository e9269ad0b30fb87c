package membership

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/membership/control"
	"github.com/fabricd/fabricd/membership/trust"
	"github.com/fabricd/fabricd/membership/verdict"
)

// errNotHost is returned by methods that only the host offers.
func (a *Agent) errNotHost(what string) error {
	return fmt.Errorf("%s: this node is not the host", what)
}

// CreateToken makes a join token. It is on disk when CreateToken returns. Only
// the host can do it.
func (a *Agent) CreateToken(opts trust.TokenOptions) (trust.Token, error) {
	d := a.enroller
	if d == nil {
		return trust.Token{}, a.errNotHost("create token")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	t, err := d.tokens.Create(a.cfg.Trust.Identity().Cluster, a.cfg.Trust.Pin(), opts, a.cfg.Now())
	if err != nil {
		return trust.Token{}, err
	}
	if err := d.store(); err != nil {
		d.tokens.Revoke(t.ID)
		return trust.Token{}, fmt.Errorf("create token: %w", err)
	}
	return t, nil
}

// RevokeToken removes a join token and reports whether there was one. Only the
// host can do it.
func (a *Agent) RevokeToken(id trust.TokenID) (bool, error) {
	d := a.enroller
	if d == nil {
		return false, a.errNotHost("revoke token")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.tokens.Revoke(id) {
		return false, nil
	}
	return true, d.store()
}

// Tokens returns the host's join tokens, oldest first; on other nodes none.
func (a *Agent) Tokens() []trust.TokenRecord {
	if a.enroller == nil {
		return nil
	}
	return a.enroller.tokens.List()
}

// Enrolments returns all identities that the host knows, in order of their names.
// Only the host knows any.
func (a *Agent) Enrolments() []Enrolment {
	d := a.enroller
	if d == nil {
		return nil
	}
	return d.known.Load().sorted()
}

// RemoveNode ends the incarnation of a node, named by name, ID or UUID, and
// forgets its identity: it comes back with a token only, as another one. It
// returns when every member has acknowledged the end, or when ctx ends. Only the host
// can do it.
func (a *Agent) RemoveNode(ctx context.Context, node string) (Enrolment, error) {
	e, err := a.change("remove node", node, func(all enrolments, e *Enrolment) { delete(all, e.UUID) })
	if err == nil {
		a.audit(Audit{Event: "remove", Node: e.UUID, Name: e.Name})
		err = a.expel(ctx, e.UUID, verdict.ReasonExpelled, "removed by an operator")
	}
	return e, err
}

// BanNode ends the incarnation of a node and keeps its identity out until
// [Agent.AllowNode]: on disk, at every member, and with a new gossip key, which
// follows. It returns when every member has ended its connections with the node, or
// when ctx ends. To ban again changes the reason. Only the host can do it.
func (a *Agent) BanNode(ctx context.Context, node, reason string) (Enrolment, error) {
	if len(reason) > maxReason {
		return Enrolment{}, fmt.Errorf("ban node: a reason of %d bytes, want at most %d", len(reason), maxReason)
	}
	again := false
	e, err := a.change("ban node", node, func(_ enrolments, e *Enrolment) {
		if again = e.IsBanned(); !again {
			e.Banned = a.cfg.Now().UTC().Truncate(time.Second)
		}
		e.Reason = reason
	})
	if err != nil {
		return e, err
	}
	a.audit(Audit{Event: "ban", Node: e.UUID, Name: e.Name, Text: reason})
	if err := a.expel(ctx, e.UUID, verdict.ReasonBanned, "banned by an operator"); err != nil || again {
		return e, err
	}
	a.wg.Go(func() { // the old key is the banned node's too
		if _, err := a.RotateGossipKey(a.ctx); err != nil && a.ctx.Err() == nil {
			a.log.Error().Err(err).Msg("the gossip key of a banned node is still in use: `fabricd keys rotate` changes it")
		}
	})
	return e, nil
}

// AllowNode lifts a ban. With newKey the next node that joins with a token and
// this name gets the identity, whatever key it has. Only the host can do it.
func (a *Agent) AllowNode(_ context.Context, node string, newKey bool) (Enrolment, error) {
	e, err := a.change("allow node", node, func(_ enrolments, e *Enrolment) {
		e.Banned, e.Reason, e.NewKey = time.Time{}, "", newKey
	})
	if err != nil {
		return e, err
	}
	a.audit(Audit{Event: "allow", Node: e.UUID, Name: e.Name, Text: map[bool]string{true: "with a new key"}[newKey]})
	a.post(a.takeBansOfHost)
	return e, nil
}

// change lets an operator change an enrolment, and writes that.
func (a *Agent) change(what, node string, how func(enrolments, *Enrolment)) (changed Enrolment, err error) {
	d := a.enroller
	if d == nil {
		return changed, a.errNotHost(what)
	}
	living := a.livingWith(node)
	id, byID := addr.ParseNode(node)
	if self := a.cfg.State.Identity(); byID && id == 0 || !byID && node == self.Name || node == self.Node.String() {
		return changed, fmt.Errorf("%s: %q is the host, which can be neither removed nor banned", what, node)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	err = d.change(func(all enrolments) error {
		e := all.named(node, living)
		switch {
		case e == nil && byID:
			return fmt.Errorf("no node lives with the ID %s: name it by its name or its UUID, which `fabricd nodes enrolled` shows", node)
		case e == nil:
			return fmt.Errorf("%w: %q", errNoNode, node)
		}
		how(all, e)
		changed = *e
		return nil
	})
	if err != nil {
		return changed, fmt.Errorf("%s: %w", what, err)
	}
	return changed, nil
}

// Enrolled returns the identity that an operator means by text, as [Agent.BanNode] takes it.
// Only the host knows any.
func (a *Agent) Enrolled(text string) (Enrolment, bool) {
	if a.enroller == nil {
		return Enrolment{}, false
	}
	e := a.enroller.known.Load().named(text, a.livingWith(text))
	if e == nil {
		return Enrolment{}, false
	}
	return *e, true
}

// livingWith returns the UUID of the node that lives with the ID written in text, the
// zero UUID if there is none.
func (a *Agent) livingWith(text string) addr.UUID {
	id, byID := addr.ParseNode(text)
	if !byID {
		return addr.UUID{}
	}
	for _, n := range a.Nodes() {
		if n.Incarnation.Node == id {
			return n.UUID
		}
	}
	return addr.UUID{}
}

// expelWait is the time between two checks whether all members have acknowledged an end.
const expelWait = 10 * time.Millisecond

// expel ends the incarnation of a node, and all that it has with the host, and waits until
// every member has dealt with that.
func (a *Agent) expel(ctx context.Context, node addr.UUID, why Reason, text string) error {
	incarnation, ok := ask(a, func() addr.Incarnation {
		a.takeBansOfHost()
		incarnation, _ := a.host.IncarnationOf(node)
		a.feedHost(verdict.Expel{UUID: node, Reason: why})
		a.cutOff(node, text)
		return incarnation
	})
	if !ok {
		return ErrClosed
	}
	err := a.await(ctx, func() bool {
		n, ok := ask(a, func() int { return a.host.Pending(incarnation) })
		return ok && n == 0
	})
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("the node is out, but not every member has acknowledged its end: %w", err)
	}
	return err
}

// await waits until done reports true. The error is the cause of ctx's end, or ErrClosed.
func (a *Agent) await(ctx context.Context, done func() bool) error {
	look := time.NewTicker(expelWait)
	defer look.Stop()
	for !done() {
		select {
		case <-look.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-a.ctx.Done():
			return ErrClosed
		}
	}
	return nil
}

// cutOff ends every session and lifeline with a node here, once all messages queued
// on them are sent.
func (a *Agent) cutOff(node addr.UUID, text string) {
	for _, s := range a.sessions.open {
		if s.Peer().UUID == node {
			s.Close(text)
		}
	}
	for _, l := range a.lines.All() {
		if l.UUID == node {
			for _, up := range l.connections() {
				up.Close(text)
			}
		}
	}
}

// Lease returns the signed lease of this node's incarnation, nil while it has
// none. It must not be changed.
func (a *Agent) Lease() []byte {
	a.view.mu.Lock()
	defer a.view.mu.Unlock()
	return a.view.lease
}

// CheckLease returns why signed does not prove that the node with this UUID and
// public key lives as incarnation of this epoch: not signed by the host, of another node
// or key, over, banned. It may be called from any goroutine.
func (a *Agent) CheckLease(signed []byte, node addr.UUID, key trust.Pin, epoch uint64, incarnation addr.Incarnation) error {
	if err := a.keptOut(node); err != nil {
		return err
	}
	holder := control.End{UUID: node, Epoch: epoch, Incarnation: incarnation}
	lease, err := control.CheckHolder(a.cfg.Trust, holder, key, signed)
	if err != nil {
		return err
	}
	if err := a.fenced(incarnation); err != nil {
		return err
	}
	return a.outdated(holder, lease)
}

// An Audit is one event of the audit log. It holds no secret.
type Audit struct {
	Event       string // join, join-refused, certificate, remove, ban, allow, ca-rotated, key-rotated, serve-refused
	Node        addr.UUID
	Incarnation addr.Incarnation // of the node; of serve-refused alone: there Text is the rule
	Name        string
	Token       trust.TokenID
	Text        string // details: a reason, a serial number
}

func (a *Agent) audit(e Audit) {
	if a.cfg.Audit != nil {
		a.cfg.Audit(e)
	}
}

var errNoCA = errors.New("the certificates of this cluster come from its operator's CA")
