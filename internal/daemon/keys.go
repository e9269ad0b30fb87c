package daemon

import (
	"context"
	"encoding/json"
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

// Keys says which gossip keys this node holds. It contains no key.
type Keys struct {
	// Versions are those of the keys that it takes, the one that it seals with
	// first. More than one: a rotation is under way, or was not completed.
	Versions []uint32 `json:"versions"`
	// Certificate is the end of this node's certificate.
	Certificate time.Time `json:"certificate_until"`
}

// errRotating says that a rotation goes on without its caller.
var errRotating = errors.New("the cluster gossips on with the keys that it has, and the next rotation completes this one")

// Keys returns which keys this node holds.
func (d *Daemon) Keys() (Keys, error) {
	d.mu.Lock()
	agent, store := d.agent, d.store
	d.mu.Unlock()
	if agent == nil {
		return Keys{}, errNotYet
	}
	ring, err := trust.DecodeKeyring(d.state.Secret(state.SecretKeyring))
	if err != nil {
		return Keys{}, err
	}
	return Keys{ring.Versions(), store.Identity().NotAfter.UTC()}, nil
}

// RotateKey changes the cluster's gossip key. Only the host can.
func (d *Daemon) RotateKey(ctx context.Context) (Keys, error) {
	_, agent := d.rooms()
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

func (a *admin) keys(w http.ResponseWriter, r *http.Request) {
	k, err := a.subject.Keys()
	if err != nil {
		a.refuse(w, http.StatusConflict, "%v", err)
		return
	}
	a.answer(w, http.StatusOK, k)
}

func (a *admin) rotate(w http.ResponseWriter, r *http.Request) {
	timeout, ok := a.timeout(w, r)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), timeout)
	defer cancel()
	k, err := a.subject.RotateKey(ctx)
	switch {
	case err == nil:
		a.log.Info().Str("op", "keys").Uints32("versions", k.Versions).Msg("gossip key rotated")
		a.answer(w, http.StatusOK, k)
	case errors.Is(err, context.DeadlineExceeded):
		a.refuse(w, http.StatusGatewayTimeout, "%v", err)
	default:
		a.refuse(w, http.StatusConflict, "%v", err)
	}
}

// Keys asks which gossip keys the node holds.
func (c *Client) Keys(ctx context.Context) (Keys, error) { return get[Keys](ctx, c, "keys") }

// RotateKey asks the host to change the cluster's gossip key, and waits at most
// timeout until every node uses it.
func (c *Client) RotateKey(ctx context.Context, timeout time.Duration) (Keys, error) {
	var k Keys
	text, err := c.do(ctx, http.MethodPost, "keys/rotate?timeout="+timeout.String(), nil)
	if err != nil {
		return k, err
	}
	return k, json.Unmarshal(text, &k)
}
