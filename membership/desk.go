package membership

import (
	"crypto/tls"
	"errors"
	"fmt"
	"sync"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/faults/failpoint"
	"github.com/fabricd/fabricd/membership/control"
	"github.com/fabricd/fabricd/membership/state"
	"github.com/fabricd/fabricd/membership/trust"
)

// A desk is where nodes with a token join: the host's part that issues
// certificates. Its methods may be called from any goroutine.
type desk struct {
	a  *Agent
	ca *trust.CA // nil: an operator's CA issues the certificates

	mu     sync.Mutex // held while a change of tokens is made and written
	tokens *trust.TokenStore
}

func newDesk(a *Agent) (*desk, error) {
	d := &desk{a: a}
	var err error
	if b := a.cfg.State.Secret(state.SecretAuthority); b != nil {
		if d.ca, err = trust.LoadCA(b); err != nil {
			return nil, err
		}
	}
	d.tokens, err = trust.DecodeTokenStore(a.cfg.State.Secret(state.SecretTokens))
	return d, err
}

// store writes the tokens. d.mu is held.
func (d *desk) store() error {
	return d.a.cfg.State.PutSecret(state.SecretTokens, d.tokens.Encode())
}

// join decides about one node. Everything is on disk before it answers.
func (d *desk) join(cs tls.ConnectionState, ask control.JoinAsk) (control.JoinGrant, error) {
	refuse := func(err error) (control.JoinGrant, error) {
		return control.JoinGrant{}, control.Refusef(control.CodeToken, "%v", err)
	}
	if d.ca == nil {
		return refuse(fmt.Errorf("this cluster's certificates come from its operator's CA, not with a token"))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.tokens.Redeem(ask.Token, ask.Proof, cs, d.a.cfg.Faults.Now()); err != nil {
		return refuse(err)
	}
	grant, err := d.issue(ask)
	if err == nil {
		if stored := d.storeRedeemed(); stored != nil {
			err = control.Refusef(control.CodeBusy, "the host cannot store that the token was used: %v", stored)
		}
	}
	if err != nil {
		d.tokens.Refund(ask.Token)
		d.a.log.Warn().Err(err).Str("name", ask.Name).Msg("join refused")
		if _, coded := errors.AsType[*control.RefusedError](err); coded {
			return control.JoinGrant{}, err
		}
		return refuse(err)
	}
	d.a.log.Info().Str("name", ask.Name).Stringer("uuid", ask.UUID).Stringer("token", ask.Token).
		Msg("node has joined with a token")
	return grant, nil
}

// storeRedeemed writes the tokens after one was redeemed.
func (d *desk) storeRedeemed() error {
	if err := d.a.cfg.Faults.Hit(failpoint.DeskRedeemed); err != nil {
		return err
	}
	if err := d.store(); err != nil {
		return err
	}
	return d.a.cfg.Faults.Hit(failpoint.DeskStored)
}

// issue makes the certificate. A token lets its holder join as somebody new,
// never as a node that lives.
func (d *desk) issue(ask control.JoinAsk) (control.JoinGrant, error) {
	own := d.a.cfg.Trust.Identity()
	if taken, life := d.alive(ask.UUID); taken {
		return control.JoinGrant{}, fmt.Errorf("UUID %s is that of node %s, which is alive: "+
			"was a state directory copied?", ask.UUID, life)
	}
	der, err := d.ca.Issue(ask.Request, trust.Identity{Cluster: own.Cluster, Node: ask.UUID}, d.a.cfg.Faults.Now(), d.a.cfg.CertificateValidity)
	if err != nil {
		return control.JoinGrant{}, err
	}
	g := control.JoinGrant{
		Cluster:     own.Cluster,
		Host:        own.Node,
		Certificate: der,
		Keyring:     d.a.cfg.State.Secret(state.SecretKeyring),
		Gossip:      d.a.gossip.Address().String(),
		Roots:       d.roots(),
	}
	return g, nil
}

// roots returns the cluster's CA certificates, DER.
func (d *desk) roots() (roots [][]byte) {
	for _, root := range d.a.cfg.Trust.Credentials().Roots {
		roots = append(roots, root.Raw)
	}
	return roots
}

// alive reports whether u is the host's or holds an active lease.
func (d *desk) alive(u addr.UUID) (bool, addr.Life) {
	if u == d.a.self.UUID {
		return true, d.a.Self().Life
	}
	for _, g := range d.a.cfg.State.Leases().All() {
		if g.UUID == u && g.State == state.Active {
			return true, addr.Life{Node: g.ID, Generation: g.Generation}
		}
	}
	return false, noLife
}

// errNotHost is returned by what only the host can do.
func (a *Agent) errNotHost(what string) error {
	return fmt.Errorf("%s: this node is not the host", what)
}

// CreateToken makes a join token. It is on disk when CreateToken returns. Only
// the host can do it.
func (a *Agent) CreateToken(opts trust.TokenOptions) (trust.Token, error) {
	if a.desk == nil {
		return trust.Token{}, a.errNotHost("create token")
	}
	a.desk.mu.Lock()
	defer a.desk.mu.Unlock()
	t, err := a.desk.tokens.Create(a.cfg.Trust.Identity().Cluster, a.cfg.Trust.Pin(), opts, a.cfg.Faults.Now())
	if err != nil {
		return trust.Token{}, err
	}
	if err := a.desk.store(); err != nil {
		a.desk.tokens.Revoke(t.ID)
		return trust.Token{}, fmt.Errorf("create token: %w", err)
	}
	return t, nil
}

// RevokeToken removes a join token and reports whether there was one. Only the
// host can do it.
func (a *Agent) RevokeToken(id trust.TokenID) (bool, error) {
	if a.desk == nil {
		return false, a.errNotHost("revoke token")
	}
	a.desk.mu.Lock()
	defer a.desk.mu.Unlock()
	if !a.desk.tokens.Revoke(id) {
		return false, nil
	}
	return true, a.desk.store()
}

// Tokens returns the host's join tokens, oldest first; on other nodes none.
func (a *Agent) Tokens() []trust.TokenRecord {
	if a.desk == nil {
		return nil
	}
	return a.desk.tokens.List()
}
