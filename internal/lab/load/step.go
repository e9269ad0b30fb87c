package load

import (
	"cmp"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/lab/history"
	"github.com/fabricd/fabricd/internal/lab/scenario"
)

// A Task is one thing that an end does beside others.
type Task struct {
	First Step
	// Begins: it begins calls by itself, until nothing more is to begin. Others wait
	// for the peer.
	Begins bool
}

// A Step is a call and the function that continues after it.
type Step struct {
	Call Call
	Then func(Result) Step // nil: the task is over
	// Over, of a task that is over: only the task has ended. Otherwise the end is to be
	// closed: it has finished its work, or a call has failed.
	Over bool
	Also []Task // that begin now, beside this one
}

// done ends a task, and with it the connection.
var done = Step{}

// ended ends a task behind the result of its last call.
func ended(r Result) Step { return Step{Over: r.Over && r.Status == ""} }

// A Do is the operation of a [Call].
type Do int

// The calls.
const (
	Pace       Do = iota // wait until the next step of Call.Pace is taken
	Sleep                // wait for Call.For
	Send                 // all of Call.Data
	Recv                 // Call.Len bytes at most; Call.Full: exactly
	Poll                 // wait until the connection has ended
	Register             // Call.Len bytes of Call.Mem at Call.From; Result.N is the offset
	Unregister           // Call.Len bytes at Call.Offset
	Transfer             // Call.RMA
	FetchAdd             // add 1 at Call.Remote; Result.N is the old value
	Mark                 // of the operations that this end, or the peer, has begun; Result.Mark
	Wait                 // for Call.Mark
	Signal               // Call.Value at Call.Remote, and at Call.Offset if it is not 0
)

// names are the names that histories have for calls; a transfer has that of its verb.
var names = [...]string{Send: "send", Recv: "recv", Poll: "poll", Register: "register", Unregister: "unregister",
	FetchAdd: "atomic", Mark: "fence_mark", Wait: "fence_wait", Signal: "fence_signal"}

// A Call is a request of a step to its driver.
type Call struct {
	Do     Do
	Pace   *Pacer
	For    time.Duration
	Data   []byte
	Len    int
	Full   bool
	Mem    Memory
	From   int
	Writes bool // the peer may write the registered memory
	Offset int64
	Remote int64 // offset at the peer
	RMA    Operation
	Buf    []byte // memory of a transfer; RMA.Verb may use the window at Offset instead
	Sync   bool   // of a transfer
	Peer   bool   // a mark of the operations that the peer has begun
	Mark   any
	Value  uint64
	AtOnce bool // it may block for long: it is written when it begins
	// Quiet: it may fail although nothing happens to the connection, and is not written.
	Quiet bool
}

// Name returns the name that histories have for the call.
func (c Call) Name() string {
	if c.Do == Transfer {
		return c.RMA.Verb.Name()
	}
	return names[c.Do]
}

// Idle reports whether the call waits for the peer's application.
func (c Call) Idle() bool { return c.Do == Send || c.Do == Recv || c.Do == Poll }

// A Result is how a call ended.
type Result struct {
	Now    time.Duration
	N      int64
	Data   []byte // that was received
	Mark   any
	Status string // name of the errno; empty: it worked
	Over   bool   // nothing more is to begin
}

// Memory is memory that can be registered.
type Memory interface {
	Bytes() []byte
	Close() error
}

// An Env is the application around an end. Its functions do not block.
type Env interface {
	Now() time.Duration
	Put(history.Body)                                     // writes that something has happened now
	Bug(format string, args ...any)                       // writes that a promise was broken that no record shows
	Nonce() uint64                                        // a number that no other connection or window of the run has
	Alloc(n int) (Memory, error)                          // n is a number of whole pages
	Load(word []byte) uint64                              // a word that the peer may be writing
	Writer(hash uint32, conn uint64) (end Known, ok bool) // of all that [Writers] remembers
	Slow() int                                            // messages a second that each connection receives; 0: all
}

// A Plan is the workload of the applications of a run.
type Plan struct {
	Messages Messages `json:"messages"`
	RMA      RMA      `json:"rma"`
	Windows  float64  `json:"windows"`  // windows a second that are registered and unregistered on every pair
	Waiters  bool     `json:"waiters"`  // calls that wait on every pair
	Connects float64  `json:"connects"` // short connections a second to each peer that this end is client of
	// ConnectSize is how much each of them sends each way at most, in bytes.
	ConnectSize int64 `json:"connect_size"`
	Parked      int   `json:"parked"`  // bytes that are offered to a peer that does not receive: more than a connection buffers
	Receive     int   `json:"receive"` // bytes that one receive takes at most
	// Beat is how long a step that is due waits for others at most: steps are taken at
	// its multiples since the zero of the run. 0: each when it is due.
	Beat time.Duration `json:"beat"`
}

