package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/access"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/audit"
	"github.com/fabricd/fabricd/internal/engine"
	"github.com/fabricd/fabricd/internal/faults/failpoint"
	"github.com/fabricd/fabricd/internal/flight"
	"github.com/fabricd/fabricd/internal/guard"
	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/membership"
	"github.com/fabricd/fabricd/membership/state"
	"github.com/fabricd/fabricd/membership/trust"
)

// Options are settings that a Config, which comes from files, cannot hold.
type Options struct {
	Log     zerolog.Logger
	Version string // of the program, for Status
	// RebuildLeases lets a host whose lease table is damaged or lost start with
	// a new one, whose generations are above all that were ever granted.
	RebuildLeases bool
	// Faults are those of this node if the configuration enables faults; nil:
	// Start makes them with [NewFaults].
	Faults *failpoint.Node
	// Heap bounds Go's memory, and returns unused memory to the kernel when the process rests; nil:
	// neither.
	Heap *Heap
	// Settings reads the configuration again, for the settings that a running node takes over:
	// the access rules and the gateways. Nil: it never does. A change of SettingsFile, if there is
	// one, is noticed within half a minute; see [Daemon.ReloadSettings].
	Settings     func() (Config, error)
	SettingsFile string
	// Gateways makes the gateways of d; nil: it runs none.
	Gateways func(d *Daemon, log zerolog.Logger) Gateways
	// LogLevel is the level of Log, which operators change; nil: they cannot.
	LogLevel *LogLevel
	// Waits gets, as a sentence, the reason why Start waits. Nil: no reports.
	Waits func(text string)
}

// A Daemon is one running node. Its methods may be called from any goroutine.
type Daemon struct {
	cfg      Config
	loaded   Config // cfg as Start got it
	opts     Options
	log      zerolog.Logger
	started  time.Time
	nodeList *nodeList
	record   *flight.Recorder // the events of nodes, links, paths and connections

	nodeFaults *failpoint.Node // nil unless faults are enabled
	clock      *trust.Clock    // for certificates and tokens

	// Start sets these, in this order; Close ends them in the opposite one.
	admin    *admin          // nil without an admin socket
	links    *breaker        // nil unless faults are enabled
	operator *trust.Operator // nil if the host issues the certificates
	state    *state.State
	audit    *audit.Log // nil: none is written
	ports    ports
	page     page
	live     live

	tasks     tasks
	reloading sync.Mutex // held while settings are read again
	memory    *connMemory
	refused   atomic.Uint64 // connections of peers

	ended   context.Context         // done when the node has ended by itself, or was closed
	fail    context.CancelCauseFunc // ends the node by itself; nil: it is closed
	leaving once
	closing once
}

// live guards the parts of a Daemon, which the admin interface reads while Start sets them.
type live struct {
	mu    sync.Mutex // guards parts
	parts parts
}

func (l *live) get() parts {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.parts
}

func (l *live) set(change func(*parts)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(&l.parts)
}

// engineAndAgent returns the engine and the agent; one that Start has not started yet is nil.
func (l *live) engineAndAgent() (*engine.Node, *membership.Agent) {
	p := l.get()
	return p.engine, p.agent
}

// parts are the components and the state of a Daemon that change while it runs.
type parts struct {
	phase  string // joining, joined or leaving; joined only says that the node is a member
	waits  string // the reason why joining waits
	access *access.Policy
	engine *engine.Node
	// gateways is nil until there is something for them to run on.
	gateways  Gateways
	agent     *membership.Agent
	apps      *apps // nil without a socket
	store     *trust.Store
	addresses addresses
	small     string // why shared-memory paths have small pages, if huge ones were to be tried
	// noShmPaths is why there are none.
	noShmPaths string
	// Providers that are open, nil before they are, and those that cannot be.
	carried     []string
	unavailable []Unavailable
}

// ports are the sockets that other nodes reach. Start owns them until the components do.
type ports struct {
	data   portPair
	gossip portPair
	demux  *portDemux // of data
}

// A page is the HTTP server of the page and of metrics. Start sets it.
type page struct {
	observer *observer
	server   *httpServer // nil without the setting http
	at       string      // its address
}

