package membership

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/membership/control"
	"github.com/fabricd/fabricd/membership/state"
	"github.com/fabricd/fabricd/membership/trust"
)

// Init makes a new cluster: the state directory of its host at dir, with a CA,
// the host's certificate, gossip keys and one join token. The caller closes the
// state. opts.Cluster and opts.Secrets are filled in.
func Init(dir string, opts state.InitOptions, token trust.TokenOptions) (*state.State, trust.Token, error) {
	now := time.Now
	if opts.Now != nil {
		now = opts.Now
	}
	opts.Cluster = state.NewUUID()
	if opts.Node.IsZero() {
		opts.Node = state.NewUUID()
	}
	secrets, t, err := newSecrets(opts.Cluster, opts.Node, token, now())
	if err != nil {
		return nil, trust.Token{}, fmt.Errorf("initialize %s: %w", dir, err)
	}
	opts.Secrets = secrets
	st, err := state.Init(dir, opts)
	return st, t, err
}

// newSecrets makes all that a new host keeps.
func newSecrets(cluster, node addr.UUID, opts trust.TokenOptions, now time.Time) (map[state.SecretName][]byte, trust.Token, error) {
	ca, err := trust.NewCA(cluster, now)
	if err != nil {
		return nil, trust.Token{}, err
	}
	authority, err := ca.Encode()
	if err != nil {
		return nil, trust.Token{}, err
	}
	id := trust.Identity{Cluster: cluster, Node: node, Host: true}
	creds, err := trust.IssueCredentials(ca, id, now, CertificateValidity)
	if err != nil {
		return nil, trust.Token{}, err
	}
	credentials, err := creds.Encode()
	if err != nil {
		return nil, trust.Token{}, err
	}
	tokens := trust.NewTokenStore()
	t, err := tokens.Create(cluster, ca.Pin(), opts, now)
	if err != nil {
		return nil, trust.Token{}, err
	}
	return map[state.SecretName][]byte{
		state.SecretAuthority:   authority,
		state.SecretCredentials: credentials,
		state.SecretKeyring:     trust.NewKeyring().Encode(),
		state.SecretTokens:      tokens.Encode(),
	}, t, nil
}

// NewToken makes a join token of a cluster from the state st of its host, while
// no agent runs on it. The token is on disk when NewToken returns.
func NewToken(st *state.State, opts trust.TokenOptions, now time.Time) (trust.Token, error) {
	authority := st.Secret(state.SecretAuthority)
	if authority == nil {
		return trust.Token{}, errors.New("create token: this directory holds no authority of a cluster")
	}
	ca, err := trust.LoadCA(authority)
	if err != nil {
		return trust.Token{}, err
	}
	tokens, err := trust.DecodeTokenStore(st.Secret(state.SecretTokens))
	if err != nil {
		return trust.Token{}, err
	}
	t, err := tokens.Create(st.Identity().Cluster, ca.Pin(), opts, now)
	if err != nil {
		return trust.Token{}, err
	}
	if err := st.PutSecret(state.SecretTokens, tokens.Encode()); err != nil {
		return trust.Token{}, fmt.Errorf("create token: %w", err)
	}
	return t, nil
}

// askForOtherHosts refuses to start a second host: it asks every seed for its
// identity. One that comes up later is met by gossip, and the terms decide.
func (a *Agent) askForOtherHosts(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, hostTimeout)
	defer cancel()
	type answer struct {
		peer    control.End
		address string
	}
	addresses := a.otherAddresses()
	answers := make(chan answer, len(addresses))
	for _, p := range addresses {
		a.wg.Go(func() {
			up, err := a.dialer.Lifeline(ctx, p, control.Target{}, nil)
			if err != nil {
				answers <- answer{}
				return
			}
			answers <- answer{up.Peer(), p}
			a.release(up)
		})
	}
	var held error
	for range addresses {
		x := <-answers
		if x.peer.Host && (x.peer.UUID != a.self.UUID || x.peer.Epoch != a.self.Epoch) {
			held = fmt.Errorf("node 0 is held by host %s at %s, term %d: a cluster has one host",
				x.peer.UUID, x.address, x.peer.Term)
		}
	}
	a.wg.Wait()
	return held
}

// otherAddresses returns the seeds but our own addresses.
func (a *Agent) otherAddresses() (list []string) {
	for _, p := range a.cfg.Seeds {
		if !slices.Contains(a.cfg.Node.Addresses, p) && !slices.Contains(list, p) {
			list = append(list, p)
		}
	}
	return list
}
