package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/internal/daemon"
)

// A memberNews is an event of one member's fabricd.
type memberNews struct {
	from  *member
	event daemon.NodeEvent
}

// watchAgain is how long after the end of a fabricd its events are asked for again.
const watchAgain = 100 * time.Millisecond

// watchMember sends the events of m's fabricd, across its restarts, until ctx is done.
func watchMember(ctx context.Context, m *member, to chan<- memberNews) {
	for {
		// It ends with the fabricd, which is reported elsewhere.
		_ = m.admin.Events(ctx, func(e daemon.NodeEvent) error {
			select {
			case to <- memberNews{m, e}:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		if !wait(ctx, watchAgain) {
			return
		}
	}
}

// incarnations are the newest incarnations of the nodes of a cluster, as its members have
// reported them. Each change is reported by every member; the first report counts.
type incarnations map[fabric.NodeID]incarnationSeen

// incarnationSeen is an incarnation, and whether it is in the cluster.
type incarnationSeen struct {
	gen  fabric.Generation
	here bool
}

// An incarnationChange reports that an incarnation has joined the cluster, or left it.
type incarnationChange struct {
	at     time.Time
	id     fabric.NodeID
	gen    fabric.Generation
	name   string
	joined bool
	reason string
}

// apply takes an event that node from has reported. It returns the change, if no
// member has reported it before. Events of a node that the others have lost do not
// count until it is back: it sees the others as lost.
func (l incarnations) apply(from fabric.NodeID, e daemon.NodeEvent) (c incarnationChange, isNew bool) {
	if e.Node == nil || !l[from].here && e.Node.ID != from {
		return c, false
	}
	known := l[e.Node.ID]
	switch e.Event {
	case daemon.EventCurrent, daemon.EventAdded, daemon.EventSelf:
		isNew = e.Node.Generation > known.gen
		known.here = true
	case daemon.EventRemoved:
		isNew = known.here && e.Node.Generation == known.gen
		known.here = false
	}
	if !isNew {
		return c, false
	}
	known.gen = e.Node.Generation
	l[e.Node.ID] = known
	c = incarnationChange{at: e.Time, id: e.Node.ID, gen: e.Node.Generation, name: e.Node.Name, joined: known.here, reason: e.Reason}
	if c.reason != "" {
		c.reason = withDetail(e.Reason, e.Detail)
	}
	return c, true
}

// A logEcho prints the logs of all nodes, each line after its node's name.
type logEcho struct {
	mu  sync.Mutex // guards out
	out io.Writer
}

func newLogEcho(out io.Writer) *logEcho { return &logEcho{out: out} }

// of returns the writer for the log of one process.
func (e *logEcho) of(name string) io.Writer { return &echoOf{echo: e, name: name} }

// echoOf is the echo of one process. The one goroutine that reads the process's
// output uses it.
type echoOf struct {
	echo *logEcho
	name string
	part []byte // of a line, its end is still to come
}

// Write prints the lines that p completes. It never fails: the log continues when
// standard error is gone.
func (w *echoOf) Write(p []byte) (int, error) {
	w.part = append(w.part, p...)
	for {
		i := bytes.IndexByte(w.part, '\n')
		if i < 0 {
			return len(p), nil
		}
		w.echo.print(fmt.Sprintf("%-8s %s", w.name, w.part[:i]))
		w.part = w.part[i+1:]
	}
}

// print prints one line.
func (e *logEcho) print(line string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	_ = printLine(e.out, "%s", line) // as in Write
}
