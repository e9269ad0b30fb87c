package workload

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/internal/lab/history"
	"github.com/fabricd/fabricd/internal/lab/load"
	"github.com/fabricd/fabricd/internal/wait"
)

const (
	// attachEvery is how long an application waits between two attempts to
	// attach or to connect.
	attachEvery = 100 * time.Millisecond
	// attachLimit bounds one attempt to attach: a fabricd that stands still
	// does not answer.
	attachLimit = 2 * time.Second
)

// An App is one application of a run.
type App struct {
	c            Config
	log          *Log
	calls        *calls
	endedWindows *endedWindows
	nonces       atomic.Uint64                                   // counts the nonces given out
	incarnations func(context.Context) ([]history.Member, error) // the node's live incarnations
	busy         atomic.Int32                                    // goroutines that begin calls
	slow         atomic.Int64                                    // messages per second that are received on each connection; 0: all
	anew         chan struct{}                                   // holds a token when the session is to end and another to begin
	// resting is closed when nothing more is to begin.
	resting chan struct{}

	mu      sync.Mutex          // guards the fields below
	writers load.Writers        // the ends that it has had
	ids     map[int]int         // IDs of nodes, by index, where the two differ
	waiting map[string]struct{} // connections that have to be made before the application is ready
}

// Run is an application from its start until ctx is done. It fails only when it cannot
// write its history: failures of the fabric are records there.
func Run(ctx context.Context, c Config) error {
	clock, err := NewClock(c.Zero)
	if err != nil {
		return err
	}
	out, err := os.OpenFile(c.History, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	a := newApp(c, NewLog(out, history.App(c.Node, c.Run), clock))
	var wg sync.WaitGroup
	wg.Go(func() { a.followControl(ctx) })
	a.run(ctx)
	wg.Wait()
	return errors.Join(a.log.Err(), out.Close())
}

func newApp(c Config, log *Log) *App {
	a := &App{c: c, log: log, calls: newCalls(log), anew: make(chan struct{}, 1), resting: make(chan struct{})}
	a.endedWindows = &endedWindows{log: log}
	a.incarnations = a.table
	a.waiting = c.expected()
	return a
}

// expected returns the names of the connections that this application makes
// when all its peers are there.
func (c *Config) expected() map[string]struct{} {
	all := make(map[string]struct{})
	for _, p := range c.Peers {
		if !p.Client || p.Late {
			continue
		}
		for _, kind := range c.Plan.Kinds() {
			all[connection(p.Node, kind)] = struct{}{}
		}
	}
	return all
}

func connection(node int, kind load.Kind) string { return fmt.Sprintf("%c%d", kind, node) }

// connected counts a connection. When all expected connections have been made once, the
// application reports that it is ready.
func (a *App) connected(node int, kind load.Kind) {
	a.mu.Lock()
	defer a.mu.Unlock()
	before := len(a.waiting)
	delete(a.waiting, connection(node, kind))
	if before > 0 && len(a.waiting) == 0 {
		a.sayReady()
	}
}

func (a *App) sayReady() {
	if a.c.Ready == "" {
		return
	}
	if err := os.WriteFile(a.c.Ready, nil, 0o644); err != nil {
		a.note("ready: %v", err)
	}
}

// run attaches again and again, and at the end scans the windows that are left.
func (a *App) run(ctx context.Context) {
	for first := true; ctx.Err() == nil && a.log.Err() == nil && !a.rests(ctx); {
		n, err := a.attach(ctx)
		if err != nil {
			wait.For(ctx.Done(), attachEvery)
			continue
		}
		if first {
			a.count(history.PhaseBaseline)
			first = false
		}
		newSession(a, n).run(ctx)
	}
	a.endedWindows.empty()
	a.calls.write(func(history.Call) bool { return true })
	a.count(history.PhaseEnd)
}

// rests reports whether nothing more is to begin, and waits for the end then.
func (a *App) rests(ctx context.Context) bool {
	select {
	case <-a.resting:
		<-ctx.Done()
		return true
	default:
		return false
	}
}

func (a *App) attach(ctx context.Context) (*fabric.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, attachLimit)
	defer cancel()
	call := a.calls.begin(history.Call{Name: "attach", Deadline: int64(a.log.Now() + attachLimit)}, false)
	n, err := fabric.Attach(ctx, a.c.Socket)
	a.calls.end(call, 0, statusOf(err))
	return n, err
}

// count writes down the resources that this process holds, but for its memory.
func (a *App) count(phase history.Phase) {
	held := Held("self")
	delete(held, "rss")
	held["goroutines"] = int64(runtime.NumGoroutine())
	a.log.Put(&history.Resources{Target: history.App(a.c.Node, a.c.Run), Phase: phase, Count: held})
}

// Now returns the time since the zero of the run.
func (a *App) Now() time.Duration { return a.log.Now() }

// Put writes that something has happened just now.
func (a *App) Put(b history.Body) { a.log.Put(b) }

// Bug writes that a promise was broken which no other record shows.
func (a *App) Bug(format string, args ...any) {
	a.log.Put(&history.Logged{Target: history.App(a.c.Node, a.c.Run), Line: "BUG: " + fmt.Sprintf(format, args...)})
}

// Nonce returns a number that no other connection or window of the run has.
func (a *App) Nonce() uint64 {
	return load.Nonce(a.c.Seed, history.App(a.c.Node, a.c.Run), a.nonces.Add(1))
}

// Load loads a word that the peer may be writing.
func (a *App) Load(word []byte) uint64 { return fabric.LoadUint64(word) }

// Writer returns the end that a writer field stands for.
func (a *App) Writer(hash uint32, conn uint64) (load.Known, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.writers.Find(hash, conn)
}

// known remembers an end.
func (a *App) known(e *load.End) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.writers.Add(e)
}

// Slow returns how many messages a second each connection receives; 0: all.
func (a *App) Slow() int { return int(a.slow.Load()) }

// note writes a line for people.
func (a *App) note(format string, args ...any) {
	a.log.Put(&history.Note{Text: fmt.Sprintf(format, args...)})
}
