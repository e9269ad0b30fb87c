package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/fabricd/fabricd/membership/state"
	"github.com/fabricd/fabricd/membership/trust"
)

// maxRotation bounds how long one request may wait for a rotation.
const (
	maxRotation     = 10 * time.Minute
	defaultRotation = 30 * time.Second
)

// Keys are which gossip keys this node holds. It contains no key.
type Keys struct {
	// Versions are those of the keys that it takes, the one that it seals with
	// first. More than one: a rotation is under way, or was not completed.
	Versions []uint32 `json:"versions"`
	// Certificate is the end of this node's certificate.
	Certificate time.Time `json:"certificate_until"`
}

// errRotating reports that a rotation goes on without its caller.
var errRotating = errors.New("the cluster gossips on with the keys that it has, and the next rotation completes this one")

// Keys returns which keys this node holds.
func (d *Daemon) Keys() (Keys, error) {
	live := d.live.get()
	if live.agent == nil {
		return Keys{}, errNotYet
	}
	ring, err := trust.DecodeKeyring(d.state.Secret(state.SecretKeyring))
	if err != nil {
		return Keys{}, err
	}
	return Keys{ring.Versions(), live.store.Identity().NotAfter.UTC()}, nil
}

// RotateKey changes the cluster's gossip key. Only the host can.
func (d *Daemon) RotateKey(ctx context.Context) (Keys, error) {
	_, agent := d.live.engineAndAgent()
	if agent == nil {
		return Keys{}, errNotYet
	}
	if _, err := agent.RotateGossipKey(ctx); err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("%w; %w", err, errRotating)
		}
		return Keys{}, err
	}
	return d.Keys()
}

func (a *admin) keyRoutes(mux *http.ServeMux) {
	a.on(mux, "GET /v1/keys", func(http.ResponseWriter, *http.Request) (any, error) { return a.subject.Keys() })
	a.on(mux, "POST /v1/keys/rotate", forAll(func(_ http.ResponseWriter, r *http.Request) (any, error) {
		k, err := a.subject.RotateKey(r.Context())
		if err == nil {
			a.log.Info().Str("op", "keys").Uints32("versions", k.Versions).Msg("gossip key rotated")
		}
		return k, err
	}))
}

// Keys asks which gossip keys the node holds.
func (c *Client) Keys(ctx context.Context) (Keys, error) { return get[Keys](ctx, c, "keys") }

// RotateKey asks the host to change the cluster's gossip key, and waits at most
// timeout until every node uses it.
func (c *Client) RotateKey(ctx context.Context, timeout time.Duration) (Keys, error) {
	return ask[Keys](ctx, c, http.MethodPost, "keys/rotate?timeout="+timeout.String(), nil)
}
