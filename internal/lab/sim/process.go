package sim

import (
	"math/rand/v2"
	"time"
)

// A proc is one process: the fabricd of a machine, or an application there.
type proc struct {
	w   *world
	at  *machine
	rng *rand.Rand

	dead    bool
	paused  bool
	leaving bool // it was asked to end in order
	// The queues of a process that stands still: arrivals, and the timers that were
	// due. Each keeps its order.
	waiting, late []func()

	// Of a fabricd.
	accept   func(*tcpEnd) // a TCP connection that was opened to it
	welcome  func(*quicEnd)
	sockets  []*tcpEnd
	links    []*quicEnd
	agent    *agent
	node     *node
	resetKey uint64
	epoch    uint64
	// incarnationEnded is when its last incarnation ended: it was reset, or died.
	incarnationEnded time.Duration
	onKill           func() // the kernel's reports of its death to others

	// The reports of gossip to it about the others.
	peers map[*proc]*knownPeer
	known []*knownPeer // of peers, in order
}

func newProc(w *world, at *machine, name string) *proc {
	return &proc{w: w, at: at, rng: seeded(w.seed, name, at.index, at.starts)}
}

// soon runs f as something that has arrived at p: now if p runs, when it
// continues if it stands still, never if it is dead.
func (p *proc) soon(f func()) {
	switch {
	case p.dead:
	case p.paused:
		p.waiting = append(p.waiting, f)
	default:
		f()
	}
}

// after runs f in d, as a timer of p.
func (p *proc) after(d time.Duration, f func()) {
	p.w.after(d, func() {
		switch {
		case p.dead:
		case p.paused:
			p.late = append(p.late, f)
		default:
			f()
		}
	})
}

// hand runs f after the current step of p, in the same moment: another goroutine.
func (p *proc) hand(f func()) { p.after(0, f) }

// stop freezes the process.
func (p *proc) stop() { p.paused = true }

// proceed continues it. The queues run at once; arrivals and timers mix at random, as
// under a scheduler.
func (p *proc) proceed() {
	p.paused = false
	for len(p.waiting)+len(p.late) > 0 && !p.paused && !p.dead {
		q := &p.waiting
		if len(*q) == 0 || len(p.late) > 0 && p.rng.IntN(2) == 0 {
			q = &p.late
		}
		f := (*q)[0]
		*q = (*q)[1:]
		f()
	}
}

// kill ends the process with no leave message. Its kernel closes the sockets.
func (p *proc) kill() {
	if p.dead {
		return
	}
	p.dead = true
	if p.node != nil && p.node.self.Incarnation.Generation != 0 {
		p.incarnationEnded = p.w.now
	}
	p.waiting, p.late = nil, nil
	for _, e := range p.sockets {
		e.shut()
	}
	p.links = nil
	if p.onKill != nil {
		p.onKill()
	}
}
