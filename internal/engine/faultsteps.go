package engine

import (
	"github.com/fabricd/fabricd/internal/faults/failpoint"
	"github.com/fabricd/fabricd/internal/wire"
)

// hit reports that the connection is at a step. It is called without locks. The
// error ends the connection.
func (c *conn) hit(s failpoint.Step) error { return c.link.n.cfg.Faults.Hit(s) }

// frameSteps are the steps at which a frame of the operations stream is: before
// it is applied, after that and before the answer can go out, and when the
// answer is on its way (of several, the last). Most frames have none, at the cost of an unarmed step.
var frameSteps = [256]struct{ arrived, applied, answered failpoint.Step }{
	wire.TypeRegister:     {applied: failpoint.WindowAnnounced},
	wire.TypeRegistered:   {arrived: failpoint.WindowKnown},
	wire.TypeUnregister:   {applied: failpoint.WindowWithdrawn},
	wire.TypeUnregistered: {arrived: failpoint.WindowReleased},
	wire.TypeWrite:        {failpoint.WriteArrived, failpoint.WriteCopied, failpoint.WriteAcked},
	wire.TypeRead:         {applied: failpoint.ReadAsked, answered: failpoint.ReadAnswered},
	wire.TypeAtomic:       {arrived: failpoint.AtomicArrived, applied: failpoint.AtomicApplied},
	wire.TypeMark:         {applied: failpoint.MarkCounted, answered: failpoint.MarkAnswered},
	wire.TypeSignal:       {arrived: failpoint.SignalArrived, applied: failpoint.SignalStored},
}
