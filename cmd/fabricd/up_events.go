package main

import (
	"bytes"
	"io"
	"sync"
	"time"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/internal/daemon"
)

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

// A logEcho prints the log of one process, each line after the process's name. The one goroutine
// that reads the process's output uses it.
type logEcho struct {
	mu   *sync.Mutex // guards out, which the logs of all nodes have
	out  io.Writer
	name string
	part []byte // of a line, its end is still to come
}

// Write prints the lines that p completes. It never fails: the log continues when
// standard error is gone.
func (w *logEcho) Write(p []byte) (int, error) {
	w.part = append(w.part, p...)
	for {
		i := bytes.IndexByte(w.part, '\n')
		if i < 0 {
			return len(p), nil
		}
		w.mu.Lock()
		_ = printLine(w.out, "%-8s %s", w.name, w.part[:i]) // as said above
		w.mu.Unlock()
		w.part = w.part[i+1:]
	}
}
