package membership

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/membership/control"
	"github.com/fabricd/fabricd/membership/state"
	"github.com/fabricd/fabricd/membership/trust"
	"github.com/fabricd/fabricd/membership/verdict"
)

// keys are the gossip keys as the host hands them out. The loop owns them.
//
// They follow every grant, so that a node that was away during a rotation gets
// them by its control session, and every change.
type keys struct {
	seq  uint64 // counts the changes of this start
	ring []byte // encoded
	held map[verdict.SessionID]uint64
	sent time.Time     // when seq went to all, or again to those who owe
	all  chan struct{} // closed when every life holds seq; nil: nobody waits
}

// RotateGossipKey changes the key that seals all gossip, and returns the new
// key's version. Every node in the table first holds the new key, then uses it,
// then forgets the old one; each step waits until all of them, and whoever comes
// meanwhile, have it on disk and in use. A node that is removed is not waited
// for, one that has only lost its way to the host is.
//
// When ctx ends before, the cluster gossips on with what it has, and the next
// call completes this rotation instead of beginning one. Only the host can do
// it, once at a time.
func (a *Agent) RotateGossipKey(ctx context.Context) (version uint32, err error) {
	if a.desk == nil {
		return 0, a.errNotHost("rotate gossip key")
	}
	select {
	case a.rotation <- struct{}{}:
		defer func() { <-a.rotation }()
	default:
		return 0, errors.New("rotate gossip key: another rotation is under way")
	}
	ring, err := trust.DecodeKeyring(a.cfg.State.Secret(state.SecretKeyring))
	if err == nil {
		version, err = a.rotate(ctx, ring)
	}
	if err != nil {
		return 0, fmt.Errorf("rotate gossip key: %w", err)
	}
	a.log.Info().Uint32("version", version).Msg("gossip key rotated")
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

// distribute gives a keyring to everybody and waits until everybody holds it.
func (a *Agent) distribute(ctx context.Context, ring trust.Keyring) error {
	encoded := ring.Encode()
	if err := a.cfg.State.PutSecret(state.SecretKeyring, encoded); err != nil {
		return err
	}
	if err := a.gossip.SetKeys(ring.Keys()); err != nil {
		return err
	}
	all := make(chan struct{})
	a.post(func() {
		a.keys.seq++
		a.keys.ring, a.keys.all = encoded, all
		a.sendKeysToAll()
		a.checkKeys()
	})
	select {
	case <-all:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s: not every node holds them%s: %w", ring, a.livesWithoutKeys(), context.Cause(ctx))
	case <-a.ctx.Done():
		return ErrClosed
	}
}

// sendKeys sends the keys to one session.
func (a *Agent) sendKeys(id verdict.SessionID) {
	if s := a.sessions[id]; s != nil {
		_ = s.Send(control.Keys{Seq: a.keys.seq, Keyring: a.keys.ring}) // a new session gets them anew
	}
}

// sendKeysToAll sends the keys to every session that does not hold them.
func (a *Agent) sendKeysToAll() {
	a.keys.sent = time.Now()
	for id := range a.sessions {
		if held, ok := a.keys.held[id]; !ok || held < a.keys.seq {
			a.sendKeys(id)
		}
	}
}

// keysHeld takes the word of a node that it uses the keys.
func (a *Agent) keysHeld(id verdict.SessionID, seq uint64) {
	if _, open := a.sessions[id]; open && seq <= a.keys.seq {
		a.keys.held[id] = seq
		a.checkKeys()
	}
}

// checkKeys wakes who waits, if every life that is not over holds the keys.
func (a *Agent) checkKeys() {
	if a.keys.all == nil || len(a.owingKeys()) > 0 {
		return
	}
	close(a.keys.all)
	a.keys.all = nil
}

// owingKeys returns the lives that do not hold the newest keys, in order.
func (a *Agent) owingKeys() (list []addr.Life) {
	for life, id := range a.host.Sessions() {
		if held, ok := a.keys.held[id]; !ok || held < a.keys.seq {
			list = append(list, life)
		}
	}
	slices.SortFunc(list, func(x, y addr.Life) int { return cmp.Compare(x.Node, y.Node) })
	return list
}

// livesWithoutKeys returns, for an error, the first of the nodes that
// [Agent.distribute] waits for. It is called from outside the loop.
func (a *Agent) livesWithoutKeys() string {
	const most = 5
	owing := make(chan []addr.Life, 1)
	if !a.post(func() { owing <- a.owingKeys() }) {
		return ""
	}
	var list []addr.Life
	select {
	case list = <-owing:
	case <-a.ctx.Done():
	}
	text := ""
	for _, life := range list[:min(len(list), most)] {
		text += fmt.Sprintf(", node %d does not", life.Node)
	}
	if more := len(list) - most; more > 0 {
		text += fmt.Sprintf(", nor do %d more", more)
	}
	return text
}

// tendKeys looks again, since a life that did not hold the keys may be over,
// and repeats them to those who owe.
func (a *Agent) tendKeys(now time.Time) {
	if a.keys.all == nil {
		return
	}
	if now.Sub(a.keys.sent) >= a.timing.Resend {
		a.sendKeysToAll()
	}
	a.checkKeys()
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
		return // the host waits for us, and repeats them
	}
	_ = s.Send(control.KeysHeld{Seq: k.Seq}) // as for every answer: a new session asks anew
}
