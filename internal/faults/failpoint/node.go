package failpoint

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// MaxFaults bounds the faults that a node holds, ended ones included: the
// oldest of those are forgotten first.
const MaxFaults = 256

// An Actor ends or stops the process or test node that a Node belongs to.
type Actor interface {
	// Crash ends the node as a crash does: nothing leaves it any more when it
	// returns, if it returns at all; then the process goes on without the node.
	// It is called on the goroutine that met the step, and must not wait for
	// the node's goroutines.
	Crash()
	// Freeze makes the whole node stand still for d, and returns after that.
	Freeze(d time.Duration) error
	// Starve leaves free descriptors for new ones to be opened until restore is
	// called, once.
	Starve(free int) (restore func() error, err error)
}

// A Node is the faults of one node. The nil Node has none. Its methods may be
// called from any goroutine.
type Node struct {
	actor Actor

	points [stepCount]faultList  // those that are armed at each step
	clock  atomic.Pointer[fault] // nil: right
	disk   atomic.Pointer[fault] // nil: healthy
	slow   faultList             // slow receivers
	dead   atomic.Bool           // crashed in a process that goes on

	mu     sync.Mutex // guards the fields below and those of fault, and changes of the lists above
	faults map[uint64]*fault
	lastID uint64
	closed bool
	work   sync.WaitGroup // the goroutines that Add began
}

// New returns a node without faults. actor ends or stops the whole node.
func New(actor Actor) *Node {
	return &Node{actor: actor, faults: make(map[uint64]*fault)}
}

// A State is how far a fault has come.
type State string

const (
	Armed  State = "armed"  // at a step that has not met its end
	Active State = "active" // it lasts
	Ended  State = "ended"
)

// A Report is one fault of a node.
type Report struct {
	ID    uint64 `json:"id"`
	Fault Fault  `json:"fault"`
	State State  `json:"state"`
	// Hits counts how often its step was met while it was armed, Fired how often it then happened;
	// for a fault without a step, Hits counts its effects: reads of the clock, writes that failed,
	// receives that waited.
	Hits  uint64    `json:"hits"`
	Fired uint64    `json:"fired"`
	Since time.Time `json:"since"`
	// Problem is why it could not happen as it was meant to, empty if it could.
	Problem string `json:"problem,omitempty"`
}

// A fault is one that a Node holds.
type fault struct {
	Fault
	id    uint64
	since time.Time
	step  Step
	over  chan struct{} // closed when it ends
	touch atomic.Uint64 // its effects, if it has no step

	// Guarded by Node.mu.
	state   State
	Trigger     // of one at a step
	waiting int // goroutines that a delay holds up
	problem string
	undo    func() error // ends its effect; nil if there is none
	timer   *time.Timer  // ends it
}

// A faultList is some faults, in the order of their addition. It is read without a lock: nil if there
// is none, and no list that is there changes.
type faultList struct{ atomic.Pointer[[]*fault] }

func (l *faultList) all() []*fault {
	if all := l.Load(); all != nil {
		return *all
	}
	return nil
}

// add and remove change the list. Node.mu is held.
func (l *faultList) add(x *fault) {
	all := append(slices.Clone(l.all()), x)
	l.Store(&all)
}

func (l *faultList) remove(x *fault) {
	all := slices.DeleteFunc(slices.Clone(l.all()), func(y *fault) bool { return y == x })
	if len(all) == 0 {
		l.Store(nil)
	} else {
		l.Store(&all)
	}
}

// Errors of Add and Clear.
var (
	ErrClosed   = errors.New("the node has ended")
	ErrNoFault  = errors.New("no such fault")
	ErrConflict = errors.New("such a fault lasts already")
	ErrTooMany  = errors.New("too many faults")
	errNil      = errors.New("faults are not enabled at this node")
)

