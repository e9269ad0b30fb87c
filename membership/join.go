package membership

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/faults/failpoint"
	"github.com/fabricd/fabricd/internal/wait"
	"github.com/fabricd/fabricd/membership/control"
	"github.com/fabricd/fabricd/membership/state"
	"github.com/fabricd/fabricd/membership/trust"
)

// joinRetry is the pause between two rounds of looking for the host.
const joinRetry = time.Second

// A JoinConfig describes how a node without a certificate joins its cluster.
type JoinConfig struct {
	State     *state.State // of a plain node; see state.Prepare
	Token     trust.Token
	Addresses []string // data addresses, "host:port", one of them the host's
	// Dial opens a TCP connection. Nil: the system's.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// Faults are those of this node; its wall clock is theirs. Nil: none.
	Faults *failpoint.Node
	// Status is called with a sentence about the reason why Join waits; may be nil.
	Status func(text string)
	Log    zerolog.Logger
}

// ErrName is in the error of [Join] if it is this node's name that the host refuses:
// it is no name, or that of another node.
var ErrName = errors.New("another name is needed")

// Join gets this node its certificate, the cluster's CA and the gossip keys,
// and stores them in the state directory. While no host answers it tries again
// and reports it by Status. It fails when the host refuses the token, when the
// host is not the one that the token names, when the state directory cannot be
// written, or when ctx ends; the error then has the result of the last attempt.
//
// A node that already belongs to the token's cluster is left as it is, unless its
// certificate has expired: then it gets the next one by proving its key, for which
// it needs no token.
func Join(ctx context.Context, c JoinConfig) error {
	if !c.Token.Cluster.IsZero() {
		if err := c.State.CheckCluster(c.Token.Cluster); err != nil {
			return fmt.Errorf("join: %w", err)
		}
	}
	if c.State.Joined() {
		if !c.expired() {
			return nil
		}
		c.Addresses = slices.Concat(c.Addresses, c.lastHost())
	}
	if len(c.Addresses) == 0 {
		return errors.New("join: no address of a host is given")
	}
	if c.Dial == nil {
		c.Dial = dialTCP
	}
	if c.Status == nil {
		c.Status = func(string) {}
	}
	for {
		met, err := c.round(ctx)
		if err == nil || met {
			return err
		}
		if ctx.Err() != nil {
			return fmt.Errorf("join: %w; last: %w", context.Cause(ctx), err)
		}
		c.Status("waiting for the host: " + oneLine(err))
		if !wait.For(ctx.Done(), joinRetry) {
			return fmt.Errorf("join: %w; last: %w", context.Cause(ctx), err)
		}
	}
}

// round tries every address once. final reports that trying again cannot help.
func (c *JoinConfig) round(ctx context.Context) (final bool, err error) {
	var errs []error
	for _, address := range c.Addresses {
		err := c.once(ctx, address)
		if err == nil {
			return true, nil
		}
		if refused, ok := errors.AsType[*control.RefusedError](err); ok && refused.Code == control.CodeName {
			err = fmt.Errorf("%w: %w", ErrName, err)
		}
		if errors.Is(err, trust.ErrNotHost) {
			err = fmt.Errorf("this is a member, not the host; join wants the host's address (%w)", trust.ErrNotHost)
		}
		err = fmt.Errorf("join at %s: %w", address, err)
		if isFinal(err) {
			return true, err
		}
		errs = append(errs, err)
	}
	return false, errors.Join(errs...)
}

// isFinal reports whether an error is final rather than temporary.
func isFinal(err error) bool {
	var refused *control.RefusedError
	var file *state.FileError
	switch {
	case errors.As(err, &refused):
		return refused.Code != control.CodeRole && refused.Code != control.CodeBusy
	case errors.As(err, &file):
		return true
	}
	return errors.Is(err, trust.ErrPin) || errors.Is(err, trust.ErrWrongCluster) ||
		errors.Is(err, trust.ErrWrongCA) || errors.Is(err, errUnusable)
}

// errUnusable marks an answer, or a directory, that no retry improves.
var errUnusable = errors.New("the answer is unusable")

