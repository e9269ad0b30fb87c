package membership

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/faults/failpoint"
	"github.com/fabricd/fabricd/membership/control"
	"github.com/fabricd/fabricd/membership/state"
	"github.com/fabricd/fabricd/membership/trust"
	"github.com/fabricd/fabricd/membership/verdict"
)

// An enroller is the host's part that issues certificates and records their
// nodes. Its methods may be called from any goroutine.
type enroller struct {
	a      *Agent
	issues bool // certificates; else an operator's CA does

	// known is replaced as a whole once a change is on disk, so that to read it
	// never waits for one.
	known atomic.Pointer[enrolments]

	mu     sync.Mutex // held while a change is made and written; guards the fields below
	ca     *trust.CA  // nil: an operator's CA issues the certificates
	tokens *trust.TokenStore
	joins  joinRate
}

func newEnroller(a *Agent) (*enroller, error) {
	d := &enroller{a: a}
	var err error
	if b := a.cfg.State.Secret(state.SecretAuthority); b != nil {
		if d.ca, err = trust.LoadCA(b); err != nil {
			return nil, err
		}
		d.issues = true
	}
	if d.tokens, err = trust.DecodeTokenStore(a.cfg.State.Secret(state.SecretTokens)); err != nil {
		return nil, err
	}
	all, err := loadEnrolments(a.cfg.State)
	d.known.Store(&all)
	return d, err
}

// get returns the enrolment of a node; it must not be changed.
func (d *enroller) get(u addr.UUID) *Enrolment { return (*d.known.Load())[u] }

// change makes a change of the enrolments, writes it, and only then lets it be
// seen. d.mu is held.
func (d *enroller) change(f func(all enrolments) error) error {
	all := d.known.Load().clone()
	if err := f(all); err != nil {
		return err
	}
	if err := d.a.cfg.State.PutSecret(state.SecretEnrolments, all.encode()); err != nil {
		return err
	}
	d.known.Store(&all)
	return nil
}

// A joinRate bounds how many identities are enrolled in a minute: by one token, so
// that its holder leaves some to others, and in all.
type joinRate struct {
	minute time.Time
	all    int
	each   map[trust.TokenID]int
}

const (
	joinsPerMinute      = 400
	joinsPerTokenMinute = 200
)

// take counts one more at now. It reports false if there were enough.
func (r *joinRate) take(now time.Time, token trust.TokenID) bool {
	if age := now.Sub(r.minute); age >= time.Minute || age < 0 {
		*r = joinRate{minute: now, each: make(map[trust.TokenID]int)}
	}
	if r.all >= joinsPerMinute || r.each[token] >= joinsPerTokenMinute {
		return false
	}
	r.all++
	r.each[token]++
	return true
}

// store writes the tokens. d.mu is held.
func (d *enroller) store() error {
	return d.a.cfg.State.PutSecret(state.SecretTokens, d.tokens.Encode())
}

// join decides about one node. Everything is on disk before it answers.
func (d *enroller) join(cs tls.ConnectionState, ask control.JoinAsk) (control.JoinGrant, error) {
	grant, e, err := d.enrol(cs, ask)
	if err != nil {
		d.a.log.Warn().Err(err).Str("name", ask.Name).Stringer("token", ask.Token).Msg("join refused")
		d.a.audit(Audit{Event: "join-refused", Name: e.Name, Node: e.UUID, Token: ask.Token, Text: err.Error()})
		if _, coded := errors.AsType[*control.RefusedError](err); !coded {
			err = control.Refusef(control.CodeToken, "%v", err)
		}
		return control.JoinGrant{}, err
	}
	d.a.log.Info().Str("name", e.Name).Stringer("uuid", e.UUID).Stringer("token", ask.Token).Msg("node has joined")
	d.a.audit(Audit{Event: "join", Name: e.Name, Node: e.UUID, Token: ask.Token, Text: "certificate " + e.Serial})
	return grant, nil
}

