package workload

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/internal/daemon"
	"github.com/fabricd/fabricd/internal/lab/history"
	"github.com/fabricd/fabricd/internal/lab/load"
	"github.com/fabricd/fabricd/internal/wait"
)

const (
	// Port is the port on which every application listens.
	Port fabric.Port = 2050
	// idlePort is a port that no peer ever connects to, so that an accept waits.
	idlePort fabric.Port = 2051

	lookEvery  = 20 * time.Millisecond  // at the words that signals are stored in
	careEvery  = 100 * time.Millisecond // for slow calls and for the own incarnation
	scanEvery  = 2 * time.Second        // of windows in use
	settleTime = 20 * time.Millisecond  // without an event, before a view is taken
)

// A session is one attachment of an application. Its goroutines end when the
// application is to end, or when its fabricd is gone.
type session struct {
	app  *App
	node *fabric.Node
	ctx  context.Context // of calls that may wait: done a while after over, or at once
	over chan struct{}   // closed when nothing new is to begin
	wg   sync.WaitGroup

	tries  int           // viewTries
	events atomic.Uint64 // that were delivered so far
	abrupt atomic.Bool   // it ends without a lull
	// viewDue: the node has an incarnation for which no view was written. The incarnation gets no events
	// of nodes that the node knew before, so events alone do not show the live nodes.
	viewDue atomic.Bool

	incarnations sync.Mutex // held while the own incarnation is looked at and written

	mu          sync.Mutex // guards the fields below
	incarnation fabric.Incarnation
	ends        map[*end]struct{} // connected now
}

func newSession(a *App, n *fabric.Node) *session {
	return &session{app: a, node: n, tries: viewTries, over: make(chan struct{}), ends: make(map[*end]struct{})}
}

// lull is how long an application waits between an instruction to end and closing its
// connections: others get the same instruction in the same moment.
const lull = 100 * time.Millisecond

// run runs the session until ctx is done or the fabricd is gone, and leaves nothing of
// it behind.
func (s *session) run(ctx context.Context) {
	hard, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	s.ctx = hard
	s.wg.Go(func() {
		defer close(s.over)
		select {
		case <-s.app.anew:
			s.abrupt.Store(true)
			cancel()
		case <-s.app.resting:
		case <-ctx.Done():
		case <-s.node.Done():
			s.abrupt.Store(true)
		}
	})
	stop := context.AfterFunc(ctx, func() {
		wait.For(s.node.Done(), lull)
		cancel()
	})
	defer stop()
	if s.settle() {
		s.talk()
	}
	<-s.over
	s.wg.Wait()
	// A fabricd that is gone has closed it.
	_ = s.node.Close()
}

// settle waits until the node has an incarnation, begins to listen to events and writes
// the first view.
func (s *session) settle() bool {
	for s.place() == (fabric.Incarnation{}) {
		if !wait.For(s.over, settleTime) {
			return false
		}
	}
	s.app.log.Put(&history.Event{What: history.EventSelf, Observer: s.place(), Subject: s.place()})
	s.node.OnEvent(s.event)
	return s.view()
}

