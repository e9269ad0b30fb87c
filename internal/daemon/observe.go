package daemon

import (
	"cmp"
	"context"
	"maps"
	"math"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/engine"
	"github.com/fabricd/fabricd/internal/gateway/spec"
	"github.com/fabricd/fabricd/internal/observe"
	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/internal/wait"
	"github.com/fabricd/fabricd/membership"
)

const (
	// snapshotAge is how old a snapshot may be: many readers at once cost no more than one.
	snapshotAge = 500 * time.Millisecond
	// snapshotConns, snapshotServices and snapshotEvents (which is per kind) bound the lists
	// of a snapshot.
	snapshotConns    = 200
	snapshotServices = 500
	snapshotEvents   = 128
)

// An observer takes snapshots of a node for its readers.
type observer struct {
	d *Daemon

	mu   sync.Mutex // held while a snapshot is taken
	last observe.Snapshot
	at   time.Time // of last, by the monotonic clock

	rowsMu sync.Mutex  // guards the fields below
	asked  time.Time   // when the other nodes were asked for their rows last
	turn   addr.NodeID // the last one that was asked in its turn
	rows   map[addr.NodeID]saidRow
}

// A saidRow is a node's last report on its links.
type saidRow struct {
	row observe.Row
	at  time.Time
}

const (
	// measureEvery is the time between two round trips to the peers without a link while a
	// page is open, and between two questions to them; links measure their own.
	measureEvery = 5 * time.Second
	// askTime is how long an answer may take, and rowAge how long one is shown where each node
	// is asked each time.
	askTime = 2 * time.Second
	rowAge  = 3 * measureEvery
	// rowsMost bounds the nodes of the matrix, which would be unreadable with more, and the
	// nodes beside them that are asked at once.
	rowsMost = 32
)

// measure has round trips to all nodes measured, and the others' asked for, until ctx ends:
// a link is made only when it is needed, and a page without a viewer needs none.
func (o *observer) measure(ctx context.Context) {
	for {
		if e, _ := o.d.live.engineAndAgent(); e != nil {
			e.Measure(ctx, math.MaxInt)
			o.askRows(ctx, e)
		}
		if !wait.For(ctx.Done(), measureEvery) {
			return
		}
	}
}

// askRows asks the other nodes for their links, unless another page has just done so.
func (o *observer) askRows(ctx context.Context, e *engine.Node) {
	o.rowsMu.Lock()
	now := time.Now()
	fresh := !o.asked.IsZero() && now.Sub(o.asked) < measureEvery/2
	if !fresh {
		o.asked = now
	}
	o.rowsMu.Unlock()
	if fresh {
		return
	}
	s := o.snapshot()
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	var asking sync.WaitGroup
	for _, node := range o.toAsk(e.Links(), s.Shown) {
		asking.Go(func() {
			said, err := e.LinksOf(ctx, node)
			if err != nil {
				return // one of an earlier version, or a link that is silent: the row grows old
			}
			row := observe.RowOf(s, node, said).Cut(s.Shown, rowsMost)
			o.rowsMu.Lock()
			defer o.rowsMu.Unlock()
			o.rows[node] = saidRow{row, time.Now()}
		})
	}
	asking.Wait()
}

// toAsk returns the nodes to ask now, of those with links: the shown ones, and rowsMost of the
// others, which take turns.
func (o *observer) toAsk(links []engine.LinkInfo, shown []addr.NodeID) []addr.NodeID {
	var ask, others []addr.NodeID
	for _, l := range links {
		if slices.Contains(shown, l.Node) {
			ask = append(ask, l.Node)
		} else {
			others = append(others, l.Node)
		}
	}
	slices.Sort(others)
	ask, others = slices.Compact(ask), slices.Compact(others) // a pair may have two links
	o.rowsMu.Lock()
	defer o.rowsMu.Unlock()
	if len(others) > rowsMost {
		at, _ := slices.BinarySearch(others, o.turn+1)
		others = slices.Concat(others[at:], others[:at])[:rowsMost]
		o.turn = others[rowsMost-1]
	}
	return append(ask, others...)
}

