package sim

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fabricd/fabricd/internal/lab/history"
	"github.com/fabricd/fabricd/internal/lab/load"
	"github.com/fabricd/fabricd/internal/lab/scenario"
	"github.com/fabricd/fabricd/membership/verdict"
)

// Options configure the run of a schedule. The zero value is that of the suite.
type Options struct {
	// Full leaves the rates of the workload as they are. Else they are bounded, per second
	// of virtual time and over all pairs: a scenario that asks for more is scaled down,
	// for interleavings show in few operations as they do in many.
	Full bool
	// IDs is how many node IDs the host has left to give, from 1 on: the others have
	// had their last generation. 0: all of them.
	IDs int
}

// A Result is one run.
type Result struct {
	History []history.Record // in order
	Events  uint64           // that the simulation went through
	Virtual time.Duration    // that passed
	Bugs    int              // broken invariants that the simulation itself saw; they are in the history
}

// ErrUnable is in the chain of the error of a schedule that asks for something
// that the simulation has not got.
var ErrUnable = errors.New("the simulation cannot do this")

// readyLimit is how long a cluster may take to be whole before a run begins,
// and restLimit how long after its end it gets to settle.
const (
	readyLimit = 30 * time.Second
	restLimit  = 8 * time.Second
)

// Run runs a schedule, whose seed decides everything random. It is a pure function: the
// same schedule gives the same history, byte for byte. The error means that the
// simulation does not support the schedule, or that no cluster came together; faults of
// a cluster are in the history.
func Run(s *scenario.Schedule, opts Options) (Result, error) {
	sc := s.Scenario
	r := &runner{s: s, w: newWorld(s.Seed, sc.Cluster.Nodes, verdict.TimingOf(string(sc.Cluster.Detection)), opts)}
	w := r.w
	if sc.Cluster.LostPair == scenario.LostPairEvict {
		w.partial = verdict.PartialEvict
	}
	if err := r.check(); err != nil {
		return Result{}, err
	}
	w.load = newPlan(sc, opts)
	w.put(history.Lab, s.Begin(scenario.Sim))
	if err := r.gather(); err != nil {
		w.put(history.Lab, &history.End{Why: err.Error()})
		return r.result(), err
	}
	for _, a := range s.Actions {
		w.after(a.At.Time(), func() { r.begin(a) })
	}
	w.until(r.zero + sc.Duration.Time())
	if !w.stuck() {
		r.finish()
	}
	if w.stuck() {
		w.now = w.last // the run until then can be judged
		err := fmt.Errorf("%d things happened at %v: something goes round in circles", maxAtOnce, w.now)
		w.put(history.Lab, &history.End{Why: err.Error()})
		return r.result(), err
	}
	w.put(history.Lab, &history.End{Complete: true})
	return r.result(), nil
}

func (r *runner) result() Result {
	w := r.w
	return Result{History: w.log.merged(), Events: w.done, Virtual: w.now, Bugs: w.watch.bugs}
}

// A runner carries out a schedule.
type runner struct {
	s    *scenario.Schedule
	w    *world
	zero time.Duration // when the run proper began: the cluster was complete
	open []*action     // begun, and not ended
}

// check refuses actions that the simulation does not support.
func (r *runner) check() error {
	for _, a := range r.s.Actions {
		if a.CPU != nil || a.Memory != nil || a.Rotate != nil || a.Path != nil ||
			a.Node != nil && slices.Contains([]scenario.NodeDo{scenario.Usurp, scenario.Ban, scenario.Remove}, a.Node.Do) ||
			a.Fault != nil && (a.Fault.Kind == scenario.FaultClock || a.Fault.Kind == scenario.FaultDescriptors) {
			return fmt.Errorf("%w: step %d: %s", ErrUnable, a.Step, a.What())
		}
	}
	return nil
}

// maxSize bounds a message and an operation, in bytes; a window is 16 times as large.
const maxSize = 2 << 10

// newPlan returns the workload of the applications, within the bounds of the options.
func newPlan(sc *scenario.Scenario, opts Options) plan {
	p := plan{Plan: load.PlanOf(&sc.Workload), peers: make([][]int, sc.Cluster.Nodes)}
	pairs := sc.Workload.Pairs.Of(sc.Cluster.Nodes)
	for _, pair := range pairs {
		p.peers[pair[0]] = append(p.peers[pair[0]], pair[1])
	}
	bound := func(rate *float64, most, share float64) {
		if !opts.Full && len(pairs) > 0 {
			*rate = min(*rate, most/float64(2*len(pairs))*share)
		}
	}
	bound(&p.Messages.Rate, 160, 1)
	bound(&p.RMA.Rate, 120, 1)
	bound(&p.Connects, 120, 1./4)
	bound(&p.Windows, 120, 1./6)
	sizes := func(from, to *int64) {
		*to = min(*to, maxSize)
		*from = min(*from, *to)
	}
	sizes(&p.Messages.Min, &p.Messages.Max)
	sizes(&p.RMA.Min, &p.RMA.Max)
	p.RMA.Window = min(p.RMA.Window, 16*maxSize)
	p.ConnectSize, p.Receive, p.Parked = 4<<10, 16<<10, messageWindow+streamWindow+8<<10
	return p
}

// gather starts all nodes and waits until the cluster is complete, and until the
// applications are.
func (r *runner) gather() error {
	w := r.w
	late := r.s.Scenario.Late()
	for _, m := range w.machines {
		if slices.Contains(late, m.index) {
			continue
		}
		// One after the other, so that IDs are the indices of the nodes.
		w.boot(m)
		for m.proc == nil || m.proc.node.self.Incarnation.Generation == 0 || !w.whole() {
			if w.now > readyLimit {
				return errors.New("the cluster is not complete after " + readyLimit.String())
			}
			w.until(w.now + time.Millisecond)
		}
	}
	for _, m := range w.machines {
		if m.proc != nil {
			w.startApp(m)
		}
	}
	w.until(w.now + 100*time.Millisecond)
	r.zero = w.now
	w.put(history.Lab, &history.Timeline{})
	return nil
}

// finish ends the applications and lets the cluster rest.
func (r *runner) finish() {
	w := r.w
	for _, a := range r.open {
		r.end(a)
	}
	for _, m := range w.machines {
		if m.app != nil && !m.app.p.dead {
			m.app.finishUp()
		}
	}
	w.until(w.now + restLimit)
	for _, m := range w.machines {
		if m.app != nil {
			m.app.last()
		}
		w.count(m.proc, history.PhaseEnd)
	}
}

// leaveTime is how long a fabricd that ends in order may take.
const leaveTime = 3 * time.Second

// leave ends a fabricd in order: its applications' connections are closed, then the
// host is notified.
func (p *proc) leave() {
	p.leaving = true
	for _, s := range p.node.sessions {
		s.close()
	}
	p.after(50*time.Millisecond, func() {
		if p.onKill != nil {
			p.onKill() // applications are notified at the latest now
		}
		p.agent.feedMember(verdict.Depart{})
	})
	p.after(leaveTime, func() { p.exit("left") })
}
