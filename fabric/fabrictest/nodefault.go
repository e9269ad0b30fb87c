package fabrictest

import (
	"time"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/internal/faults/failpoint"
)

// A NodeFault is a fault of one node: it crashes, stands still, waits or fails
// at a named step of the protocol, or its applications read slowly. [FaultSteps]
// lists the steps.
//
//	c.NodeFault(1, fabrictest.NodeFault{Kind: "crash", Step: "rma.write_copied"})
//
// A fault belongs to the node's incarnation: the next one has none. Fields that its kind does
// not take are zero.
type NodeFault struct {
	// Kind is "crash" or "freeze", at a step or at once; "delay" or "error", at a step;
	// "clock", "disk" or "slow-receiver".
	Kind string
	Step string        // where it happens
	For  time.Duration // how long it lasts: of all kinds but crash and error

	// Of a fault at a step: how long it stays armed (0: 10 minutes), which is the first hit
	// that counts (from 1; 0: 1), how often it happens at most (0: once; -1: always), and
	// with which probability (0: 1), drawn from Seed.
	Within      time.Duration
	Nth, Times  int
	Probability float64
	Seed        uint64

	Offset time.Duration // of a clock: how far it is ahead
	Disk   string        // "full", "read-only", "sync" or "slow"
	Delay  time.Duration // of a slow disk or receiver
	Port   fabric.Port   // of a slow receiver; 0: all
}

func (f NodeFault) point() failpoint.Fault {
	return failpoint.Fault{Kind: failpoint.Kind(f.Kind), Step: f.Step, For: failpoint.Duration(f.For), Within: failpoint.Duration(f.Within),
		Nth: f.Nth, Times: f.Times, Probability: f.Probability, Seed: f.Seed,
		Offset: failpoint.Duration(f.Offset), Disk: f.Disk, Delay: failpoint.Duration(f.Delay), Port: uint16(f.Port)}
}

func nodeFault(p failpoint.Fault) NodeFault {
	return NodeFault{Kind: string(p.Kind), Step: p.Step, For: time.Duration(p.For), Within: time.Duration(p.Within),
		Nth: p.Nth, Times: p.Times, Probability: p.Probability, Seed: p.Seed,
		Offset: time.Duration(p.Offset), Disk: p.Disk, Delay: time.Duration(p.Delay), Port: fabric.Port(p.Port)}
}

// A NodeFaultReport is a NodeFault and its state.
type NodeFaultReport struct {
	ID    uint64
	Fault NodeFault
	State string // "armed", at a step; "active", while it lasts; "ended"
	// Hits counts how often the step was met while the fault was armed, and Fired how often
	// it then happened; of a fault without a step, Hits counts its changes.
	Hits, Fired uint64
	Since       time.Time
	Problem     string // why it could not happen as requested; empty: it could
}

// A FaultStep describes a step at which faults can be armed.
type FaultStep struct {
	Name    string
	Meaning string
	Fails   string // the effect of an error there; empty: the step cannot fail
}

// FaultSteps returns all steps, also those that only a whole fabricd has.
func FaultSteps() (all []FaultStep) {
	for _, s := range failpoint.Steps() {
		all = append(all, FaultStep{s.Name, s.Meaning, s.Fails})
	}
	return all
}

// NodeFault begins a fault of node i, which must be up, or arms it at its step,
// and returns its number. A crash acts as Kill does, at that moment; a freeze
// cuts the node off for a while, though its own applications go on.
func (c *Cluster) NodeFault(i int, f NodeFault) (uint64, error) {
	n, err := c.faultsOf(i)
	if err != nil {
		return 0, err
	}
	return n.Add(f.point())
}

// NodeFaults returns the faults of node i's incarnation, which must be up.
func (c *Cluster) NodeFaults(i int) (all []NodeFaultReport, err error) {
	n, err := c.faultsOf(i)
	if err != nil {
		return nil, err
	}
	for _, r := range n.List() {
		all = append(all, NodeFaultReport{r.ID, nodeFault(r.Fault), string(r.State), r.Hits, r.Fired, r.Since, r.Problem})
	}
	return all, nil
}
