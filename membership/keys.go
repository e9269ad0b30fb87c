package membership

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/fabricd/fabricd/membership/control"
	"github.com/fabricd/fabricd/membership/state"
	"github.com/fabricd/fabricd/membership/trust"
	"github.com/fabricd/fabricd/membership/verdict"
)

// keys are the gossip keys as the host hands them out. The loop owns them.
type keys struct {
	handout
	ring []byte // encoded
}

// handouts are what the host gives to every node, and changes.
type handouts struct {
	keys     keys
	roots    roots
	changing chan struct{} // capacity 1: full while a rotation waits for the nodes
}

// takeRotation lets one rotation of keys or of the CA begin at a time.
func (a *Agent) takeRotation(what string) (release func(), err error) {
	if a.enroller == nil {
		return nil, a.errNotHost(what)
	}
	select {
	case a.handouts.changing <- struct{}{}:
		return func() { <-a.handouts.changing }, nil
	default:
		return nil, fmt.Errorf("%s: another rotation is under way", what)
	}
}

// RotateGossipKey changes the key that seals all gossip, and returns the new
// key's version. Every node in the table first holds the new key, then uses it,
// then forgets the old one. Each step waits until all of them have it on disk and
// in use; one that does not confirm in time is cut off and gets the keys when it
// comes back, so that no node can keep the others from changing theirs.
//
// When ctx ends before, the cluster gossips on with the keys it has, and the next
// call completes this rotation instead of beginning one. Only the host can do
// it, once at a time.
func (a *Agent) RotateGossipKey(ctx context.Context) (version uint32, err error) {
	release, err := a.takeRotation("rotate gossip key")
	if err != nil {
		return 0, err
	}
	defer release()
	ring, err := trust.DecodeKeyring(a.cfg.State.Secret(state.SecretKeyring))
	if err == nil {
		version, err = a.rotate(ctx, ring)
	}
	if err != nil {
		return 0, fmt.Errorf("rotate gossip key: %w", err)
	}
	a.log.Info().Uint32("version", version).Msg("gossip key rotated")
	a.audit(Audit{Event: "key-rotated", Text: fmt.Sprint("gossip key ", version)})
	return version, nil
}

func (a *Agent) rotate(ctx context.Context, ring trust.Keyring) (version uint32, err error) {
	if len(ring.Versions()) == 1 {
		next, err := ring.Next()
		if err != nil {
			return 0, err
		}
		if ring, err = ring.Install(next); err != nil {
			return 0, err
		}
	}
	if err := a.distribute(ctx, ring); err != nil {
		return 0, err
	}
	version = slices.Max(ring.Versions())
	if ring, err = ring.Use(version); err != nil {
		return 0, err
	}
	if err := a.distribute(ctx, ring); err != nil {
		return 0, err
	}
	for _, old := range ring.Versions()[1:] {
		if ring, err = ring.Remove(old); err != nil {
			return 0, err
		}
	}
	return version, a.distribute(ctx, ring)
}

// distribute sends a keyring to every node.
func (a *Agent) distribute(ctx context.Context, ring trust.Keyring) error {
	encoded := ring.Encode()
	if err := a.cfg.State.PutSecret(state.SecretKeyring, encoded); err != nil {
		return err
	}
	if err := a.gossip.SetKeys(ring.Keys()); err != nil {
		return err
	}
	if err := a.handOut(ctx, &a.handouts.keys.handout, func() { a.handouts.keys.ring = encoded }); err != nil {
		return fmt.Errorf("%s: %w", ring, err)
	}
	return nil
}

// sendKeys sends the keys to one session.
func (a *Agent) sendKeys(id verdict.SessionID) {
	if s := a.sessions.open[id]; s != nil {
		_ = s.Send(control.Keys{Seq: a.handouts.keys.seq, Keyring: a.handouts.keys.ring}) // a new session gets them anew
	}
}