// Add begins a fault, or arms it at its step, and returns its ID. A fault without a step has
// happened, or begun, when Add returns; only a crash, a freeze and faults that wait for a process
// happen a moment later, so that the caller can be answered.
func (n *Node) Add(f Fault) (id uint64, err error) {
	if n == nil {
		return 0, errNil
	}
	if err := f.Check(); err != nil {
		return 0, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed || n.dead.Load() {
		return 0, ErrClosed
	}
	if err := n.makeRoomLocked(); err != nil {
		return 0, err
	}
	x := &fault{Fault: f, since: time.Now(), over: make(chan struct{})}
	if f.Step != "" {
		n.armLocked(x)
	} else if err := n.beginLocked(x); err != nil {
		return 0, err
	}
	n.lastID++
	x.id = n.lastID
	n.faults[x.id] = x
	return x.id, nil
}

// makeRoomLocked forgets the oldest fault that has ended, if there are too many.
func (n *Node) makeRoomLocked() error {
	if len(n.faults) < MaxFaults {
		return nil
	}
	for _, id := range slices.Sorted(maps.Keys(n.faults)) {
		if n.faults[id].state == Ended {
			delete(n.faults, id)
			return nil
		}
	}
	return fmt.Errorf("%w: %d are armed or last", ErrTooMany, MaxFaults)
}

// armLocked puts x at its step.
func (n *Node) armLocked(x *fault) {
	x.step = byName[x.Step]
	x.state = Armed
	x.Trigger = x.Arm(x.step)
	n.points[x.step].add(x)
	x.timer = time.AfterFunc(time.Duration(x.Within), func() { n.end(x) })
}

// List returns the node's faults, the oldest first.
func (n *Node) List() []Report {
	if n == nil {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	all := make([]Report, 0, len(n.faults))
	for _, id := range slices.Sorted(maps.Keys(n.faults)) {
		x := n.faults[id]
		r := Report{ID: id, Fault: x.Fault, State: x.state, Hits: x.hits, Fired: x.fired, Since: x.since, Problem: x.problem}
		if x.step == noStep {
			r.Hits = x.touch.Load()
		}
		all = append(all, r)
	}
	return all
}

// Clear ends a fault; one that has ended already stays as it is.
func (n *Node) Clear(id uint64) (cleared int, err error) {
	if n == nil {
		return 0, errNil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	x := n.faults[id]
	switch {
	case x == nil:
		return 0, fmt.Errorf("%w: %d", ErrNoFault, id)
	case x.state == Ended:
		return 0, nil
	}
	return 1, n.endLocked(x)
}

// ClearAll ends all faults. It returns how many had not ended before. List still has them.
func (n *Node) ClearAll() (cleared int, err error) {
	if n == nil {
		return 0, nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	var errs []error
	for _, id := range slices.Sorted(maps.Keys(n.faults)) {
		if x := n.faults[id]; x.state != Ended {
			cleared++
			errs = append(errs, n.endLocked(x))
		}
	}
	return cleared, errors.Join(errs...)
}

// Close ends all faults and waits for the goroutines of Add. Nothing can be added any more. A
// freeze that is under way ends by itself first.
func (n *Node) Close() error {
	if n == nil {
		return nil
	}
	n.mu.Lock()
	n.closed = true
	n.mu.Unlock()
	_, err := n.ClearAll()
	n.work.Wait()
	return err
}

// end ends x, once.
func (n *Node) end(x *fault) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.endLocked(x)
}

func (n *Node) endLocked(x *fault) error {
	if x.state == Ended {
		return nil
	}
	x.state = Ended
	// Behind undo: a goroutine that over wakes must not meet the fault again, and wait once more.
	defer close(x.over)
	if x.timer != nil {
		x.timer.Stop()
	}
	if x.step != noStep {
		n.points[x.step].remove(x)
	}
	if x.undo == nil {
		return nil
	}
	err := x.undo()
	if err != nil {
		x.problem = err.Error()
	}
	return err
}