// addRows chooses the nodes that s shows, and adds the recent reports of those.
func (o *observer) addRows(s *observe.Snapshot, now time.Time) {
	o.rowsMu.Lock()
	defer o.rowsMu.Unlock()
	turns := 1 + len(s.Nodes)/rowsMost
	maps.DeleteFunc(o.rows, func(_ addr.NodeID, r saidRow) bool { return now.Sub(r.at) > rowAge*time.Duration(turns) })
	var all []observe.Row
	for _, node := range slices.Sorted(maps.Keys(o.rows)) {
		all = append(all, o.rows[node].row)
	}
	s.Shown = observe.Matrix(*s, all, rowsMost)
	for _, row := range all {
		if slices.Contains(s.Shown, row.Node) {
			s.Rows = append(s.Rows, row.Cut(s.Shown, 0))
		}
	}
}

// snapshot returns the node's state of now, or of at most snapshotAge ago.
func (o *observer) snapshot() observe.Snapshot {
	o.mu.Lock()
	defer o.mu.Unlock()
	if now := time.Now(); o.at.IsZero() || now.Sub(o.at) >= snapshotAge {
		o.last, o.at = o.d.observe(now), now
		o.addRows(&o.last, now)
	}
	return o.last
}

// Findings returns the problems that the node sees, of at most snapshotAge ago.
func (d *Daemon) Findings() []Finding { return observe.Findings(d.page.observer.snapshot()) }

// observe takes a snapshot.
func (d *Daemon) observe(now time.Time) observe.Snapshot {
	s := observe.Snapshot{Time: now.UTC(), Self: d.observeSelf(), Links: []engine.LinkInfo{}, Ports: []engine.PortInfo{},
		Conns: []engine.ConnInfo{}, Services: []observe.Service{}, Nodes: []observe.Node{}, Events: []observe.Event{}, Rows: []observe.Row{}}
	for _, n := range d.Nodes().Nodes {
		s.Nodes = append(s.Nodes, observe.Node{ID: n.ID, Generation: n.Generation, Name: n.Name, State: n.State, Addresses: n.Addresses, Since: n.Since})
	}
	s.Totals.Descriptors, s.Totals.DescriptorLimit = openDescriptors(), shm.Descriptors()
	s.Queues = map[string]float64{"audit": d.audit.Fill(), "event_readers": d.nodeList.fill()}
	e, agent := d.live.engineAndAgent()
	if e != nil {
		d.observeEngine(&s, e)
	}
	if agent != nil {
		observeMembership(&s, agent.Queues())
	}
	if apps := d.live.get().apps; apps != nil {
		s.Quotas = apps.server.Quotas()
	}
	for _, g := range d.Gateways() {
		if g.State != spec.Listening {
			s.Gateways = append(s.Gateways, observe.Gateway{Line: string(g.Kind) + " " + g.Line, State: g.State, Detail: g.Detail})
		}
	}
	d.observeHost(&s.Host)
	d.observePast(&s)
	return s
}

// observeMembership adds membership's queues.
func observeMembership(s *observe.Snapshot, q membership.Queues) {
	s.Totals.DiskWrites = q.DiskWrites
	s.Membership = map[string]observe.Queue{"inbox": {Waiting: q.Inbox, Limit: membership.MaxInbox}, "events": {Waiting: q.Events, Limit: membership.MaxEvents}}
	s.Queues["control_sessions"] = q.Sessions
	for name, queue := range s.Membership {
		s.Queues["membership_"+name] = float64(queue.Waiting) / float64(queue.Limit)
	}
}

// observePast adds past events, and since when nodes are suspect.
func (d *Daemon) observePast(s *observe.Snapshot) {
	for _, e := range d.record.Last(snapshotEvents) {
		s.Events = append(s.Events, observe.Event{Time: e.Time, Event: e.Event, Node: incarnationOf(e), Name: e.Name, Text: e.Detail, Count: e.Count})
		if e.Event != EventUpdated || e.Detail != membership.Suspect.String() {
			continue
		}
		for i := range s.Nodes {
			if n := &s.Nodes[i]; n.State == e.Detail && e.Peer == (addr.Incarnation{Node: n.ID, Generation: n.Generation}) {
				n.Suspect = e.Time
			}
		}
	}
	s.Removals, s.Refusals = d.nodeList.ended(), map[string]uint64{}
	for _, kind := range []string{observe.JoinRefused, observe.ConnectRefused, observe.BindRefused} {
		s.Refusals[kind] = d.record.Count(kind)
	}
}