// takeKeys uses the keys that the host gives, once they are on disk.
func (a *Agent) takeKeys(s *control.Session, k control.Keys) {
	ring, err := trust.DecodeKeyring(k.Keyring)
	if err == nil && !bytes.Equal(a.cfg.State.Secret(state.SecretKeyring), k.Keyring) {
		err = a.cfg.State.PutSecret(state.SecretKeyring, k.Keyring)
		a.log.Info().Stringer("keys", ring).Msg("the host has changed the gossip keys")
	}
	if err == nil {
		err = a.gossip.SetKeys(ring.Keys())
	}
	if err != nil {
		a.log.Error().Err(err).Msg("gossip keys are not changed")
		return // the host repeats them
	}
	_ = s.Send(control.KeysHeld{Seq: k.Seq}) // as for every answer: a new session asks anew
}

// roots are the cluster's CA certificates as the host hands them out. The loop owns
// them.
type roots struct {
	handout
	renew bool // every node is to ask for a new certificate
}

// sendRoots sends the CA certificates to one session.
func (a *Agent) sendRoots(id verdict.SessionID) {
	if s := a.sessions.open[id]; s != nil && a.handouts.roots.seq > 0 {
		_ = s.Send(control.Roots{Seq: a.handouts.roots.seq, Roots: a.enroller.roots(), Renew: a.handouts.roots.renew}) // as for keys
	}
}

// takeRoots trusts the CA certificates that the host gives, once they are on disk.
func (a *Agent) takeRoots(s *control.Session, r control.Roots) {
	if !a.renewal.ours {
		return // an operator's files define the trusted CAs
	}
	creds := a.cfg.Trust.Credentials()
	leaf := creds.Chain[0]
	next, err := trust.NewCredentials(creds.Key, leaf.Raw, r.Roots, a.cfg.Now())
	if err == nil {
		err = a.cfg.use(next)
	}
	if err != nil {
		a.log.Error().Err(err).Msg("the CA certificates that the host gives are not taken")
		return
	}
	_ = s.Send(control.RootsHeld{Seq: r.Seq}) // as for keys
	if r.Renew {
		a.askForCertificate()
	}
}

// RotateCA replaces the cluster's certificate authority: every node first trusts
// both, then has a certificate and a lease of the new one, then forgets the old one.
// Open connections stay open. A node that does not follow in time is cut off; if it
// misses the last step it has to join again with a token. Tokens made before are
// void afterwards. When ctx ends before, both are valid, and the next call completes
// this one. Only a host without an operator's CA can do it.
func (a *Agent) RotateCA(ctx context.Context) error {
	release, err := a.takeRotation("rotate CA")
	if err != nil {
		return err
	}
	defer release()
	if err := a.rotateCA(ctx); err != nil {
		return fmt.Errorf("rotate CA: %w", err)
	}
	a.log.Info().Msg("certificate authority rotated")
	a.audit(Audit{Event: "ca-rotated", Text: "certificate " + a.cfg.Trust.Credentials().Serial()})
	return nil
}

func (a *Agent) rotateCA(ctx context.Context) error {
	next, err := a.enroller.nextCA()
	if err != nil {
		return err
	}
	old := a.cfg.Trust.Credentials().Roots
	both := slices.Concat(old, []*trust.Certificate{next.Certificate()})
	if slices.ContainsFunc(old, next.Certificate().Equal) {
		both = old
	}
	steps := []struct {
		change func() error
		renew  bool
	}{
		{func() error { return a.trustRoots(both) }, false},
		{func() error { return a.enroller.useCA(next, both) }, true},
		{func() error { return a.trustRoots([]*trust.Certificate{next.Certificate()}) }, false},
	}
	for i, step := range steps {
		if err := step.change(); err != nil {
			return err
		}
		change := func() {
			a.handouts.roots.renew = step.renew
			if step.renew {
				a.feedHost(verdict.Recertify{})
			}
		}
		if err := a.handOut(ctx, &a.handouts.roots.handout, change); err != nil {
			return err
		}
		if i == 1 {
			if err := a.awaitRenewals(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// trustRoots makes this host trust the CA certificates.
func (a *Agent) trustRoots(certs []*trust.Certificate) error {
	creds := a.cfg.Trust.Credentials()
	creds.Roots = certs
	return a.cfg.use(creds)
}
