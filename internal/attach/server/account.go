package server

import (
	"fmt"
	"math"
	"sync"

	"github.com/fabricd/fabricd/internal/attach/proto"
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

	// Descriptors of the node that all of a user's applications hold, beside those of
	// paths; three quarters of what other users leave. Those of one session have no bound
	// of their own.
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
	heldFiles   // descriptors of the node, but for those of pathSockets
	pathSockets // the node's duplicates of paths
	resources
)

var resourceNames = [resources]string{"sessions", "endpoints", "windows", "pieces of memory", "bytes of window memory", "mappings", "channels", "descriptors", "paths (max-paths)"}

// An account counts what one session, or all sessions of one user, hold.
type account struct {
	who    string
	limit  [resources]int64
	parent *account // charged as well; nil for a user's

	mu   sync.Mutex // guards used; taken before the parent's
	used [resources]int64
}

func newAccount(who string, l Limits, parent *account) *account {
	a := &account{who: who, parent: parent, limit: [resources]int64{
		sessions: l.Sessions, endpoints: l.Endpoints, windows: l.Windows, memories: l.Windows, mappings: l.Windows, windowBytes: l.WindowBytes,
		channels: l.Channels, heldFiles: l.Descriptors,
	}}
	share := int64(unbounded)
	if parent != nil {
		share = fairShare
	}
	a.limit[pathSockets] = share
	if l.Descriptors == 0 {
		a.limit[heldFiles] = share
	}
	return a
}

// reserve is how many descriptors applications leave to the node at least: for its
// files, its peers and its operators.
const reserve = 64

// Limits that are no numbers of their own.
const (
	unbounded = math.MaxInt64 // the parent's alone
	fairShare = -1            // three quarters of what the parent's other accounts leave; the parent has a number
)

// applicationFiles is how many descriptors all applications together may make the node
// hold by default: three quarters of those that the process may have, and fewer where
// that is less than reserve below all of them.
func applicationFiles() int64 {
	all := shm.Descriptors()
	return max(all-max(all/4, reserve), 0)
}

// DefaultPaths is how many of applicationFiles are for paths where nothing else is set:
// half, so that each connection can have one.
func DefaultPaths() int64 { return max(applicationFiles()/2, 1) }

// UserShare returns how many descriptors beside paths, and how many paths, the
// applications of one user may have while there is no other one, on a node with so many
// paths at most.
func UserShare(maxPaths int64) (files, paths int64) {
	total := newTotal(0, maxPaths)
	user := newAccount("a user", Limits{}, total)
	return user.most(heldFiles), user.most(pathSockets)
}

// newTotal returns the account of all applications, which bounds their descriptors
// alone: all of them, or applicationFiles if that is 0. Of these maxPaths, two thirds at
// most, are for paths, which never take those that connections need.
func newTotal(all, maxPaths int64) *account {
	if all == 0 {
		all = applicationFiles()
	}
	a := newAccount("all applications", Limits{}, nil)
	for r := range a.limit {
		a.limit[r] = unbounded
	}
	a.limit[pathSockets] = min(maxPaths, all/3*2)
	a.limit[heldFiles] = all - a.limit[pathSockets]
	return a
}

// newSessionAccount returns the account of a session of a user.
func newSessionAccount(l Limits, user *account) *account {
	l.Descriptors = unbounded
	a := newAccount("a session", l, user)
	a.limit[pathSockets] = unbounded
	return a
}

// charge takes n, at least 0, of r, or returns status.NoMemory and takes
// nothing.
func (a *account) charge(r resource, n int64) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if most := a.most(r); n > most-a.used[r] {
		return fmt.Errorf("%s may have %d %s: %w", a.who, most, resourceNames[r], status.NoMemory)
	}
	if a.parent != nil {
		if err := a.parent.charge(r, n); err != nil {
			return err
		}
	}
	a.used[r] += n
	return nil
}

// most is how much of r the account may have now. The caller holds mu.
func (a *account) most(r resource) int64 {
	if a.limit[r] != fairShare {
		return a.limit[r]
	}
	p := a.parent
	p.mu.Lock()
	defer p.mu.Unlock()
	free := p.limit[r] - p.used[r] + a.used[r]
	return free - free/4
}

// chargePath takes a path: the node's duplicate of its socket, and the application's end
// until it is sent.
func (a *account) chargePath() error {
	if err := a.charge(pathSockets, 1); err != nil {
		return err
	}
	if err := a.charge(heldFiles, 1); err != nil {
		a.refund(pathSockets, 1)
		return err
	}
	return nil
}

// refund gives back what charge took.
func (a *account) refund(r resource, n int64) {
	a.mu.Lock()
	a.used[r] -= n
	if a.used[r] < 0 {
		panic("BUG: attach: refund of what was not charged: " + resourceNames[r])
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

// bounds are how many requests of each kind a session may have that are not yet
// answered, for one that may hold what a limits. Those that give back are as many as
// there are things to give back, and those that accept as many as may come of them.
func bounds(a *account) [proto.Kinds]int {
	return [proto.Kinds]int{
		proto.GivesBack: int(a.limit[endpoints] + a.limit[windows]),
		proto.Accepts:   int(a.limit[endpoints]),
		proto.Connects:  proto.MaxRequests,
		proto.Moves:     proto.MaxRequests,
	}
}
