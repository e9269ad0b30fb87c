package ipc

import (
	"fmt"
	"math"
	"sync"

	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/internal/status"
)

// Limits bound what applications may hold. A field that is 0 means the default
// that stands with it.
type Limits struct {
	Sessions    int64 // attached at a time; 64
	Endpoints   int64 // open, or closed with bytes still to deliver; 16384
	Windows     int64 // registered; as many pieces of memory, and as many mappings; 1024
	Channels    int64 // ends of channels; 128
	WindowBytes int64 // of all memory handed over and still in use; 1 GiB

	// Descriptors of the node that all of a user's applications hold; a quarter of
	// those that the process may have (RLIMIT_NOFILE). Those of one session have no
	// bound of their own.
	Descriptors int64
}

// SessionLimits are those of an application for which none are set.
func SessionLimits() Limits { return Limits{}.withDefaults(1) }

// UserLimits are those of all applications of a user for which none are set.
func UserLimits() Limits { return Limits{}.withDefaults(4) }

// withDefaults fills in scale times the defaults.
func (l Limits) withDefaults(scale int64) Limits {
	set := func(v *int64, def int64) {
		if *v == 0 {
			*v = def
		}
	}
	set(&l.Sessions, 64)
	set(&l.Endpoints, scale*16384)
	set(&l.Windows, scale*1024)
	set(&l.Channels, scale*128)
	set(&l.WindowBytes, scale<<30)
	set(&l.Descriptors, shm.Descriptors()/4)
	return l
}

// A resource is what a limit counts.
type resource int

const (
	sessions resource = iota
	endpoints
	windows
	memories
	windowBytes
	mappings
	channels
	heldFiles
	resources
)

var resourceNames = [resources]string{"sessions", "endpoints", "windows", "pieces of memory", "bytes of window memory", "mappings", "channels", "descriptors"}

// An account counts what one session, or all sessions of one user, hold.
type account struct {
	who    string
	limit  [resources]int64
	parent *account // charged as well; nil for a user's

	mu   sync.Mutex // guards used
	used [resources]int64
}

func newAccount(who string, l Limits, parent *account) *account {
	return &account{who: who, parent: parent, limit: [resources]int64{
		sessions: l.Sessions, endpoints: l.Endpoints, windows: l.Windows, memories: l.Windows, mappings: l.Windows, windowBytes: l.WindowBytes,
		channels: l.Channels, heldFiles: l.Descriptors,
	}}
}

// reserve is how many descriptors applications leave to the node at least: for its
// files, its peers and its operators.
const reserve = 64

// unbounded has no limit.
const unbounded = math.MaxInt64

// newTotal returns the account of all applications, which bounds their descriptors
// alone: three quarters of those that the process may have, and fewer where that is
// less than reserve below all of them. most replaces that, if it is not 0.
func newTotal(most int64) *account {
	if most == 0 {
		all := shm.Descriptors()
		most = max(all-max(all/4, reserve), 0)
	}
	a := newAccount("all applications", Limits{}, nil)
	for r := range a.limit {
		a.limit[r] = unbounded
	}
	a.limit[heldFiles] = most
	return a
}

// newSessionAccount returns the account of a session of a user.
func newSessionAccount(l Limits, user *account) *account {
	l.Descriptors = unbounded
	return newAccount("a session", l, user)
}

// charge takes n, at least 0, of r, or returns status.NoMemory and takes
// nothing.
func (a *account) charge(r resource, n int64) error { return a.take(r, n, 1) }

// chargeSpare is charge for what can be done without: it leaves the other half of each
// limit to what cannot.
func (a *account) chargeSpare(r resource, n int64) error { return a.take(r, n, 2) }

// take is charge where 1/share of the limits is there to be taken.
func (a *account) take(r resource, n, share int64) error {
	if a.parent != nil {
		if err := a.parent.take(r, n, share); err != nil {
			return err
		}
	}
	a.mu.Lock()
	most := a.limit[r] / share
	fits := n <= most-a.used[r]
	if fits {
		a.used[r] += n
	}
	a.mu.Unlock()
	if fits {
		return nil
	}
	if a.parent != nil {
		a.parent.refund(r, n)
	}
	if share > 1 {
		return fmt.Errorf("%s may have %d %s, half of which are for connections alone: %w", a.who, a.limit[r], resourceNames[r], status.NoMemory)
	}
	return fmt.Errorf("%s may have %d %s: %w", a.who, a.limit[r], resourceNames[r], status.NoMemory)
}

// refund gives back what charge took.
func (a *account) refund(r resource, n int64) {
	a.mu.Lock()
	a.used[r] -= n
	if a.used[r] < 0 {
		panic("BUG: ipc: refund of what was not charged: " + resourceNames[r])
	}
	a.mu.Unlock()
	if a.parent != nil {
		a.parent.refund(r, n)
	}
}

// idle reports whether nothing is held.
func (a *account) idle() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.used == [resources]int64{}
}
