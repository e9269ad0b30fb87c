package conformance

import (
	"slices"
	"syscall"
	"time"

	"github.com/fabricd/fabricd/fabric"
)

// A row is one line of the contract.
type row struct {
	call string
	name string // state or argument, "=", result

	check func(c *check)
	// conn replaces check in a row about the two ends of a new connection.
	conn func(c *check, near, far end)

	// instead is fabricd's substitute for a feature that SCIF has and fabricd does
	// not. Then check or conn, which may be nil, tests the substitute.
	instead string

	only  []Pair        // the pairs that the row is about; nil: all
	needs feature       // of the API mode
	alone bool          // the row needs a cluster of its own
	wait  time.Duration // the connect timeout of that cluster

	// after replaces check in a row about the effect of an ending on the endpoint that
	// it gets. The function that it returns is called after the ending.
	after  func(c *check) (ended func(c *check))
	ending *ending
}

// isFor reports whether the row is about pairs of kind p in the API mode.
func (r row) isFor(d Mode, p Pair) bool {
	return (r.only == nil || slices.Contains(r.only, p)) && d.Has&r.needs == r.needs
}

// test returns the row's check; nil: it has none.
func (r row) test() func(*check) {
	if r.conn == nil {
		return r.check
	}
	return func(c *check) {
		near, far := c.connected()
		r.conn(c, near, far)
	}
}

// id returns the row's unique name.
func (r row) id() string { return r.call + "/" + r.name }

// A feature is a property that some API modes have and others do not.
type feature uint

const (
	// Processes: applications are processes of their own, which a node outlives and
	// which outlive their node.
	Processes feature = 1 << iota
	// Held: transfers across nodes can be held up.
	Held
	// AllPorts: one user may have as many endpoints as there are ports.
	AllPorts
)

// brief is the connect timeout of rows about connects that time out. The first of
// them makes the link too, which a busy machine must have time for.
const brief = time.Second

// calls are SCIF's 22 user-mode calls and its node events, and the calls that
// go beyond SCIF, in the order of the report.
var calls = []string{
	"open", "bind", "listen", "connect", "accept", "close",
	"send", "recv", "poll", "get_fd", "get_nodeIDs",
	"register", "unregister", "mmap", "munmap",
	"readfrom", "writeto", "vreadfrom", "vwriteto",
	"fence_mark", "fence_wait", "fence_signal",
	"events",
	"atomic", "post", "putsignal", "vputsignal", "word",
	"shutdown", "abort",
	"service",
}

// table returns the whole contract.
func table() []row {
	return slices.Concat(
		openRows, bindRows, listenRows, connectRows, acceptRows, closeRows,
		sendRows, recvRows, pollRows, nodeRows,
		registerRows, unregisterRows, mmapRows,
		transferRows(), fenceRows(),
		eventRows,
		atomicRows(), putRows(), wordRows, closedRows, besideRows(),
		endRows(), heldRows(), fullRows, highRows(), missingRows, shutRows, serviceRows,
	)
}

// A state is how a row gets an endpoint in one of SCIF's states.
type state struct {
	name string
	of   func(c *check) end
}

var (
	unbound      = state{"UNBOUND", (*check).unbound}
	bound        = state{"BOUND", (*check).bound}
	listening    = state{"LISTENING", (*check).listening}
	connecting   = state{"CONNECTING", func(c *check) end { e, _ := c.connecting(); return e }}
	connected    = state{"CONNECTED", func(c *check) end { e, _ := c.connected(); return e }}
	accepted     = state{"accepted", func(c *check) end { _, e := c.connected(); return e }}
	disconnected = state{"DISCONNECTED", func(c *check) end { return c.disconnected("") }}
	closed       = state{"closed", (*check).closed}
)

// unconnected are the states before a connection.
var unconnected = []state{unbound, bound, listening, connecting}

// inStates returns one row per state: the call, made on an endpoint in that state,
// returns errno.
func inStates(call, what string, errno syscall.Errno, states []state, f func(c *check, e end) error) []row {
	var rows []row
	for _, s := range states {
		rows = append(rows, row{call: call, name: s.name + what + "=" + errnoName(errno), check: func(c *check) {
			c.want(f(c, s.of(c)), errno)
		}})
	}
	return rows
}

// needsConnection returns the rows of a call that works on connected endpoints
// only.
func needsConnection(call, what string, f func(c *check, e end) error) []row {
	return slices.Concat(
		inStates(call, what, syscall.ENOTCONN, unconnected, f),
		inStates(call, what, syscall.ECONNRESET, []state{disconnected}, f),
		inStates(call, what, syscall.EBADF, []state{closed}, f),
	)
}

// errnoName returns errno's name in C.
func errnoName(errno syscall.Errno) string {
	if s, ok := names[errno]; ok {
		return s
	}
	return errno.Error()
}

var names = map[syscall.Errno]string{
	0:                    "ok",
	syscall.EINVAL:       "EINVAL",
	syscall.EACCES:       "EACCES",
	syscall.EADDRINUSE:   "EADDRINUSE",
	syscall.EAGAIN:       "EAGAIN",
	syscall.ECONNREFUSED: "ECONNREFUSED",
	syscall.ECONNRESET:   "ECONNRESET",
	syscall.ENOTCONN:     "ENOTCONN",
	syscall.EISCONN:      "EISCONN",
	syscall.EINPROGRESS:  "EINPROGRESS",
	syscall.ENODEV:       "ENODEV",
	syscall.ENXIO:        "ENXIO",
	syscall.EOPNOTSUPP:   "EOPNOTSUPP",
	syscall.EINTR:        "EINTR",
	syscall.EBADF:        "EBADF",
	syscall.ENOMEM:       "ENOMEM",
	syscall.ENOSPC:       "ENOSPC",
	syscall.EFAULT:       "EFAULT",
}

const page = fabric.PageSize

const rw = fabric.ProtRead | fabric.ProtWrite
