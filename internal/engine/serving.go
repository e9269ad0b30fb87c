package engine

import (
	"time"

	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/wire"
)

// A probe is a Probe under way, and the calls that wait for its answer.
type probe struct {
	nonce  uint64
	sent   time.Duration
	active bool
	done   chan struct{} // closed by the next confirmation; nil while no call waits
}

// settle ends the waits.
func (p *probe) settle() {
	if p.done != nil {
		close(p.done)
		p.done = nil
	}
}

// serveOn extends the time in which operations are applied, as the pulse allows.
// The caller holds mu.
func (l *link) serveOn(now time.Duration) {
	l.silence.Store(heard)
	l.servingUntil.Store(int64(l.pulse.ServingUntil()))
	if l.pulse.Serving(now) {
		l.probe.settle()
	}
}

// Revalidate drops the confirmations of all links: this process noticed that it
// stood still. Frames that arrive wait until each peer has confirmed both lives anew.
func (n *Node) Revalidate() {
	for _, l := range n.allLinks() {
		l.mu.Lock()
		l.pulse.Doubt(n.now())
		l.servingUntil.Store(int64(l.pulse.ServingUntil()))
		l.mu.Unlock()
	}
}

// awaitServing waits until both lives have been confirmed freshly. After a
// pause of this process or of the peer, nothing that arrives is applied before
// a round trip has shown that neither was replaced.
func (l *link) awaitServing() error {
	for l.twin == nil && int64(l.n.now()) > l.servingUntil.Load() {
		select {
		case <-l.startProbe():
		case <-l.end.down:
			return status.Reset
		}
	}
	if isClosed(l.end.down) {
		return status.Reset
	}
	return nil
}

// startProbe asks the peer for a confirmation on the control lane, which is
// reliable, and returns a channel that is closed when one has come.
func (l *link) startProbe() <-chan struct{} {
	now := l.n.now()
	l.mu.Lock()
	if l.probe.done == nil {
		l.probe.done = make(chan struct{})
	}
	done := l.probe.done
	fresh := !l.probe.active
	if fresh {
		l.probe.active, l.probe.sent = true, now
		l.probe.nonce++
	}
	frame := wire.Probe{Nonce: l.probe.nonce, From: l.self, To: l.peer.Life}.AppendTo(nil)
	l.mu.Unlock()
	if fresh {
		l.say(frame)
	}
	return done
}

// probed takes the answer to a probe.
func (l *link) probed(nonce uint64) {
	now, news := l.n.now(), false
	defer func() {
		if news {
			l.n.report(l.peer.Life, LinkAlive)
		}
	}()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.probe.active || nonce != l.probe.nonce {
		return
	}
	l.probe.active = false
	news = l.pulse.Confirm(l.probe.sent, now)
	l.serveOn(now)
	l.probe.settle() // also where the answer itself was late: they ask again
}
