package failpoint

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/fabricd/fabricd/internal/wait"
)

// beginLocked begins a fault without a step.
func (n *Node) beginLocked(x *fault) error {
	if err := n.aloneLocked(x); err != nil {
		return err
	}
	x.state, x.fired = Active, 1
	switch x.Kind {
	case Crash, Freeze:
		n.soonLocked(x)
		return nil
	case Clock:
		n.clock.Store(x)
		x.undo = func() error { n.clock.Store(nil); return nil }
	case Disk:
		n.disk.Store(x)
		x.undo = func() error { n.disk.Store(nil); return nil }
	case Descriptors:
		if n.actor == nil {
			return errors.New("descriptors: this node is not a process of its own")
		}
		restore, err := n.actor.Starve(x.Free)
		if err != nil {
			return fmt.Errorf("descriptors: %w", err)
		}
		x.undo = restore
	case SlowReceiver:
		n.slow.add(x)
		x.undo = func() error { n.slow.remove(x); return nil }
	}
	x.timer = time.AfterFunc(time.Duration(x.For), func() { _ = n.end(x) }) // x.problem has the error
	return nil
}

// aloneLocked refuses a second fault of a kind of which there can be one.
func (n *Node) aloneLocked(x *fault) error {
	for _, y := range n.faults {
		same := y.Kind == x.Kind && y.step == noStep && y.state == Active
		if same && (x.Kind != SlowReceiver || x.Port == y.Port) {
			return fmt.Errorf("%s: %w: clear fault %d first", x.Kind, ErrConflict, y.id)
		}
	}
	return nil
}

// answerTime is how long a crash or a freeze waits for the answer to its
// caller.
const answerTime = 20 * time.Millisecond

// soonLocked makes x happen a moment later.
func (n *Node) soonLocked(x *fault) {
	n.work.Go(func() {
		if wait.For(x.over, answerTime) {
			_ = n.act(x) // only an error at a step has one
		}
		_ = n.end(x) // nothing to undo
	})
}

// Now is the node's wall clock: for certificates, tokens, logs and all other times that people
// read. A clock fault begins and ends with a jump of it; times meanwhile have no monotonic reading,
// so that no timer can follow.
func (n *Node) Now() time.Time {
	if n == nil {
		return time.Now()
	}
	x := n.clock.Load()
	if x == nil {
		return time.Now()
	}
	x.touch.Add(1)
	return time.Now().Round(0).Add(time.Duration(x.Offset))
}

// A DiskOp is an operation that a component is about to do in the state directory.
type DiskOp uint8

const (
	DiskWrite  DiskOp = iota // write to a file, or make one or a directory
	DiskChange               // rename or remove
	DiskLast                 // make earlier changes last
)

// ErrCrashed is the error of the disk of a node that has crashed in a process that goes on.
var ErrCrashed = errors.New("this node has crashed")

// TouchDisk returns the error with which op fails, nil if it does not, after
// the time that a slow disk takes.
func (n *Node) TouchDisk(op DiskOp) error {
	if n == nil {
		return nil
	}
	if n.dead.Load() {
		return ErrCrashed
	}
	x := n.disk.Load()
	if x == nil {
		return nil
	}
	var err error
	switch {
	case x.Disk == DiskFull && op == DiskWrite:
		err = syscall.ENOSPC
	case x.Disk == DiskReadOnly && op != DiskLast:
		err = syscall.EROFS
	case x.Disk == DiskSync && op == DiskLast:
		err = syscall.EIO
	case x.Disk == DiskSlow:
		wait.For(x.over, time.Duration(x.Delay))
	default:
		return nil
	}
	x.touch.Add(1)
	return err
}

// DiskState returns why nothing can be written, as a look at the disk without a
// write shows it.
func (n *Node) DiskState() error {
	if n == nil {
		return nil
	}
	switch x := n.disk.Load(); {
	case x == nil:
		return nil
	case x.Disk == DiskFull:
		return syscall.ENOSPC
	case x.Disk == DiskReadOnly:
		return syscall.EROFS
	}
	return nil
}

// slowAt returns the slow receiver of a port, that of all ports if it has none
// of its own, or nil.
func (n *Node) slowAt(port uint16) (found *fault) {
	if n == nil {
		return nil
	}
	for _, x := range n.slow.all() {
		if x.Port == port || x.Port == 0 && found == nil {
			found = x
		}
	}
	return found
}

// SlowReceivers reports whether any application reads slowly now. It costs one
// atomic load.
func (n *Node) SlowReceivers() bool { return n != nil && n.slow.Load() != nil }

// SlowReceiver returns how long the application at a port takes between two receives, 0 if it is
// not slow, and a channel that is closed when that ends.
func (n *Node) SlowReceiver(port uint16) (delay time.Duration, over <-chan struct{}) {
	x := n.slowAt(port)
	if x == nil {
		return 0, nil
	}
	x.touch.Add(1)
	return time.Duration(x.Delay), x.over
}
