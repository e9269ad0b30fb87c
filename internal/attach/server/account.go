package server

import (
	"fmt"
	"math"
	"sync"

	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/internal/status"
)

// Limits bound the resources of applications. A field that is 0 means the default given in its
// comment.
type Limits struct {
	Sessions    int64 // attached at a time; 64
	Endpoints   int64 // open, or closed with bytes still to deliver; 16384
	Windows     int64 // registered; as many pieces of memory, and as many mappings; 1024
	ShmPaths    int64 // ends of shared-memory paths; 128
	WindowBytes int64 // of all memory passed to the node and still in use; 1 GiB
	PathRests   int64 // bytes of closed paths that the node sends for the application; 16 MiB

	// Descriptors of the node for all of a user's applications, those of paths excluded; default:
	// three quarters of those that other users leave. A single session has no limit of its own.
	Descriptors int64
}

// SessionLimits returns the default limits of one application.
func SessionLimits() Limits { return Limits{}.withDefaults(1) }

// UserLimits returns the default limits of all applications of one user.
func UserLimits() Limits { return Limits{}.withDefaults(4) }

// withDefaults replaces zeros by scale times the defaults.
func (l Limits) withDefaults(scale int64) Limits {
	set := func(v *int64, def int64) {
		if *v == 0 {
			*v = def
		}
	}
	set(&l.Sessions, 64)
	set(&l.Endpoints, scale*16384)
	set(&l.Windows, scale*1024)
	set(&l.ShmPaths, scale*128)
	set(&l.WindowBytes, scale<<30)
	set(&l.PathRests, scale*16<<20)
	return l
}

// A resource is a kind of thing that a limit counts.
type resource int

const (
	sessions resource = iota
	endpoints
	windows
	memories
	windowBytes
	mappings
	shmPaths
	heldFiles   // descriptors of the node, except for those of pathSockets
	pathSockets // the node's duplicates of path sockets
	pathRests   // bytes of PATH_REST
	resources
)

var resourceNames = [resources]string{"sessions", "endpoints", "windows", "pieces of memory", "bytes of window memory", "mappings", "shared-memory paths", "descriptors", "paths (max-paths)", "bytes that closed paths have not sent"}

// An account counts the resources of one session, or of all sessions of one user.
type account struct {
	who    string
	limit  [resources]int64
	parent *account // charged as well; nil for the account of all applications

	mu   sync.Mutex // guards used; taken before the parent's
	used [resources]int64
}

func newAccount(who string, l Limits, parent *account) *account {
	a := &account{who: who, parent: parent, limit: [resources]int64{
		sessions: l.Sessions, endpoints: l.Endpoints, windows: l.Windows, memories: l.Windows, mappings: l.Windows, windowBytes: l.WindowBytes,
		shmPaths: l.ShmPaths, heldFiles: l.Descriptors, pathRests: l.PathRests,
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

// reserve is the least number of descriptors left to the node: for its files, its peers and its
// operators.
const reserve = 64

// Limits that are not numbers.
const (
	unbounded = math.MaxInt64 // only the parent's limit applies
	fairShare = -1            // three quarters of the amount that the parent's other accounts leave; the parent has a number
)

// applicationFiles is the default limit on descriptors of the node for all applications together:
// three quarters of the process's limit, or that limit minus reserve if that is less.
func applicationFiles() int64 {
	all := shm.Descriptors()
	return max(all-max(all/4, reserve), 0)
}

// DefaultPaths is the default share of applicationFiles for paths: half, so that each connection
// can have one.
func DefaultPaths() int64 { return max(applicationFiles()/2, 1) }

// UserShare returns the numbers of descriptors, those of paths excluded, and of paths that a single
// user's applications may have while no other user has any, on a node with maxPaths paths.
func UserShare(maxPaths int64) (files, paths int64) {
	total := newTotal(0, maxPaths)
	user := newAccount("a user", Limits{}, total)
	return user.most(heldFiles), user.most(pathSockets)
}

// newTotal returns the account of all applications. It limits only descriptors: to all, or to
// applicationFiles if all is 0. Paths may use maxPaths of them, at most two thirds, and never use
// those reserved for connections.
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

// charge adds n, at least 0, to the use of r, or returns status.NoMemory and changes nothing.
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

// most is the account's current limit on r. The caller holds mu.
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

// chargeBoth charges n of r and m of s, or nothing.
func (a *account) chargeBoth(r resource, n int64, s resource, m int64) error {
	err := a.charge(r, n)
	if err != nil {
		return err
	}
	if err = a.charge(s, m); err != nil {
		a.refund(r, n)
	}
	return err
}

// refund reverses charge.
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

// fill returns the used share of the account's bound of r; 0 without a bound.
func (a *account) fill(r resource) float64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return float64(a.used[r]) / float64(max(a.most(r), 1))
}

// quotaNames are those of metrics.
var quotaNames = map[resource]string{endpoints: "endpoints", windows: "windows", windowBytes: "window_memory", mappings: "mappings",
	shmPaths: "channels", heldFiles: "user_descriptors"}

// Quotas returns how much of each quota the application or user has that is nearest to it:
// 1 is all.
func (s *Server) Quotas() map[string]float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	fill := map[string]float64{"sessions": 0}
	for _, u := range s.users {
		fill["sessions"] = max(fill["sessions"], float64(u.conns)/float64(s.opt.User.Sessions))
	}
	for r, name := range quotaNames {
		for _, u := range s.users {
			fill[name] = max(fill[name], u.account.fill(r))
			for a := range u.sessions {
				fill[name] = max(fill[name], a.fill(r))
			}
		}
	}
	return fill
}

// idle reports whether nothing is charged.
func (a *account) idle() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.used == [resources]int64{}
}

// bounds returns the largest number of unanswered requests of each kind for a session with the
// limits of a. As many requests may release resources as there are resources, and as many may
// accept as endpoints can result.
func bounds(a *account) [proto.Kinds]int {
	return [proto.Kinds]int{
		proto.GivesBack: int(a.limit[endpoints] + a.limit[windows]),
		proto.Accepts:   int(a.limit[endpoints]),
		proto.Connects:  proto.MaxRequests,
		proto.Moves:     proto.MaxRequests,
	}
}