// expired reports whether this node's certificate is one that the host has issued
// and that is not valid any more.
func (c *JoinConfig) expired() bool {
	creds, err := trust.ParseCredentials(c.State.Secret(state.SecretCredentials))
	if err != nil || len(creds.Chain) == 0 {
		return false
	}
	_, err = creds.Check(c.Faults.Now())
	return errors.Is(err, trust.ErrExpired)
}

// lastHost returns where the host was when this node last ran.
func (c *JoinConfig) lastHost() (list []string) {
	for _, m := range c.State.Members() {
		if m.Incarnation.Node == addr.Host {
			list = append(list, m.Addresses...)
		}
	}
	return list
}

// key returns the key to which this node's identity belongs: that of its
// certificate, or a new one that is on disk before a peer sees it, so that to
// ask again is to ask as the same node.
func (c *JoinConfig) key() (crypto.Signer, error) {
	if creds, err := trust.ParseCredentials(c.State.Secret(state.SecretCredentials)); err == nil {
		return creds.Key, nil
	}
	if b := c.State.Secret(state.SecretKey); len(b) > 0 {
		return trust.DecodeKey(b)
	}
	key, err := trust.NewKey()
	if err != nil {
		return nil, err
	}
	encoded, err := trust.EncodeKey(key)
	if err != nil {
		return nil, err
	}
	return key, c.State.PutSecret(state.SecretKey, encoded)
}

// ask asks the host at one address: with the token, or if this node has joined
// before, by its key.
func (c *JoinConfig) ask(ctx context.Context, address string, key crypto.Signer) (control.JoinGrant, error) {
	request, err := trust.RequestFor(key)
	if err != nil {
		return control.JoinGrant{}, err
	}
	ask := control.JoinAsk{Name: c.State.Identity().Name, Request: request}
	if !c.State.Joined() {
		return control.Ask(ctx, c.Dial, address, c.Token, c.Faults.Now, ask)
	}
	creds, err := trust.ParseCredentials(c.State.Secret(state.SecretCredentials))
	if err != nil {
		return control.JoinGrant{}, err
	}
	grant, err := control.AskAgain(ctx, c.Dial, address, creds, c.Faults.Now, ask)
	refused, ok := errors.AsType[*control.RefusedError](err)
	if ok && refused.Code == control.CodeUnknown && !c.Token.Cluster.IsZero() {
		return control.Ask(ctx, c.Dial, address, c.Token, c.Faults.Now, ask)
	}
	return grant, err
}

// once asks at one address and stores the grant.
func (c *JoinConfig) once(ctx context.Context, address string) error {
	key, err := c.key()
	if err != nil {
		return fmt.Errorf("%w: %w", errUnusable, err)
	}
	_ = c.Faults.Hit(failpoint.JoinAsked)
	grant, err := c.ask(ctx, address, key)
	if err == nil {
		err = c.Faults.Hit(failpoint.JoinAnswered)
	}
	if err != nil {
		return err
	}
	creds, err := trust.NewCredentials(key, grant.Certificate, grant.Roots, c.Faults.Now())
	if err != nil {
		return fmt.Errorf("%w: %w", errUnusable, err)
	}
	got, err := creds.Identity()
	if err != nil || got.Node != grant.Node || got.Cluster != grant.Cluster || got.Host {
		return fmt.Errorf("%w: the certificate is for %s", errUnusable, got)
	}
	if _, err := trust.DecodeKeyring(grant.Keyring); err != nil {
		return fmt.Errorf("%w: %w", errUnusable, err)
	}
	encoded, err := creds.Encode()
	if err != nil {
		return fmt.Errorf("%w: %w", errUnusable, err)
	}
	if !c.Token.Cluster.IsZero() && grant.Cluster != c.Token.Cluster {
		return fmt.Errorf("%w: it is of cluster %s", errUnusable, grant.Cluster)
	}
	err = c.State.Join(state.Joined{Cluster: grant.Cluster, Node: grant.Node, Secrets: map[state.SecretName][]byte{
		state.SecretCredentials: encoded,
		state.SecretKeyring:     grant.Keyring,
	}})
	if err != nil {
		return fmt.Errorf("%w: %w", errUnusable, err)
	}
	members := []state.Member{{UUID: grant.Host, Gossip: grant.Gossip, Addresses: []string{address}}}
	if err := c.State.PutMembers(members); err != nil {
		c.Log.Warn().Err(err).Msg("the host's address is not remembered")
	}
	return nil
}