// place asks for the node's incarnation; the zero incarnation while it has none.
func (s *session) place() fabric.Incarnation {
	incarnation := s.node.Incarnation()
	if incarnation.Generation == 0 {
		incarnation = fabric.Incarnation{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.incarnation == (fabric.Incarnation{}) {
		s.incarnation = incarnation
	}
	return incarnation
}

// view writes the live nodes as this application's node has them, in a moment in which
// nothing changes. SCIF's calls return IDs, the daemon's table has the generations, and
// both have to agree. A view that could not be written stays due.
func (s *session) view() bool {
	for range s.tries {
		before := s.events.Load()
		if !wait.For(s.over, settleTime) {
			return false
		}
		ids, _, err := s.node.Nodes()
		if err != nil {
			return false // the fabricd is gone
		}
		live, err := s.app.incarnations(s.ctx)
		if err != nil || s.events.Load() != before || !sameIDs(ids, live) {
			continue
		}
		s.app.log.Put(&history.View{Observer: s.current(), Live: live})
		return true
	}
	s.viewDue.Store(true) // care tries again
	s.app.note("no view: the node's table and its IDs do not agree")
	return s.on()
}

// viewTries bounds the attempts at a view, settleTime each.
const viewTries = 100

// tableLimit bounds one question for a daemon's table.
const tableLimit = 2 * time.Second

// table asks the daemon's admin interface for its live nodes.
func (a *App) table(ctx context.Context) (live []history.Member, err error) {
	ctx, cancel := context.WithTimeout(ctx, tableLimit)
	defer cancel()
	admin := daemon.NewClient(a.c.Admin)
	defer admin.Close()
	all, err := admin.Nodes(ctx)
	for _, n := range all.Nodes {
		if n.State != "removed" {
			live = append(live, history.Member{Incarnation: fabric.Incarnation{Node: n.ID, Generation: n.Generation}})
		}
	}
	return live, err
}

// sameIDs reports whether a table has exactly the nodes of a list.
func sameIDs(ids []fabric.NodeID, live []history.Member) bool {
	if len(ids) != len(live) {
		return false
	}
	for _, m := range live {
		if !slices.Contains(ids, m.Incarnation.Node) {
			return false
		}
	}
	return true
}

// current returns the incarnation that the session has last seen its node in.
func (s *session) current() fabric.Incarnation {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.incarnation
}

// talk starts everything that this application does.
func (s *session) talk() {
	c := &s.app.c
	if l := s.listen(Port); l != nil {
		s.wg.Go(func() { s.accept(l, true) })
		s.app.mu.Lock()
		if len(s.app.waiting) == 0 { // there are no peers to connect to
			s.app.sayReady()
		}
		s.app.mu.Unlock()
	}
	if c.Plan.Waiters {
		if l := s.listen(idlePort); l != nil {
			s.wg.Go(func() { s.accept(l, false) })
		}
	}
	for _, p := range c.Peers {
		if p.Client {
			s.keepAll(p.Node)
		}
	}
	s.wg.Go(s.watchSignals)
	s.wg.Go(s.care)
}

// keepAll keeps this end's connections to a peer.
func (s *session) keepAll(peer int) {
	for _, kind := range s.app.c.Plan.Kinds() {
		s.wg.Go(func() { s.keep(peer, kind) })
	}
	if s.app.c.Plan.Connects > 0 {
		s.wg.Go(func() { s.keepShort(peer) })
	}
}

// keep keeps one connection of a kind to peer: when it ends it is made again.
func (s *session) keep(peer int, kind load.Kind) {
	for s.on() {
		if e := s.dial(peer, kind); e != nil {
			s.app.connected(peer, kind)
			e.run()
		}
		wait.For(s.over, attachEvery)
	}
}

// keepShort makes short connections to peer, one after the other.
func (s *session) keepShort(peer int) {
	s.app.every(time.Duration(float64(time.Second)/s.app.c.Plan.Connects), s.over, func() {
		if e := s.dial(peer, load.Short); e != nil {
			e.run()
		}
	})
}

// on reports whether the session goes on.
func (s *session) on() bool { return !wait.Over(s.over) }

// listen listens on port; nil if it could not.
func (s *session) listen(port fabric.Port) *fabric.Listener {
	call := s.app.calls.begin(history.Call{Name: "listen"}, true)
	l, err := s.node.Listen(port)
	s.app.calls.end(call, 0, statusOf(err))
	return l
}

// accept serves incoming connections until the session ends.
func (s *session) accept(l *fabric.Listener, busy bool) {
	stop := context.AfterFunc(s.ctx, func() { l.Close() })
	defer stop()
	for {
		call := s.app.calls.begin(history.Call{Name: "accept", Idle: true}, !busy)
		conn, err := l.AcceptConn(context.Background())
		s.app.calls.end(call, 0, statusOf(err))
		switch {
		case err == nil:
		case errors.Is(err, net.ErrClosed) || !s.on():
			return
		default: // for example out of descriptors: the next one may work
			wait.For(s.over, attachEvery)
			continue
		}
		s.wg.Go(func() {
			if e := s.newEnd(conn, 0).greet(); e != nil {
				e.run()
			}
		})
	}
}

// event is the handler of node events. Its records are in the log before it returns.
func (s *session) event(ev fabric.Event) {
	s.events.Add(1)
	s.checkIncarnation() // the event is for the incarnation that the node has now
	incarnation := fabric.Incarnation{Node: ev.Node, Generation: ev.Generation}
	r := &history.Event{What: history.EventAdded, Observer: s.current(), Subject: incarnation, Reason: ev.Reason}
	if ev.Kind == fabric.NodeAdded {
		s.app.log.Put(r)
		return
	}
	r.What = history.EventRemoved
	ends := s.towards(incarnation)
	for _, e := range ends {
		e.flush()
	}
	s.app.calls.write(func(c history.Call) bool { return c.Peer == incarnation }) // they should have failed
	s.app.log.Put(r)
	for _, e := range ends {
		e.probe()
	}
}

// towards returns the ends that are connected to an incarnation.
func (s *session) towards(incarnation fabric.Incarnation) []*end {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []*end
	for e := range s.ends {
		if e.load.Remote == incarnation {
			found = append(found, e)
		}
	}
	slices.SortFunc(found, func(a, b *end) int { return int(a.load.Kind) - int(b.load.Kind) })
	return found
}

// all returns the ends that are connected.
func (s *session) all() []*end {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*end, 0, len(s.ends))
	for e := range s.ends {
		all = append(all, e)
	}
	return all
}

// watchSignals looks for new values in the words that peers store signals in, as
// operators do between their operations: then peers are busy as well.
func (s *session) watchSignals() {
	if p := s.app.c.Plan; p.RMA.Rate > 0 && p.RMA.Signal > 0 {
		s.app.every(max(lookEvery, p.Beat), s.over, func() {
			for _, e := range s.all() {
				e.look()
			}
		})
	}
}

// care writes slow calls, watches the own incarnation, and scans windows.
func (s *session) care() {
	defer s.app.calls.writeSlow()
	scanned := time.Now()
	s.app.every(careEvery, s.over, func() {
		s.app.calls.writeSlow()
		s.app.endedWindows.expire()
		s.checkIncarnation()
		if s.viewDue.Swap(false) {
			s.view()
		}
		if time.Since(scanned) < scanEvery {
			return
		}
		scanned = time.Now()
		for _, e := range s.all() {
			e.scan(nil)
		}
		s.app.endedWindows.scan()
	})
}

// leaving is how long a fabricd that leaves may go on after it has notified its
// applications: operations that are under way complete.
const leaving = 3 * time.Second

// graceOf returns for how long a window of a connection that ended now may still
// be written.
func (s *session) graceOf() time.Duration {
	select {
	case <-s.node.Done():
		return leaving
	default:
		return 0
	}
}

// checkIncarnation writes it down when the node has lost its incarnation or has another one,
// for which a view is due then.
func (s *session) checkIncarnation() {
	s.incarnations.Lock()
	defer s.incarnations.Unlock()
	now := s.node.Incarnation()
	if now.Generation == 0 {
		now = fabric.Incarnation{}
	}
	old := s.current()
	if now == old || !s.on() {
		return
	}
	s.mu.Lock()
	s.incarnation = now
	s.mu.Unlock()
	if old != (fabric.Incarnation{}) {
		s.app.log.Put(&history.Event{What: history.EventReset, Observer: old, Subject: old})
	}
	if now != (fabric.Incarnation{}) {
		s.app.log.Put(&history.Event{What: history.EventSelf, Observer: now, Subject: now})
		s.viewDue.Store(true)
	}
}
