package membership

import (
	"context"
	"errors"
	"syscall"
	"time"

	"github.com/fabricd/fabricd/membership/control"
	"github.com/fabricd/fabricd/membership/verdict"
)

// exhausted reports whether err is a lack of this node's own, of descriptors,
// memory or ports.
func exhausted(err error) bool {
	for _, e := range []error{
		syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOBUFS, syscall.EADDRNOTAVAIL,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// dialProbe opens a lifeline to exactly the incarnation that n names, within a limit, and has done
// take the result on a goroutine of its own.
func (a *Agent) dialProbe(n verdict.Contact, limit time.Duration, done func(context.Context, *control.Lifeline, verdict.DialResult)) {
	a.wg.Go(func() {
		ctx, cancel := context.WithTimeout(a.ctx, limit)
		defer cancel()
		up, met := a.openLifeline(ctx, n, nil)
		done(ctx, up, met)
	})
}

// openLifeline opens a lifeline to exactly the incarnation that n names. If met is verdict.DialAlive, the
// lifeline is the caller's to start; else there is none.
// The incarnation is asked to sign the challenge, if there is one.
func (a *Agent) openLifeline(ctx context.Context, n verdict.Contact, challenge []byte) (up *control.Lifeline, met verdict.DialResult) {
	if len(n.Addresses()) == 0 {
		return nil, verdict.DialUnanswered
	}
	type result struct {
		up  *control.Lifeline
		met verdict.DialResult
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results := make(chan result, len(n.Addresses()))
	for _, address := range n.Addresses() {
		a.wg.Go(func() {
			up, met := a.openLifelineAt(ctx, address, n, challenge)
			results <- result{up, met}
		})
	}
	for range n.Addresses() {
		r := <-results
		met = max(met, r.met)
		switch {
		case r.up != nil && up == nil:
			up = r.up
			cancel() // the others are not needed; each of them still answers
		case r.up != nil:
			a.wg.Go(func() { a.release(r.up) })
		}
	}
	return up, met
}

func (a *Agent) openLifelineAt(ctx context.Context, address string, n verdict.Contact, challenge []byte) (*control.Lifeline, verdict.DialResult) {
	up, err := a.dialer.Lifeline(ctx, address, control.Target{UUID: n.UUID, Epoch: n.Epoch, Incarnation: n.Incarnation}, challenge)
	var refused *control.RefusedError
	switch {
	case errors.As(err, &refused) && refused.Remote && refused.Code == control.CodeFenced:
		return nil, verdict.DialFenced
	case exhausted(err):
		return nil, verdict.DialUntried
	case err != nil:
		return nil, verdict.DialUnanswered
	}
	p := up.Peer()
	met, why := n.Answer(p.Epoch, p.Incarnation), errSeen
	if met == verdict.DialAlive {
		if why = a.outdated(p, up.Lease()); why != nil {
			a.log.Warn().Err(why).Str("address", address).Msg("lifeline refused")
			met = verdict.DialUnanswered
		}
	}
	if why != nil {
		a.wg.Go(func() { a.reject(up, why) })
		return nil, met
	}
	return up, met
}

// errSeen ends a lifeline that was opened to see whether a node is there.
var errSeen = errors.New("seen")

// release ends a lifeline that has shown that a node is there, and waits for it.
// up may be nil.
func (a *Agent) release(up *control.Lifeline) {
	if up != nil {
		a.reject(up, errSeen)
	}
}

// reject ends a lifeline, sends the peer the reason, and waits for it.
func (a *Agent) reject(up *control.Lifeline, why error) {
	up.Start(func() {}, func(verdict.DownCause, error) {})
	up.Close(why.Error())
	select {
	case <-up.Done():
	case <-a.ctx.Done():
		up.Abort()
		<-up.Done()
	}
}

// redial sees for the host whether the process of an incarnation is still there.
func (a *Agent) redial(x verdict.Redial) {
	a.dialProbe(x.Contact, a.timing.Redial, func(_ context.Context, up *control.Lifeline, met verdict.DialResult) {
		a.post(func() { a.feedHost(verdict.Redialed{Incarnation: x.Incarnation, Outcome: met.Outcome()}) })
		a.release(up)
	})
}

// probe sees whether an incarnation can be reached over the data path, or, to show that to
// the host, by its answer to a challenge.
func (a *Agent) probe(x verdict.Probe) {
	a.wg.Go(func() {
		ctx, cancel := context.WithTimeout(a.ctx, a.timing.Check)
		defer cancel()
		reached, proof := a.probeOnce(ctx, x.Contact, x.Challenge)
		a.post(func() { a.feedMember(verdict.Probed{Nonce: x.Nonce, Reached: reached, Proof: proof}) })
	})
}

func (a *Agent) probeOnce(ctx context.Context, n verdict.Contact, challenge []byte) (reached bool, proof []byte) {
	if a.cfg.Probe != nil && len(challenge) == 0 {
		return a.cfg.Probe(ctx, n.Incarnation) == nil, nil
	}
	up, met := a.openLifeline(ctx, n, challenge)
	if met == verdict.DialAlive {
		proof = up.Proof()
	}
	a.release(up)
	return met == verdict.DialAlive, proof
}