// tasks are the daemon's own goroutines. Close cancels ctx and waits for them.
type tasks struct {
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// A once is a call that happens once, and the error that it returns to every caller.
type once struct {
	once sync.Once
	err  error
}

func (o *once) do(f func() error) error {
	o.once.Do(func() { o.err = f() })
	return o.err
}

// addresses are those under which others reach this node.
type addresses struct{ data, gossip string }

// phases of a Daemon.
const (
	phaseJoining = "joining"
	phaseJoined  = "joined"
	phaseLocal   = "local"
	phaseLeaving = "leaving"
)

// Start starts a node. It returns when the node is a member of its cluster,
// which needs the host if it never was one before; the node's ID may come
// later, see [Daemon.Ready]. ctx bounds Start only. The error is a
// *ConfigError if something of the configuration cannot be used.
//
// Without Local.Socket no applications can attach, without Local.AdminSocket
// there are no operator commands.
func Start(ctx context.Context, c Config, o Options) (*Daemon, error) {
	d := &Daemon{
		cfg: c, loaded: c, opts: o, log: o.Log.With().Str("node", c.Name).Logger(), started: time.Now(),
		nodeList: newNodeList(),
		live:     live{parts: parts{phase: phaseJoining}},
	}
	d.page.observer = &observer{d: d, rows: map[addr.NodeID]saidRow{}}
	var err error
	if d.live.parts.access, err = c.Access.policy(); err != nil {
		return nil, problem("access", "", err.Error(), err)
	}
	if err := c.checkPaths(); err != nil {
		return nil, err
	}
	if all := shm.Descriptors(); all < LeastDescriptors {
		d.log.Warn().Str("op", "start").Int64("descriptors", all).Msgf("this process may have %d descriptors (RLIMIT_NOFILE), too few to serve applications; want %d at least", all, LeastDescriptors)
	}
	d.takeNodeFaults()
	d.clock = trust.NewClock(d.nodeFaults.Now)
	d.record = flight.New(time.Now)
	d.nodeList.record = d.record
	d.tasks.ctx, d.tasks.cancel = context.WithCancel(context.Background())
	d.ended, d.fail = context.WithCancelCause(context.Background())
	d.memory = newConnMemory(c.Local.Quotas, shm.Limit, o.Heap.bound)
	if err = d.start(ctx); err != nil {
		// Undo the parts that Start has made; its own error is the one that matters.
		_ = d.Close()
		return nil, err
	}
	return d, nil
}

// start is Start up to the first error.
func (d *Daemon) start(ctx context.Context) error {
	for _, open := range []func(context.Context) error{
		d.openLinks, d.openOperator, d.openState, d.openAudit, d.openPorts, d.openPage, d.openAdmin, d.openApps, d.join,
		d.findAddresses, // again: the names of members may be known only now
		d.startEngine,
		d.openGateways,
		d.followSettings,
	} {
		if err := open(ctx); err != nil {
			return err
		}
	}
	return nil
}

// openAdmin starts the admin interface.
func (d *Daemon) openAdmin(context.Context) error {
	if d.cfg.Local.AdminSocket == "" {
		return nil
	}
	l, err := listenUnix(socketOptions{field: "admin", network: "unix", path: d.cfg.Local.AdminSocket, mode: 0o600})
	if err != nil {
		return err
	}
	d.admin = startAdmin(l, d, d.log, d.audit)
	return nil
}

// sayStart logs the node's identity and addresses, after the checks of its configuration: an error
// there is a line of its own.
func (d *Daemon) sayStart() {
	id, at := d.state.Identity(), d.live.get().addresses
	line := d.log.Info().Str("op", "start").Str("version", d.opts.Version).Str("role", string(d.cfg.Role)).
		Str("data", at.data).Str("gossip", at.gossip).Str("state_dir", absolute(d.cfg.StateDir)).
		Str("socket", absolute(d.cfg.Local.Socket)).Str("admin", absolute(d.cfg.Local.AdminSocket))
	if !id.Cluster.IsZero() {
		line = line.Stringer("cluster", id.Cluster)
	}
	line.Msg("fabricd starts")
}

// openPorts opens the sockets that other nodes reach.
func (d *Daemon) openPorts(ctx context.Context) (err error) {
	n := d.cfg.Network
	if d.ports.data, err = listenPair("data-port", n.Bind, n.DataPort); err != nil {
		return err
	}
	if d.ports.gossip, err = listenPair("gossip-port", n.Bind, n.GossipPort); err != nil {
		return err
	}
	return d.findAddresses(ctx)
}

// Done is closed when the node has ended: it was closed, or the cluster does
// not want it, or membership failed; then Err is the reason.
func (d *Daemon) Done() <-chan struct{} { return d.ended.Done() }

// Err returns why the node ended by itself, nil if it did not.
func (d *Daemon) Err() error {
	if why := context.Cause(d.ended); why != context.Canceled { // which is the cause of a Close
		return why
	}
	return nil
}

// Ready waits until the node has an ID and knows the nodes that are there: those
// that were members when it joined can be connected to.
func (d *Daemon) Ready(ctx context.Context) error {
	sub := d.subscribe()
	defer d.unsubscribe(sub)
	for {
		if d.nodeList.complete() {
			return nil
		}
		select {
		case _, ok := <-sub.events:
			if !ok {
				return errors.New("the node ended")
			}
		case <-d.ended.Done():
			return errors.Join(errors.New("the node ended"), d.Err())
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// newSession returns the node's session for an application. The error is status.Again while
// the node has no ID.
func (d *Daemon) newSession(c attach.Credentials) (attach.NodeSession, error) {
	engine, _ := d.live.engineAndAgent()
	if engine == nil || engine.Self().Incarnation.Generation == 0 {
		return nil, fmt.Errorf("the node has no ID yet: %s: %w", d.whyNoID(), status.Again)
	}
	return engine.NewSession(c), nil
}

// errNotYet is the answer of a node that is no member yet.
var errNotYet = &joiningError{}

type joiningError struct{}

func (*joiningError) Error() string { return "this node has not joined its cluster yet" }
func (*joiningError) Unwrap() error { return status.NoDevice }

// admits reports whether the configuration lets a user bind ports below
// addr.AdminEnd.
func (d *Daemon) admits(c attach.Credentials) bool {
	return slices.Contains(d.cfg.Local.AdminUIDs, c.UID) || slices.Contains(d.cfg.Local.AdminGIDs, c.GID)
}

// knows reports whether a member is, or was, at an address: connections from there have a share of
// the handshakes that strangers do not get.
func (d *Daemon) knows(at netip.Addr) bool {
	_, agent := d.live.engineAndAgent()
	return agent != nil && agent.Knows(at)
}

// Leave ends the node's connections in order and notifies the cluster that it
// leaves. It returns when that is done, or when ctx ends. Close must follow.
func (d *Daemon) Leave(ctx context.Context) error {
	return d.leaving.do(func() error {
		d.live.set(func(p *parts) { p.phase = phaseLeaving })
		engine, agent := d.live.engineAndAgent()
		if engine == nil || agent == nil {
			return nil
		}
		d.closeGateways()
		// The applications may take half the time: the word to the cluster is
		// worth more than a peer that does not read.
		half, cancel := ctx, context.CancelFunc(func() {})
		if deadline, ok := ctx.Deadline(); ok {
			half, cancel = context.WithDeadline(ctx, deadline.Add(-time.Until(deadline)/2))
		}
		defer cancel()
		if apps := d.live.get().apps; apps != nil {
			apps.leave(half)
		}
		return errors.Join(engine.Leave(half), agent.Leave(ctx))
	})
}

// Close ends the node and waits until nothing of it is left. Without Leave
// before, the others see it crash. A second Close does nothing.
func (d *Daemon) Close() error {
	return d.closing.do(func() error {
		d.tasks.cancel()
		d.fail(nil)
		err := d.nodeFaults.Close() // first: a goroutine that a fault holds at a step would block the rest
		d.closeGateways()
		if apps := d.live.get().apps; apps != nil {
			apps.close()
		}
		engine, agent := d.live.engineAndAgent()
		if agent != nil {
			err = errors.Join(err, agent.Close())
		}
		if engine != nil {
			err = errors.Join(err, engine.Close())
		}
		d.tasks.wg.Wait()
		d.links.close()
		d.nodeList.close()
		if d.admin != nil {
			d.admin.close()
		}
		if d.page.server != nil {
			d.page.server.finish()
		}
		err = errors.Join(err, d.closeAudit())
		d.ports.data.close() // the sockets that no component owns yet
		d.ports.gossip.close()
		if d.state != nil {
			err = errors.Join(err, d.state.Close())
		}
		return err
	})
}

// Status returns the data of `fabricd status`.
func (d *Daemon) Status() Status {
	live := d.live.get()
	phase, waits, at, store := live.phase, live.waits, live.addresses, live.store
	self, local := d.nodeList.own()
	if phase == phaseJoined && self.Generation == 0 {
		phase, waits = phaseJoining, "no ID yet: "+d.whyNoID()
	}
	if phase == phaseJoined && local {
		phase, waits = phaseLocal, "no host has answered since the start: only applications of this machine reach each other"
	}
	identity := d.state.Identity()
	if identity.Cluster.IsZero() {
		waits = "this node has never joined a cluster: " + cmp.Or(waits, "waiting for the host")
	}
	st := Status{
		Version: d.opts.Version, PID: os.Getpid(), Name: d.cfg.Name, Role: d.cfg.Role,
		State: phase, Detail: waits,
		Cluster: identity.Cluster.String(), Node: identity.Node.String(), Epoch: d.state.Epoch(), Term: d.state.Term(),
		ID: addr.NoNode, Generation: self.Generation,
		Host:    "lost",
		Started: d.started.UTC(), UptimeSec: int64(time.Since(d.started).Seconds()),
		Data: []string{at.data}, Gossip: at.gossip,
		Socket: absolute(d.cfg.Local.Socket), Admin: absolute(d.cfg.Local.AdminSocket), HTTP: d.page.at, StateDir: d.cfg.StateDir,
		Detection: d.cfg.Detection, TCPPlaintext: d.cfg.TCPPlaintext,
		Trust: "host", Panics: guard.Caught(), Counts: d.counts(),
	}
	if d.cfg.TLS.CA != "" {
		st.Trust = "operator"
	}
	if store != nil {
		st.Certificate = store.Identity().NotAfter.UTC()
	}
	if _, agent := d.live.engineAndAgent(); agent != nil {
		m := agent.Status()
		st.HostDetail, st.Counts.StrayLists = m.HostDetail, m.StrayLists
		if m.HostReachable || d.cfg.Role == RoleHost {
			st.Host = "reachable"
		}
		if st.HostDetail == st.Host { // the detail adds nothing
			st.HostDetail = ""
		}
	}
	if self.Generation != 0 {
		st.ID = self.Node
	}
	st.Providers, st.Unavailable = d.providers()
	st.Rings = d.ringStatus()
	st.Access = d.accessRules()
	st.FaultsEnabled, st.Warnings = d.nodeFaults != nil, d.warnings()
	return st
}

// whyNoID returns the reason why a member has no incarnation: it waits for the host, or for an
// operator to lift its ban.
func (d *Daemon) whyNoID() string {
	if _, agent := d.live.engineAndAgent(); agent != nil {
		if m := agent.Status(); !m.HostReachable && m.HostDetail != "" {
			return oneLine(m.HostDetail)
		}
	}
	return "waiting for the host"
}

// Nodes returns the data of `fabricd nodes`.
func (d *Daemon) Nodes() Nodes { return d.nodeList.snapshot(time.Now()) }

// Health returns whether the node can serve applications.
func (d *Daemon) Health() Health {
	st := d.Status()
	barred := d.tryApps()
	switch {
	case d.Err() != nil:
		return Health{false, "ended: " + d.Err().Error()}
	case st.State != phaseJoined && st.State != phaseLocal:
		return Health{false, st.State + ": " + st.Detail + faultText(st.Warnings)}
	case barred != nil:
		return Health{false, st.State + ", but no application can attach: " + oneLine(barred.Error())}
	case st.State == phaseLocal:
		return Health{true, phaseLocal + ": " + st.Detail + faultText(st.Warnings)}
	case d.state.Trouble() != nil:
		return Health{false, "joined, but the state directory cannot be written: " + oneLine(d.state.Trouble().Error())}
	case st.Host == "lost":
		return Health{true, "joined; the host is lost, which stops new joins only" + faultText(st.Warnings)}
	}
	return Health{true, phaseJoined + faultText(st.Warnings)}
}

// Ping measures a round trip to a node over their link.
func (d *Daemon) Ping(ctx context.Context, id addr.NodeID) (time.Duration, error) {
	engine, _ := d.live.engineAndAgent()
	if engine == nil {
		return 0, errNotYet
	}
	return engine.Ping(ctx, id)
}

// Self returns the node's place in the cluster.
func (d *Daemon) Self() attach.Self {
	incarnation, _ := d.nodeList.own()
	return attach.Self{Cluster: d.state.Identity().Cluster, Incarnation: incarnation, Name: d.cfg.Name}
}

func (d *Daemon) subscribe() *subscription      { return d.nodeList.subscribe(time.Now()) }
func (d *Daemon) unsubscribe(sub *subscription) { d.nodeList.unsubscribe(sub) }
