package chaos

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/daemon"
	"github.com/fabricd/fabricd/internal/lab/chaos/workload"
	"github.com/fabricd/fabricd/internal/lab/history"
)

// A follower watches one incarnation of a daemon: it writes when it serves, its events about
// the nodes, and how it ends. Its goroutine ends with the daemon; the cluster waits for
// it.
type follower struct {
	node    *node
	child   child
	source  history.Source
	serving chan struct{} // closed when the daemon serves applications
	doomed  atomic.Bool   // the lab has asked it to end by itself
}

// followers are the goroutines that follow the processes of a cluster. The run's goroutine sets
// ctx and cancel before the first of them starts.
type followers struct {
	ctx       context.Context // done when they have to end
	cancel    context.CancelFunc
	wg        sync.WaitGroup
	listeners sync.WaitGroup // those of them that write the events of daemons
	ending    atomic.Bool    // the lab ends everything: exit codes mean nothing
}

// stopListening stops writing the daemons' events: from here on they are caused by the
// lab's shutdown.
func (f *followers) stopListening() {
	f.cancel()
	f.listeners.Wait()
}

// watchEnd writes down how a process ends.
func (c *cluster) watchEnd(p child, source history.Source) {
	c.followers.wg.Go(func() {
		<-p.ended()
		c.ended(p, source, history.DidExit)
	})
}

// ended writes down how a process has ended.
func (c *cluster) ended(p child, source history.Source, did history.Did) {
	if !c.followers.ending.Load() {
		c.log.Put(&history.Process{Target: source, Did: did, Code: p.code()})
		c.disturbed()
	}
}

// follow starts a follower.
func (c *cluster) follow(f *follower) {
	ctx, cancel := context.WithCancel(c.followers.ctx)
	c.followers.wg.Go(func() {
		<-f.child.ended()
		cancel()
		did := history.DidExit
		if f.doomed.Load() {
			did = history.DidCrash
		}
		c.ended(f.child, f.source, did)
	})
	f.node.mu.Lock()
	f.node.follower = f
	f.node.mu.Unlock()
	c.followers.listeners.Go(func() {
		defer cancel()
		if incarnation, ok := f.awaitServing(ctx); ok {
			f.listen(ctx, incarnation)
		}
	})
}

// awaitServing waits until the daemon has its place in the cluster.
func (f *follower) awaitServing(ctx context.Context) (addr.Incarnation, bool) {
	s := f.node
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for {
		st, err := s.status(ctx)
		if err == nil && st.State == "joined" {
			s.mu.Lock()
			s.id = int(st.ID)
			s.mu.Unlock()
			incarnation := addr.Incarnation{Node: st.ID, Generation: st.Generation}
			s.c.log.Put(&history.Process{Target: f.source, Did: history.DidStart, Detail: incarnation.String()})
			s.c.disturbed()
			close(f.serving)
			s.c.onServing(ctx, s)
			return incarnation, true
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return addr.Incarnation{}, false
		}
	}
}

// listen writes the daemon's log: its events about the nodes.
func (f *follower) listen(ctx context.Context, incarnation addr.Incarnation) {
	c := f.node.c
	out, err := os.OpenFile(c.historyFile(f.source), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		c.fail(err)
		return
	}
	defer out.Close()
	t := &eventWriter{log: workload.NewLog(out, f.source, c.clock), self: incarnation}
	events := make(chan daemon.NodeEvent, 64)
	c.followers.listeners.Go(func() { // ends with ctx or with the daemon
		defer close(events)
		// It ends with an error always: the daemon's end, or ours.
		_ = f.node.admin.Events(ctx, func(e daemon.NodeEvent) error {
			select {
			case events <- e:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	})
	if t.run(events); t.lagged {
		c.fail(fmt.Errorf("%s: the lab was too slow to read its events", f.source))
	}
	if err := t.log.Err(); err != nil {
		c.fail(err)
	}
}

// An eventWriter translates the events of a daemon's admin interface.
type eventWriter struct {
	log    *workload.Log
	self   addr.Incarnation
	live   []history.Member
	lagged bool // events were lost
}

// quiet is for how long no further node is reported before the view is written, unless
// an event of a change comes first.
const quiet = 100 * time.Millisecond

func (t *eventWriter) run(events <-chan daemon.NodeEvent) {
	view := time.NewTimer(quiet)
	defer view.Stop()
	t.log.Put(&history.Event{What: history.EventSelf, Observer: t.self, Subject: t.self})
	for {
		select {
		case <-view.C:
			t.view()
		case e, ok := <-events:
			if !ok {
				return
			}
			if e.Event == daemon.EventCurrent { // the node was there when the stream began
				t.live = append(t.live, history.Member{Incarnation: incarnationOf(e.Node)})
				view.Reset(quiet)
				continue
			}
			if view.Stop() {
				t.view()
			}
			t.write(e)
		}
	}
}

// view writes the nodes that were there when the stream began.
func (t *eventWriter) view() {
	t.log.Put(&history.View{Observer: t.self, Live: t.live})
}

func incarnationOf(n *daemon.NodeInfo) addr.Incarnation {
	return addr.Incarnation{Node: n.ID, Generation: n.Generation}
}

func (t *eventWriter) write(e daemon.NodeEvent) {
	r := &history.Event{Observer: t.self, Reason: e.Reason}
	if e.Node != nil {
		r.Subject = incarnationOf(e.Node)
	}
	switch e.Event {
	case daemon.EventAdded:
		r.What = history.EventAdded
	case daemon.EventRemoved:
		r.What = history.EventRemoved
	case daemon.EventSelf:
		r.What, t.self = history.EventSelf, r.Subject
		r.Observer = t.self
	case daemon.EventReset:
		r.What, r.Subject = history.EventReset, t.self
	case daemon.EventHost:
		r.What, r.Reason = history.EventHost, e.Detail
	case daemon.EventLagging:
		t.lagged = true
		return
	default:
		return
	}
	if r.What == history.EventHost || r.Subject.Generation != 0 {
		t.log.Put(r)
	}
}
