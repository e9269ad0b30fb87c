package failpoint

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"syscall"
	"time"

	"github.com/fabricd/fabricd/internal/wait"
)

// A StepError is the error of a step at which one was armed.
type StepError struct{ Step Step }

func (e *StepError) Error() string { return fmt.Sprintf("injected at step %s", e.Step) }

// Unwrap makes it an input/output error to a caller that asks for the errno.
func (e *StepError) Unwrap() error { return syscall.EIO }

// Hit reports that the caller is at step s. It performs the faults armed there, and returns an error
// if the step is to fail; callers at steps that cannot fail ignore it. While nothing is armed at s
// it costs one atomic load.
func (n *Node) Hit(s Step) error {
	if n == nil || n.points[s].Load() == nil {
		return nil
	}
	return n.hit(s)
}

// hit is Hit at a step where something is armed.
func (n *Node) hit(s Step) (err error) {
	for _, x := range n.meet(s) {
		if e := n.act(x); e != nil {
			err = e
		}
	}
	return err
}

// meet counts a hit of step s and returns the faults that it sets off.
func (n *Node) meet(s Step) (fire []*fault) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.dead.Load() {
		return nil
	}
	for _, x := range n.points[s].all() {
		if !x.Pass() {
			continue
		}
		if x.Kind == Delay {
			x.waiting++
		}
		fire = append(fire, x)
	}
	for _, x := range fire {
		if x.Times >= 0 && x.fired == uint64(x.Times) && x.Kind != Delay {
			_ = n.endLocked(x) // a fault at a step has nothing to undo
		}
	}
	return fire
}

// A Trigger decides at which hits of its step a fault happens.
type Trigger struct {
	f           *Fault
	rand        *rand.Rand // for Probability
	hits, fired uint64
}

// Arm fills in the defaults of a fault at a step, and returns its trigger.
func (f *Fault) Arm(s Step) Trigger {
	f.Nth, f.Times = cmp.Or(f.Nth, 1), cmp.Or(f.Times, 1)
	f.Probability = cmp.Or(f.Probability, 1)
	f.Within = cmp.Or(f.Within, Duration(DefaultWithin))
	return Trigger{f: f, rand: rand.New(rand.NewPCG(f.Seed, uint64(s)))}
}

// Pass counts a hit and reports whether the fault happens.
func (t *Trigger) Pass() bool {
	t.hits++
	switch {
	case t.hits < uint64(t.f.Nth):
		return false
	case t.f.Times >= 0 && t.fired >= uint64(t.f.Times):
		return false
	case t.f.Probability < 1 && t.rand.Float64() >= t.f.Probability:
		return false
	}
	t.fired++
	return true
}

// Fired is how often the fault has happened.
func (t *Trigger) Fired() uint64 { return t.fired }

// act makes x happen.
func (n *Node) act(x *fault) error {
	switch x.Kind {
	case Crash:
		n.crash()
	case Freeze:
		n.freeze(x)
	case Delay:
		n.delay(x)
	case Error:
		return &StepError{x.step}
	}
	return nil
}

// crash ends the node. The disk goes first: data not written by now is lost, whatever the rest of a
// process that goes on still tries.
func (n *Node) crash() {
	if n.dead.Swap(true) {
		return
	}
	if n.actor != nil {
		n.actor.Crash()
	}
}

func (n *Node) freeze(x *fault) {
	if n.actor == nil {
		return
	}
	if err := n.actor.Freeze(time.Duration(x.For)); err != nil {
		n.mu.Lock()
		defer n.mu.Unlock()
		x.problem = err.Error()
	}
}

// delay waits, but not longer than the fault is there. The last one that it
// holds up ends it.
func (n *Node) delay(x *fault) {
	wait.For(x.over, time.Duration(x.For))
	n.mu.Lock()
	defer n.mu.Unlock()
	x.waiting--
	if x.waiting == 0 && x.Times >= 0 && x.fired >= uint64(x.Times) {
		_ = n.endLocked(x) // nothing to undo
	}
}

// Dead reports whether the node has crashed in a process that goes on.
func (n *Node) Dead() bool { return n != nil && n.dead.Load() }
