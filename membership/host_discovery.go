package membership

import (
	"context"
	"time"

	"github.com/fabricd/fabricd/internal/wait"
	"github.com/fabricd/fabricd/membership/control"
	"github.com/fabricd/fabricd/membership/gossip"
	"github.com/fabricd/fabricd/membership/verdict"
)

const (
	// maxDials bounds the gossiping hosts that are looked at, or waited for, at
	// a time. A further one is looked at when gossip reports it again.
	maxDials = 16
	// lookAgain is the time before the second look at one that did not answer; each
	// further one takes twice as long, up to lookSeldom: a holder of the gossip key
	// chooses the addresses.
	lookAgain  = 2 * time.Second
	lookSeldom = 2 * time.Minute
)

// lookForHost looks whether a member that gossips as host is one, and again after the pause if it
// does not answer. Any node with its key can gossip that: only a process that
// proves the host role with its certificate, on a connection that we dialed, is reported to the host
// machine, with the term that it sends there.
func (a *Agent) lookForHost(k gossip.Key, pause time.Duration) {
	m, ok := a.gossiped.members[k]
	if !ok || a.gossiped.gone[k] || !m.Meta.Host || a.gossiped.dialed[k] || len(a.gossiped.dialed) >= maxDials ||
		k == (gossip.Key{UUID: a.self.UUID, Epoch: a.self.Epoch}) {
		return
	}
	a.gossiped.dialed[k] = true
	a.wg.Go(func() {
		term, found := a.askHost(m)
		if !found {
			wait.For(a.ctx.Done(), pause)
		}
		a.post(func() {
			delete(a.gossiped.dialed, k)
			if !found {
				a.lookForHost(k, min(2*pause, lookSeldom))
				return
			}
			a.feedHost(verdict.HostSeen{UUID: k.UUID, Epoch: k.Epoch, Term: term,
				Serving: a.gossiped.members[k].Meta.Serving, Where: m.Address.String()})
		})
	})
}

// askHost dials a member that gossips as host and returns its term. It reports false if
// no address answers as that process, in the host role. It comes as a node
// without an incarnation: another host's table need not know ours, and would refuse it.
func (a *Agent) askHost(m gossip.Member) (term uint64, found bool) {
	ctx, cancel := context.WithTimeout(a.ctx, a.timing.Silence)
	defer cancel()
	look := *a.dialer
	look.Self = func() (control.End, []byte) { return a.self, nil }
	for _, address := range m.Meta.Addresses {
		up, err := look.Lifeline(ctx, address, control.Target{UUID: m.UUID, Epoch: m.Epoch}, nil)
		if err != nil {
			a.log.Debug().Err(err).Str("address", address).Msg("the member that gossips as host does not answer as one")
			continue
		}
		p := up.Peer()
		a.release(up)
		if p.UUID == m.UUID && p.Epoch == m.Epoch && p.Host {
			return p.Term, true
		}
	}
	return 0, false
}