// observeSelf returns the state of this node itself.
func (d *Daemon) observeSelf() observe.Self {
	st := d.Status()
	self := observe.Self{ID: st.ID, Generation: st.Generation, Name: st.Name, Role: string(st.Role), Version: st.Version, Cluster: st.Cluster,
		Started: st.Started, State: st.State, Detail: st.Detail, HostLost: st.Host == "lost", HostDetail: st.HostDetail, Certificate: st.Certificate,
		Warnings: rows(st.Warnings), Providers: rows(st.Providers), Unavailable: []string{}, Panics: st.Panics, Strangers: st.Counts.Refused}
	for _, u := range st.Unavailable {
		self.Unavailable = append(self.Unavailable, u.Provider+": "+u.Reason)
	}
	if store := d.live.get().store; store != nil {
		self.Renewal = store.Credentials().RenewAt().UTC()
	}
	off, jump := d.clock.Off()
	self.ClockOff, self.JumpedBy, self.JumpedAt = off, jump.By, jump.At
	return self
}

// observeEngine adds the tables of the engine.
func (d *Daemon) observeEngine(s *observe.Snapshot, e *engine.Node) {
	s.Links, s.Ports, s.Conns, s.Wins, s.Counters = rows(e.Links()), rows(e.Ports()), rows(e.Conns()), e.Windows(), e.Counters()
	maps.Copy(s.Queues, e.Queues())
	t := &s.Totals
	t.Conns, t.Windows = len(s.Conns), len(s.Wins)
	for _, c := range s.Conns {
		t.UnreadBytes += int64(c.Unread)
		t.UnsentBytes += int64(c.Unsent)
		if c.Socket != nil {
			t.UnreadBytes += int64(c.Socket.UnreadBytes)
		}
		if c.WaitingMS >= observe.WaitFrom.Milliseconds() {
			t.Waiting++
		}
	}
	for _, w := range s.Wins {
		t.WindowBytes += w.Length
	}
	t.ConnMemory, t.ConnMemoryLimit = e.ConnMemory()
	services := e.Services()
	t.Services = len(services)
	for _, x := range services[:min(len(services), snapshotServices)] {
		row := observe.Service{Name: x.Name, Node: x.Node, Address: addr.Addr{Node: x.Incarnation.Node, Port: x.Port}.String(), RoundTripUS: -1}
		if x.RoundTrip >= 0 {
			row.RoundTripUS = x.RoundTrip.Microseconds()
		}
		s.Services = append(s.Services, row)
	}
	t.Paths = e.Paths()
	if d.cfg.NoPaths() == "" {
		t.PathLimit = d.cfg.maxPaths()
	}
	slices.SortStableFunc(s.Conns, func(a, b engine.ConnInfo) int { return cmp.Compare(b.WaitingMS, a.WaitingMS) })
	s.Conns = s.Conns[:min(len(s.Conns), snapshotConns)]
}

// observeHost adds the state that only the host knows.
func (d *Daemon) observeHost(h *observe.Host) {
	h.Tokens, h.Banned = []observe.Token{}, []observe.Banned{}
	if all, err := d.Enrolled(); err == nil { // else this is not the host
		for _, e := range all.Nodes {
			if e.Banned != nil {
				h.Banned = append(h.Banned, observe.Banned{Name: e.Name, Reason: e.Reason, Since: *e.Banned})
			}
		}
	}
	if all, err := d.Tokens(); err == nil { // as above
		for _, t := range all.Tokens {
			token := observe.Token{ID: t.ID, Usable: t.Usable}
			if t.Expires != nil {
				token.Expires = *t.Expires
			}
			h.Tokens = append(h.Tokens, token)
		}
	}
}

// openDescriptors returns how many descriptors this process has; 0: not known.
func openDescriptors() int64 {
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return int64(len(names) - 1) // that of the directory
}
