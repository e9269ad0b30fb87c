package daemon

import (
	"cmp"
	"context"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/engine"
	"github.com/fabricd/fabricd/internal/observe"
	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/membership"
)

const (
	// snapshotAge is how old a snapshot may be: many readers at once cost no more than one.
	snapshotAge = 500 * time.Millisecond
	// snapshotConns, snapshotServices and snapshotEvents, which is of each kind, bound what a
	// snapshot lists.
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

	measures sync.Mutex // held by the one that measures round trips
}

const (
	// measureEvery is the time between two round trips to the peers without a link while a
	// page is open; links measure their own.
	measureEvery = 5 * time.Second
	// measureTime is how long one may take.
	measureTime = 2 * time.Second
)

// measure has round trips to all nodes measured until ctx ends: a link is made only when
// it is needed, and a page that nobody watches needs none.
func (o *observer) measure(ctx context.Context) {
	for {
		if o.measures.TryLock() {
			o.measureOnce(ctx)
			o.measures.Unlock()
		}
		if !sleep(ctx, measureEvery) {
			return
		}
	}
}

// measureOnce makes a link to each live node that has none.
func (o *observer) measureOnce(ctx context.Context) {
	s := o.snapshot()
	for _, n := range s.Nodes {
		linked := slices.ContainsFunc(s.Links, func(l engine.LinkInfo) bool { return l.Node == n.ID })
		if linked || n.ID == s.Self.ID || n.State != "alive" {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, measureTime)
		// A node that cannot be reached is seen in the table of links, and in the log.
		_, _ = o.d.Ping(ctx, n.ID)
		cancel()
	}
}

// snapshot returns what the node knows now, or knew a moment ago.
func (o *observer) snapshot() observe.Snapshot {
	o.mu.Lock()
	defer o.mu.Unlock()
	if now := time.Now(); o.at.IsZero() || now.Sub(o.at) >= snapshotAge {
		o.last, o.at = o.d.observe(now), now
	}
	return o.last
}

// observe takes a snapshot.
func (d *Daemon) observe(now time.Time) observe.Snapshot {
	s := observe.Snapshot{Time: now.UTC(), Self: d.observeSelf(), Links: []engine.LinkInfo{}, Ports: []engine.PortInfo{},
		Conns: []engine.ConnInfo{}, Services: []observe.Service{}, Nodes: []observe.Node{}, Events: []observe.Event{}}
	for _, n := range d.Nodes().Nodes {
		s.Nodes = append(s.Nodes, observe.Node{ID: n.ID, Generation: n.Generation, Name: n.Name, State: n.State, Addresses: n.Addresses, Since: n.Since})
	}
	s.Totals.Descriptors, s.Totals.DescriptorLimit = openDescriptors(), shm.Descriptors()
	s.Queues = map[string]float64{"audit": d.audit.Fill(), "event_readers": d.roster.fill()}
	if e, _ := d.rooms(); e != nil {
		d.observeEngine(&s, e)
	}
	d.mu.Lock()
	apps := d.apps
	d.mu.Unlock()
	if apps != nil {
		s.Quotas = apps.server.Quotas()
	}
	d.observeHost(&s.Host)
	d.observePast(&s)
	return s
}

// observePast adds what has happened, and since when nodes are suspect.
func (d *Daemon) observePast(s *observe.Snapshot) {
	for _, e := range d.record.Last(snapshotEvents) {
		s.Events = append(s.Events, observe.Event{Time: e.Time, Event: e.Event, Node: lifeOf(e), Name: e.Name, Text: e.Detail, Count: e.Count})
		if e.Event != EventUpdated || e.Detail != membership.Suspect.String() {
			continue
		}
		for i := range s.Nodes {
			if n := &s.Nodes[i]; n.State == e.Detail && e.Peer == (addr.Life{Node: n.ID, Generation: n.Generation}) {
				n.Suspect = e.Time
			}
		}
	}
	s.Removals, s.Refusals = d.roster.ended(), map[string]uint64{}
	for _, kind := range []string{observe.JoinRefused, observe.ConnectRefused, observe.BindRefused} {
		s.Refusals[kind] = d.record.Count(kind)
	}
}

// observeSelf says how this node itself is.
func (d *Daemon) observeSelf() observe.Self {
	st := d.Status()
	self := observe.Self{ID: st.ID, Generation: st.Generation, Name: st.Name, Role: string(st.Role), Version: st.Version, Cluster: st.Cluster,
		Started: st.Started, State: st.State, Detail: st.Detail, HostLost: st.Host == "lost", HostDetail: st.HostDetail, Certificate: st.Certificate,
		Warnings: rows(st.Warnings), Providers: rows(st.Providers), Unavailable: []string{}, Panics: st.Panics, Strangers: st.Counts.Refused}
	for _, u := range st.Unavailable {
		self.Unavailable = append(self.Unavailable, u.Provider+": "+u.Reason)
	}
	d.mu.Lock()
	store := d.store
	d.mu.Unlock()
	if store != nil {
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
		row := observe.Service{Name: x.Name, Node: x.Node, Address: addr.Addr{Node: x.Life.Node, Port: x.Port}.String(), RoundTripUS: -1}
		if x.RoundTrip >= 0 {
			row.RoundTripUS = x.RoundTrip.Microseconds()
		}
		s.Services = append(s.Services, row)
	}
	t.Paths = e.Paths()
	if d.noPaths() == "" {
		t.PathLimit = d.cfg.maxPaths()
	}
	slices.SortStableFunc(s.Conns, func(a, b engine.ConnInfo) int { return cmp.Compare(b.WaitingMS, a.WaitingMS) })
	s.Conns = s.Conns[:min(len(s.Conns), snapshotConns)]
}

// observeHost adds what only the host knows.
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