// Messages is the traffic of messages on every pair in each direction; Rate 0: none.
type Messages struct {
	Min  int64   `json:"min"` // bytes
	Max  int64   `json:"max"`
	Rate float64 `json:"rate"` // a second
}

// RMA is the traffic of operations on every pair in each direction; Rate 0: none.
type RMA struct {
	Min    int64   `json:"min"` // bytes of an operation
	Max    int64   `json:"max"`
	Rate   float64 `json:"rate"`   // operations a second
	Window int64   `json:"window"` // bytes
	Reads  float64 `json:"reads"`  // share of the operations that read, 0 to 1
	Fence  int     `json:"fence"`  // a fence wait after so many operations; 0: never
	Signal int     `json:"signal"` // a signal after so many operations; 0: never
}

// PlanOf returns the plan of a scenario's workload.
func PlanOf(w *scenario.Workload) Plan {
	p := Plan{Windows: float64(w.Windows), Waiters: w.Waiters, Connects: float64(w.Connects),
		ConnectSize: cmp.Or(int64(w.ConnectSize), pieceSize), Parked: 4 << 20, Receive: 64 << 10}
	if m := w.Messages; m != nil {
		p.Messages = Messages{Min: int64(m.Size.From), Max: int64(m.Size.To), Rate: float64(m.Rate)}
	}
	if r := w.RMA; r != nil {
		p.RMA = RMA{Min: int64(r.Size.From), Max: int64(r.Size.To), Rate: float64(r.Rate), Window: int64(r.Window),
			Reads: float64(r.Reads) / 100, Fence: r.Fence, Signal: r.Signal}
	}
	return p
}

// Kinds are the kinds of connections that a client keeps.
func (p *Plan) Kinds() []Kind {
	var kinds []Kind
	if p.Messages.Rate > 0 {
		kinds = append(kinds, Stream)
	}
	if p.RMA.Rate > 0 {
		kinds = append(kinds, OneSided)
	}
	if p.Waiters {
		kinds = append(kinds, Parked)
	}
	return kinds
}

// A Kind is the purpose of a connection: the first byte that its client sends.
type Kind byte

// The kinds.
const (
	Stream   Kind = 'S' // messages in both directions
	OneSided Kind = 'R' // operations in both directions
	Short    Kind = 'C' // one exchange, then an orderly close
	Parked   Kind = 'P' // calls that wait
)

// An End is one end of a connection.
type End struct {
	ID            history.ConnEnd
	Kind          Kind
	Local, Remote addr.Incarnation
	// LocalPort, RemotePort and Peer are those of the endpoint, set before [End.Greet].
	LocalPort, RemotePort addr.Port
	Peer                  addr.NodeID
	Open                  bool   // both ends have greeted each other
	Failed                string // how the first call failed that did; empty: none

	env       Env
	plan      *Plan
	recorders []*recorder
	window    *Window
	stage     *stage
}

// NewEnd returns the end of a client, or, if kind is 0, of a server, which learns the
// kind from the greeting.
func NewEnd(env Env, plan *Plan, kind Kind) *End {
	e := &End{Kind: kind, env: env, plan: plan, ID: history.ConnEnd{Side: history.Server}}
	if kind != 0 {
		e.ID = history.ConnEnd{Conn: env.Nonce(), Side: history.Client}
	}
	return e
}

// Tasks returns the tasks of an open end.
func (e *End) Tasks() []Task {
	switch e.Kind {
	case Stream:
		return []Task{{First: e.sender(), Begins: true}, {First: e.receiver()}}
	case OneSided:
		return []Task{{First: e.operate()}}
	case Short:
		return []Task{{First: e.exchange(), Begins: true}}
	case Parked:
		return e.park()
	}
	return nil
}

// Note takes note of how a call ended: the first failure is how the connection ends,
// unless it is the application that ends.
func (e *End) Note(status string) {
	if status != "" && status != "ECANCELED" && e.Failed == "" {
		e.Failed = status
	}
}

// Closed returns the record of the end's end.
func (e *End) Closed() *history.Closed {
	how := e.Failed
	if how == "" {
		how = history.HowClose
	}
	return &history.Closed{ConnEnd: e.ID, How: how}
}

// Flush writes the sent and received ranges that are not written yet.
func (e *End) Flush() {
	for _, t := range e.recorders {
		t.flush()
	}
}

// Window returns the window that the peer writes to; nil: none.
func (e *End) Window() *Window { return e.window }

// TakeWindow returns the window, which is the end's no more.
func (e *End) TakeWindow() *Window {
	w := e.window
	e.window = nil
	return w
}
