package membership

import (
	"bytes"
	"crypto"
	"errors"
	"fmt"
	"time"

	"github.com/fabricd/fabricd/membership/control"
	"github.com/fabricd/fabricd/membership/state"
	"github.com/fabricd/fabricd/membership/trust"
	"github.com/fabricd/fabricd/membership/verdict"
)

// CertificateValidity is how long a certificate is valid, unless the host is
// configured otherwise: from [MinCertificateValidity] to [trust.CAValidity].
const (
	CertificateValidity    = 24 * time.Hour
	MinCertificateValidity = time.Minute
)

// LoadTrust returns the credentials in a state directory. If a host's own
// certificate expired while it did not run, it issues itself the next one, which
// its Agent replaces soon if the configuration wants another validity.
func LoadTrust(st *state.State, now func() time.Time) (*trust.Store, error) {
	creds, err := trust.ParseCredentials(st.Secret(state.SecretCredentials))
	if err != nil {
		return nil, fmt.Errorf("state directory %s: %w", st.Dir(), err)
	}
	store, err := trust.NewStore(creds, now)
	if errors.Is(err, trust.ErrExpired) && st.Secret(state.SecretAuthority) != nil {
		store, err = reissue(st, creds, now)
	}
	if errors.Is(err, trust.ErrExpired) {
		err = fmt.Errorf("%w: it was not renewed in time, since this node was off; "+
			"the host issues the next one to its key", err)
	}
	if err != nil {
		return nil, fmt.Errorf("state directory %s: %w", st.Dir(), err)
	}
	return store, nil
}

// reissue replaces the host's expired certificate.
func reissue(st *state.State, old trust.Credentials, now func() time.Time) (*trust.Store, error) {
	ca, err := trust.LoadCA(st.Secret(state.SecretAuthority))
	if err != nil {
		return nil, err
	}
	creds, err := old.Reissue(ca, now(), CertificateValidity)
	if err != nil {
		return nil, err
	}
	store, err := trust.NewStore(creds, now)
	if err != nil {
		return nil, err
	}
	return store, putCredentials(st, creds)
}

func putCredentials(st *state.State, creds trust.Credentials) error {
	encoded, err := creds.Encode()
	if err != nil {
		return err
	}
	return st.PutSecret(state.SecretCredentials, encoded)
}

// use makes creds this node's credentials, once they are on disk.
func (c *Config) use(creds trust.Credentials) error {
	if err := putCredentials(c.State, creds); err != nil {
		return err
	}
	return c.Trust.Replace(creds)
}

// A renewal keeps this node's certificate young. The loop owns it.
//
//	2/3 of its incarnation are over --> node: RENEW to the host, CERTIFICATE back
//	                             host: issues its own
//	                         --> on disk --> in the store --> and so on
//
// Only handshakes use certificates, so nothing that is open notices.
type renewal struct {
	ours bool          // the certificate is the host's work; an operator renews its own
	at   time.Time     // of the wall clock, when to ask first
	try  time.Time     // when to ask again
	key  crypto.Signer // of the newest request; nil: none is under way
}

// beginRenewal finds out when the certificate is to be renewed first.
func (a *Agent) beginRenewal() {
	creds := a.cfg.Trust.Credentials()
	stored, err := trust.ParseCredentials(a.cfg.State.Secret(state.SecretCredentials))
	a.renewal.ours = err == nil && len(stored.Chain) > 0 && bytes.Equal(stored.Chain[0].Raw, creds.Chain[0].Raw)
	a.renewal.at = a.renewAt(creds)
}

// renewAt returns when the certificate is old: by its own incarnation, and on the host,
// which knows how long it should be, by that.
func (a *Agent) renewAt(creds trust.Credentials) time.Time {
	at := creds.RenewAt()
	if limit := creds.Issued().Add(a.cfg.CertificateValidity / 3 * 2); a.host != nil && limit.Before(at) {
		return limit
	}
	return at
}

// renewRetry is how long an unanswered request waits for the next one.
func renewRetry(creds trust.Credentials) time.Duration {
	leaf := creds.Chain[0]
	return min(max(leaf.NotAfter.Sub(leaf.NotBefore)/30, time.Second), time.Hour)
}

// maintainCertificate renews the certificate when it is due.
func (a *Agent) maintainCertificate(now time.Time) {
	wall := a.cfg.Now()
	if !a.renewal.ours || now.Before(a.renewal.try) || wall.Before(a.renewal.at) {
		return
	}
	a.renewal.try = now.Add(renewRetry(a.cfg.Trust.Credentials()))
	if a.host == nil {
		a.askForCertificate()
		return
	}
	a.takeCredentials(a.enroller.reissue(wall))
}

func (a *Agent) askForCertificate() {
	id, ok := a.member.Session()
	s := a.sessions.open[id]
	if !ok || s == nil {
		return
	}
	key := a.cfg.Trust.Credentials().Key // for good: the identity belongs to it
	request, err := trust.RequestFor(key)
	if err != nil {
		a.log.Error().Err(err).Msg("certificate is not renewed")
		return
	}
	a.renewal.key = key
	_ = s.Send(control.Renew{Request: request}) // the end of a session is handled elsewhere; we ask again
}

// takeCertificate makes use of the host's answer.
func (a *Agent) takeCertificate(c control.Certificate) {
	key := a.renewal.key
	switch {
	case key == nil:
		return
	case len(c.Certificate) == 0:
		a.log.Warn().Str("reason", c.Text).Msg("the host does not renew this node's certificate")
		return
	}
	creds, err := trust.NewCredentials(key, c.Certificate, c.Roots, a.cfg.Now())
	a.takeCredentials(creds, err)
}

// takeCredentials uses new credentials from now on, once they are on disk.
func (a *Agent) takeCredentials(creds trust.Credentials, err error) {
	var id trust.Identity
	if err == nil {
		id, err = creds.Identity()
	}
	if own := a.cfg.Trust.Identity(); err == nil && !id.Same(own) {
		err = fmt.Errorf("the new certificate is for %s, want %s", id, own)
	}
	if err == nil {
		err = a.cfg.use(creds)
	}
	if err != nil {
		a.log.Error().Err(err).Msg("certificate is not renewed")
		return
	}
	a.renewal.key, a.renewal.at, a.renewal.try = nil, a.renewAt(creds), time.Time{}
	if a.host != nil {
		a.feedHost(verdict.Renewed{UUID: a.self.UUID, Until: id.NotAfter})
	}
	a.log.Info().Time("until", id.NotAfter).Msg("certificate renewed")
}
