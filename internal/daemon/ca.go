package daemon

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/fabricd/fabricd/membership/trust"
)

// A Root is a certificate of an authority that this node trusts.
type Root struct {
	Subject string    `json:"subject"`
	Key     string    `json:"key"` // hash of its public key, which tokens name
	Since   time.Time `json:"since"`
	Until   time.Time `json:"until"`
}

// Authorities are the authorities that this node trusts, the one that issues first. Two of the
// host's: a rotation is under way.
type Authorities struct {
	Trust string `json:"trust"` // host or operator
	Roots []Root `json:"roots"`
}

// errRotatingCA reports that a rotation goes on without its caller.
var errRotatingCA = errors.New("both authorities are valid meanwhile, and the next rotation completes this one")

// Authorities returns the authorities that this node trusts.
func (d *Daemon) Authorities() (Authorities, error) {
	store := d.live.get().store
	if store == nil {
		return Authorities{}, errNotYet
	}
	all := Authorities{Trust: "host", Roots: []Root{}}
	if d.operator != nil {
		all.Trust = "operator"
	}
	for _, c := range store.Credentials().Roots {
		all.Roots = append(all.Roots, Root{c.Subject.String(), pinText(trust.PinOf(c)), c.NotBefore.UTC(), c.NotAfter.UTC()})
	}
	return all, nil
}

// pinText returns the hash of a key as people compare it.
func pinText(p trust.Pin) string { return hex.EncodeToString(p[:]) }

// RotateCA replaces the cluster's authority. Only the host can.
func (d *Daemon) RotateCA(ctx context.Context) (Authorities, error) {
	if err := d.hostOnly(); err != nil {
		return Authorities{}, err
	}
	_, agent := d.live.engineAndAgent()
	if err := agent.RotateCA(ctx); err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("%w; %w", err, errRotatingCA)
		}
		return Authorities{}, err
	}
	return d.Authorities()
}

func (a *admin) authorityRoutes(mux *http.ServeMux) {
	a.on(mux, "GET /v1/ca", func(http.ResponseWriter, *http.Request) (any, error) { return a.subject.Authorities() })
	a.on(mux, "POST /v1/ca/rotate", forAll(taking(func(_ http.ResponseWriter, r *http.Request, _ struct{}) (any, error) {
		all, err := a.subject.RotateCA(r.Context())
		if err == nil {
			a.log.Warn().Str("op", "ca").Msg("the cluster's certificate authority was rotated")
		}
		return all, err
	})))
}

// Authorities asks which authorities the node trusts.
func (c *Client) Authorities(ctx context.Context) (Authorities, error) {
	return get[Authorities](ctx, c, "ca")
}

// RotateCA asks the host to replace the cluster's authority, and waits at most
// timeout until every node trusts only the new one.
func (c *Client) RotateCA(ctx context.Context, timeout time.Duration) (Authorities, error) {
	q := url.Values{"timeout": {timeout.String()}}
	return post[Authorities](ctx, c, "ca/rotate?"+q.Encode(), struct{}{})
}