// enrol is join without its log and audit lines.
func (d *enroller) enrol(cs tls.ConnectionState, ask control.JoinAsk) (grant control.JoinGrant, e Enrolment, err error) {
	if addr.ValidName(ask.Name) {
		e.Name = ask.Name
	}
	key, err := trust.RequestPin(ask.Request)
	if err != nil {
		return grant, e, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ca == nil {
		return grant, e, errors.New("this cluster's certificates come from its operator's CA, not with a token")
	}
	now := d.a.cfg.Now()
	var token trust.TokenRecord
	if ask.Token == (trust.TokenID{}) && d.known.Load().byKey(key) == nil {
		return grant, e, control.Refusef(control.CodeUnknown, "this key is that of no node here: join with a token")
	}
	if ask.Token != (trust.TokenID{}) {
		if token, err = d.tokens.Redeem(ask.Token, ask.Proof, cs, now); err != nil {
			return grant, e, err
		}
	}
	var refused error // by a rule, not by the disk
	again := false    // the node has an identity already
	err = d.change(func(all enrolments) error {
		again = all.byKey(key) != nil
		known, err := d.admit(all, key, ask.Name, token, now)
		if err == nil {
			grant, err = d.issue(known, ask.Request, now)
		}
		if known != nil {
			e = *known
		}
		if err == nil {
			err = d.a.cfg.Faults.Hit(failpoint.TokenRedeemed)
		} else {
			refused = err
		}
		return err
	})
	if err == nil && ask.Token != (trust.TokenID{}) {
		err = d.store()
	}
	if err == nil {
		err = d.a.cfg.Faults.Hit(failpoint.TokenStored)
	}
	if err != nil || again {
		d.tokens.Refund(ask.Token) // of a token that was redeemed; else there is none of that name
	}
	if err != nil && refused == nil {
		err = control.Refusef(control.CodeBusy, "the host cannot store the new node: %v", err)
	}
	return grant, e, err
}

// admit returns the enrolment that belongs to a key: the one that it has, or a new
// one. d.mu is held.
func (d *enroller) admit(all enrolments, key trust.Pin, name string, token trust.TokenRecord, now time.Time) (*Enrolment, error) {
	known := all.byKey(key)
	switch {
	case known != nil && known.IsBanned():
		return known, known.refusal()
	case known != nil && now.Sub(known.issued) < time.Second:
		return known, control.Refusef(control.CodeBusy, "node %q has just got a certificate", known.Name)
	case known != nil: // the same node once more
		return known, nil
	case !addr.ValidNodeName(name):
		return nil, refuseName(name)
	case !d.joins.take(now, token.ID):
		return nil, control.Refusef(control.CodeBusy, "too many nodes have joined in this minute")
	}
	if e := all.byName(name); e != nil {
		return d.takeOver(e, key, token)
	}
	if name == d.a.cfg.Node.Name {
		return nil, control.Refusef(control.CodeName, "the name %q is the host's: choose another one", name)
	}
	if err := d.room(all, now); err != nil {
		return nil, err
	}
	u := state.NewUUID()
	e := &Enrolment{UUID: u, Key: key, Name: name, Labels: token.Labels, Token: token.ID, Since: now}
	all[u] = e
	return e, nil
}

func refuseName(name string) error {
	return control.Refusef(control.CodeName, "the name %q: want 1 to %d letters, digits, '.', '-' or '_', not digits alone, which are an ID",
		name[:min(len(name), addr.MaxName)], addr.MaxNodeName)
}

// takeOver gives an identity to another key, if an operator has allowed that.
// d.mu is held.
func (d *enroller) takeOver(e *Enrolment, key trust.Pin, token trust.TokenRecord) (*Enrolment, error) {
	switch {
	case e.IsBanned():
		return e, e.refusal()
	case !e.NewKey:
		return e, control.Refusef(control.CodeName, "the name %q is that of node %s, which has another key: choose another name, "+
			"or have an operator run `fabricd nodes allow %s --new-key` or `fabricd nodes remove %s`", e.Name, e.UUID, e.Name, e.Name)
	case d.isActive(e.UUID):
		return e, control.Refusef(control.CodeBusy, "node %q lives", e.Name)
	}
	e.Key, e.NewKey, e.Token, e.Labels = key, false, token.ID, token.Labels
	return e, nil
}

// pause is how long an identity waits for its next certificate.
func (d *enroller) pause() time.Duration { return min(d.a.cfg.CertificateValidity/60, time.Minute) }

// room refuses one more identity if there are as many as are allowed.
func (d *enroller) room(all enrolments, now time.Time) error {
	if len(all) >= d.a.cfg.MaxNodes {
		all.forget(now, d.isActive)
	}
	if len(all) >= d.a.cfg.MaxNodes {
		return control.Refusef(control.CodeBusy, "the cluster has %d nodes, as many as max-nodes allows", len(all))
	}
	return nil
}

// issue makes the certificate of an enrolled node, for the key of the request.
// d.mu is held.
func (d *enroller) issue(e *Enrolment, request []byte, now time.Time) (control.JoinGrant, error) {
	own := d.a.cfg.Trust.Identity()
	der, err := d.certify(e, request, now)
	if err != nil {
		return control.JoinGrant{}, err
	}
	return control.JoinGrant{
		Cluster:     own.Cluster,
		Host:        own.Node,
		Node:        e.UUID,
		Certificate: der,
		Keyring:     d.a.cfg.State.Secret(state.SecretKeyring),
		Gossip:      d.a.gossip.Address().String(),
		Roots:       d.roots(),
	}, nil
}

// certify issues a certificate and notes it in the enrolment. d.mu is held.
func (d *enroller) certify(e *Enrolment, request []byte, now time.Time) ([]byte, error) {
	id := trust.Identity{Cluster: d.a.cfg.Trust.Identity().Cluster, Node: e.UUID}
	der, err := d.ca.Issue(request, id, now, d.a.cfg.CertificateValidity)
	if err != nil {
		return nil, err
	}
	issued, err := trust.ParseIssued(der)
	if err != nil {
		return nil, err
	}
	e.Until, e.Serial, e.issued, e.renewed = issued.NotAfter, issued.SerialNumber.Text(16), now, true
	return der, nil
}

// roots returns the cluster's CA certificates, DER.
func (d *enroller) roots() [][]byte { return d.a.cfg.Trust.Credentials().EncodedRoots() }

// isActive reports whether u is the host's or holds an active lease.
func (d *enroller) isActive(u addr.UUID) bool {
	return u == d.a.self.UUID || slices.ContainsFunc(d.a.cfg.State.Leases().All(), func(l verdict.Lease) bool {
		return l.UUID == u && l.State == verdict.LeaseActive
	})
}

// check returns why a node with a certificate for id may not speak with the host.
// With an operator's CA, which issued that certificate, a node is enrolled when it
// is first seen, and with another key when it has got a new one.
func (d *enroller) check(id trust.Identity, name string) error {
	e := d.get(id.Node)
	switch {
	case id.Node == d.a.self.UUID || id.Host: // a host is not enrolled: its certificate of the CA names it one
		return nil
	case e != nil && e.IsBanned():
		return e.refusal()
	case e != nil && e.Key == id.Key:
		return nil
	case e == nil && d.issues:
		return control.Refusef(control.CodeUnknown, "node %s is not enrolled here, it was removed or forgotten: it joins as a new node with an empty --state-dir and a token", id.Node)
	case e != nil && e.Key != (trust.Pin{}) && d.issues:
		return control.Refusef(control.CodeUnknown, "node %q has another key", e.Name)
	}
	return d.meet(id, name)
}

// meet takes note of the key that a node has proved: of one that an operator's CA
// has certified, or that was enrolled before there were keys.
func (d *enroller) meet(id trust.Identity, name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.a.cfg.Now()
	err := d.change(func(all enrolments) error {
		e := all[id.Node]
		if e == nil {
			if err := d.room(all, now); err != nil {
				return err
			}
			if !addr.ValidNodeName(name) || all.byName(name) != nil {
				name = "node-" + id.Node.String()
			}
			e = &Enrolment{UUID: id.Node, Name: name, Since: now}
			all[id.Node] = e
		}
		e.Key, e.Until = id.Key, id.NotAfter
		return nil
	})
	if _, refused := errors.AsType[*control.RefusedError](err); err != nil && !refused {
		err = control.Refusef(control.CodeBusy, "the host cannot store the new node: %v", err)
	}
	return err
}

// vouch returns the host's own knowledge of a node that joins or resumes under a
// name. The name is the node's from then on unless another node has it. A node keeps the name
// that it was enrolled with, also one that no node may take any more.
func (d *enroller) vouch(id trust.Identity, name string) (v verdict.Vouched, err error) {
	if err := d.check(id, name); err != nil {
		return v, err
	}
	e := d.get(id.Node)
	if e == nil { // the host itself
		return verdict.Vouched{Until: id.NotAfter}, nil
	}
	if e.Name != name && addr.ValidName(name) {
		if !addr.ValidNodeName(name) {
			return v, refuseName(name)
		}
		if err := d.rename(id.Node, name); err != nil {
			return v, err
		}
	}
	v = verdict.Vouched{Labels: e.Labels, Until: e.Until}
	if id.NotAfter.After(v.Until) {
		v.Until = id.NotAfter
	}
	return v, nil
}

// rename gives a node the name that it claims now, if no other node has it.
func (d *enroller) rename(node addr.UUID, name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.change(func(all enrolments) error {
		if other := all.byName(name); other != nil || name == d.a.cfg.Node.Name {
			return control.Refusef(control.CodeIdentity, "the name %q is that of another node: choose another one", name)
		}
		e, now := all[node], d.a.cfg.Now()
		switch {
		case e == nil:
		case now.Sub(e.named) < time.Minute: // each is a write, and a line to every member
			return control.Refusef(control.CodeBusy, "node %q has changed its name just now", e.Name)
		default:
			e.Name, e.named = name, now
		}
		return nil
	})
}

// renew answers a node that asks for its next certificate. The session proves its
// identity, the lease table that it lives. It runs on the session's goroutine.
func (d *enroller) renew(id trust.Identity, ask control.Renew) control.Certificate {
	der, e, err := d.nextCertificate(id, ask)
	if err != nil {
		text := err.Error()
		return control.Certificate{Text: text[:min(len(text), control.MaxText)]}
	}
	d.a.log.Info().Str("name", e.Name).Stringer("uuid", e.UUID).Msg("certificate renewed")
	d.a.audit(Audit{Event: "certificate", Node: e.UUID, Name: e.Name, Text: "certificate " + e.Serial})
	d.a.post(func() { d.a.feedHost(verdict.Renewed{UUID: e.UUID, Until: e.Until}) })
	return control.Certificate{Certificate: der, Roots: d.roots()}
}

func (d *enroller) nextCertificate(id trust.Identity, ask control.Renew) (der []byte, e Enrolment, err error) {
	if err := d.check(id, ""); err != nil {
		return nil, e, err
	}
	now := d.a.cfg.Now()
	switch known := d.get(id.Node); { // cheap checks first: members may ask without end
	case !d.issues:
		return nil, e, errNoCA
	case known == nil || now.Sub(known.issued) < d.pause():
		return nil, e, errors.New("the last certificate was issued just now")
	case !d.isActive(id.Node):
		return nil, e, fmt.Errorf("node %s has no lease", id.Node)
	}
	key, err := trust.RequestPin(ask.Request)
	if err != nil {
		return nil, e, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	err = d.change(func(all enrolments) (err error) {
		known := all[id.Node]
		switch {
		case known == nil || now.Sub(known.issued) < d.pause():
			return errors.New("the last certificate was issued just now")
		case key != known.Key:
			return errors.New("the request is for another key than the node's")
		}
		der, err = d.certify(known, ask.Request, now)
		e = *known
		return err
	})
	return der, e, err
}

// reissue returns the host's own credentials with a new certificate.
func (d *enroller) reissue(now time.Time) (trust.Credentials, error) {
	d.mu.Lock()
	ca := d.ca
	d.mu.Unlock()
	if ca == nil {
		return trust.Credentials{}, errNoCA
	}
	return d.a.cfg.Trust.Credentials().Reissue(ca, now, d.a.cfg.CertificateValidity)
}

// nextCA returns the authority that is to follow: the one of a rotation that was
// not completed, or a new one, on disk.
func (d *enroller) nextCA() (*trust.CA, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ca == nil {
		return nil, errNoCA
	}
	if b := d.a.cfg.State.Secret(state.SecretNextAuthority); len(b) > 0 {
		return trust.LoadCA(b)
	}
	next, err := trust.NewCA(d.ca.Cluster(), d.a.cfg.Now())
	if err != nil {
		return nil, err
	}
	encoded, err := next.Encode()
	if err != nil {
		return nil, err
	}
	return next, d.a.cfg.State.PutSecret(state.SecretNextAuthority, encoded)
}

// useCA has the authority issue all certificates from now on, the host's own first.
// All nodes trust it already.
func (d *enroller) useCA(next *trust.CA, roots []*trust.Certificate) error {
	encoded, err := next.Encode()
	if err != nil {
		return err
	}
	own := d.a.cfg.Trust.Credentials()
	first := next.Certificate()
	own.Roots = append([]*trust.Certificate{first}, slices.DeleteFunc(slices.Clone(roots), first.Equal)...)
	creds, err := own.Reissue(next, d.a.cfg.Now(), d.a.cfg.CertificateValidity)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.a.cfg.State.PutSecret(state.SecretAuthority, encoded); err != nil {
		return err
	}
	if err := d.a.cfg.use(creds); err != nil {
		return err
	}
	d.ca = next
	d.tokens.VoidAll() // they name the authority before this one
	if err := d.store(); err != nil {
		return err
	}
	err = d.change(func(all enrolments) error {
		for _, e := range all {
			e.issued, e.renewed = time.Time{}, false
		}
		return nil
	})
	if err != nil {
		return err
	}
	return d.a.cfg.State.PutSecret(state.SecretNextAuthority, nil)
}

// unrenewed returns the nodes that live and have no certificate of the newest CA.
func (d *enroller) unrenewed() (list []addr.UUID) {
	for _, e := range *d.known.Load() {
		if !e.renewed && !e.IsBanned() && d.isActive(e.UUID) {
			list = append(list, e.UUID)
		}
	}
	return list
}

// awaitRenewals waits until every node that lives has a certificate of the newest
// CA, or until they have had time enough for that.
func (a *Agent) awaitRenewals(ctx context.Context) error {
	patient, cancel := context.WithTimeout(ctx, handoutPatience)
	defer cancel()
	var list []addr.UUID
	err := a.await(patient, func() bool {
		list = a.enroller.unrenewed()
		return len(list) == 0
	})
	switch {
	case err == nil, patient.Err() == nil:
		return err
	case ctx.Err() != nil:
		return fmt.Errorf("%d nodes have no certificate of the new CA: %w", len(list), context.Cause(ctx))
	}
	for _, u := range list {
		a.log.Warn().Stringer("uuid", u).Msg("the node has no certificate of the new CA: it has to join again with a token")
	}
	return nil
}
