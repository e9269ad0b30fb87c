package membership

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/membership/control"
	"github.com/fabricd/fabricd/membership/gossip"
	"github.com/fabricd/fabricd/membership/state"
	"github.com/fabricd/fabricd/membership/verdict"
)

// MaxInbox bounds the functions that wait for the loop. A poster blocks beyond it: the
// reader of a session then reads no more, which slows its peer down.
const MaxInbox = 1024

// ErrClosed is returned by methods of an agent that has ended.
var ErrClosed = errors.New("membership ended")

// ErrElsewhere is returned by Read of a connection of Config.Listener that turned
// out to be for another listener and was handed over to it. It is not worth a
// line in the log.
var ErrElsewhere = control.ErrElsewhere

// An Agent is one node's part in its cluster. Its methods may be called from
// any goroutine.
type Agent struct {
	loop
	machines

	cfg        *Config
	timing     verdict.Timing
	self       control.End // UUID, Epoch and Host are fixed; see end for the rest
	log        zerolog.Logger
	dialer     *control.Dialer
	server     *control.Server
	gossip     *gossip.Gossip
	events     *events
	disk       *disk
	enroller   *enroller // of the host, else nil
	challenges []byte    // of the host: the secret of its challenges

	// The loop goroutine owns these, and the machines.
	sessions  controlSessions
	search    hostSearch
	gossiped  gossipState
	lines     *verdict.Lines[line]
	watched   map[addr.Incarnation]bool
	banned    []addr.UUID // of a list of bans that is not complete
	memory    memory
	renewal   renewal
	handouts  handouts
	names     names
	published bool // view is up to date

	view view
}

// A view is the copy of the loop's state for other goroutines.
type view struct {
	mu sync.Mutex // guards the fields below

	self      Node
	lease     []byte // signed, of self.Incarnation
	nodes     []Node
	term      uint64
	alone     bool
	hostText  string // detail of the last EventHost
	noHost    string // why the last dial of the host failed; "": it did not
	lifelines int
	stray     uint64
	sessions  []*control.Session
	err       error
	over      map[addr.NodeID]addr.Generation // newest incarnation of each ID that is over
	bans      map[addr.UUID]bool              // banned nodes
	circle    circle
}

// Start takes part in the cluster of cfg.State. It returns when the node
// listens and gossips; the node's own incarnation comes with an EventSelf, as soon as
// the host grants it. ctx bounds Start only.
//
// A host first asks its seeds whether another host of this cluster lives, and
// refuses to start if so.
func Start(ctx context.Context, c Config) (*Agent, error) {
	cfg, err := c.withDefaults()
	if err != nil {
		closeAll(&c)
		return nil, err
	}
	a := newAgent(cfg)
	if err := a.start(ctx); err != nil {
		closeAll(cfg)
		a.cancel()
		return nil, fmt.Errorf("start membership: %w", err)
	}
	a.publish()
	go a.run()
	return a, nil
}

// closeAll closes the resources passed to Start, when it fails.
func closeAll(c *Config) {
	if c.Listener != nil {
		c.Listener.Close()
	}
	if c.Gossip.Packets != nil {
		c.Gossip.Packets.Close()
	}
	if c.Gossip.Streams != nil {
		c.Gossip.Streams.Close()
	}
}

func newAgent(cfg *Config) *Agent {
	a := &Agent{
		loop:       newLoop(),
		cfg:        cfg,
		timing:     cfg.Timing,
		log:        cfg.Log,
		challenges: newChallenges(),
		sessions:   newControlSessions(),
		gossiped:   newGossipState(),
		watched:    make(map[addr.Incarnation]bool),
		names:      newNames(),
	}
	a.view.over = make(map[addr.NodeID]addr.Generation)
	a.dialer = &control.Dialer{Store: cfg.Trust, Dial: cfg.Dial, Self: a.end}
	return a
}

func (a *Agent) start(ctx context.Context) error {
	epoch, err := a.cfg.State.NextEpoch()
	if err != nil {
		return err
	}
	a.self = control.End{UUID: a.cfg.State.Identity().Node, Epoch: epoch, Host: a.cfg.host()}
	if err := a.makeMachines(ctx, epoch); err != nil {
		return err
	}
	a.loadBans()
	a.beginCircle()
	a.beginRenewal()
	a.handouts = handouts{
		keys:     keys{handout: newHandout(a.sendKeys), ring: a.cfg.State.Secret(state.SecretKeyring)},
		roots:    roots{handout: newHandout(a.sendRoots)},
		changing: make(chan struct{}, 1),
	}
	if err := a.startGossip(epoch); err != nil {
		return err
	}
	a.events = newEvents(a.handle, a.handled, a.cfg.OnServices, func() { a.fail(errors.New("the handler of events does not return")) })
	a.pace = verdict.NewPace(a.host, a.member, a.timing, a.gossip.Began(), time.Now()) // beats are at the times of gossip's own work
	a.lines = verdict.NewLines(a.self.UUID, &a.pace, lineShell{a}, lineOf)
	a.timer = time.NewTimer(0)
	a.disk = newDisk(a.cfg.State, a.cfg.Faults, a.log, a.persisted)
	a.wg.Go(a.events.run)
	a.wg.Go(a.disk.run)
	a.server = control.Serve(a.serverConfig())
	return nil
}

// makeMachines makes the two deciding machines from the records on disk.
func (a *Agent) makeMachines(ctx context.Context, epoch uint64) error {
	self, err := a.cfg.identity(epoch)
	if err != nil {
		return fmt.Errorf("start membership: %w", err)
	}
	now, lease := time.Now(), a.lastLease()
	if a.cfg.host() {
		if err := a.askForOtherHosts(ctx); err != nil {
			return err
		}
		term, err := a.cfg.State.NextTerm()
		if err != nil {
			return err
		}
		a.host, err = verdict.NewHost(verdict.HostConfig{
			Self:     self,
			Term:     term,
			Leases:   a.cfg.State.Leases().All(),
			Cursor:   a.cfg.State.Leases().Cursor(),
			Floor:    a.cfg.State.Leases().Floor(),
			Timing:   a.timing,
			Partial:  a.cfg.Partial,
			Networks: a.cfg.Networks,
		}, now)
		if err != nil {
			return err
		}
		if a.enroller, err = newEnroller(a); err != nil {
			return err
		}
	}
	a.member, err = verdict.NewMember(verdict.MemberConfig{
		Self:     self,
		Previous: lease.Incarnation,
		Lease:    lease.Signed,
		Term:     a.cfg.State.Term(),
		Want:     a.cfg.Node.Want,
		Timing:   a.timing,
	}, now)
	return err
}

// end describes this node to the other end of a connection.
func (a *Agent) end() (control.End, []byte) {
	a.view.mu.Lock()
	defer a.view.mu.Unlock()
	e := a.self
	e.Incarnation, e.Term = a.view.self.Incarnation, a.view.term
	return e, a.view.lease
}

// ask has the loop run f and returns its result; ok is false if the agent has
// ended. The loop itself must not ask.
func ask[T any](a *Agent, f func() T) (answer T, ok bool) {
	answers := make(chan T, 1)
	if !a.post(func() { answers <- f() }) {
		return answer, false
	}
	select {
	case answer = <-answers:
		return answer, true
	case <-a.ctx.Done():
		return answer, false
	}
}

// run is the loop: the only goroutine that touches the machines and the maps
// of sessions and lifelines, and the only one that reads the clock for them.
func (a *Agent) run() {
	defer a.timer.Stop()
	defer a.names.timer.Stop()
	for a.ending == nil {
		select {
		case f := <-a.inbox:
			f()
		case <-a.timer.C:
			a.tick(time.Now())
		case <-a.gossip.Wake():
			a.takeGossip()
		case <-a.names.anew:
			a.names.own.Set(a.cfg.Serves())
			a.names.stale = true
		case <-a.names.timer.C:
			a.names.stale = true
		case <-a.ctx.Done():
			a.ending = ErrClosed
		}
		a.sendDueNames()
		a.publish()
		a.rearm(time.Now())
	}
	a.stop()
}

// stop ends everything, in an order in which nothing waits for the loop.
func (a *Agent) stop() {
	a.fail(a.ending)
	a.server.Close()
	for _, s := range a.sessions.open {
		a.endSession(s)
	}
	for _, l := range a.lines.All() {
		a.endLine(l)
	}
	a.gossip.Close()
	a.events.close()
	a.disk.close()
	a.wg.Wait()
	for _, s := range a.sessions.open {
		<-s.Done()
	}
	for _, l := range a.lines.All() {
		if l.up != nil {
			<-l.up.Done()
		}
	}
	close(a.done)
}

// fail ends the agent with err. It may be called from any goroutine.
func (a *Agent) fail(err error) {
	a.view.mu.Lock()
	if a.view.err == nil {
		a.view.err = err
	}
	a.view.mu.Unlock()
	a.cancel()
}

func (a *Agent) tick(now time.Time) {
	if a.pace.Tick(now) {
		a.resetLineTimers(now)
	}
	if a.host != nil {
		a.feedHost(verdict.Tick{})
	}
	a.feedMember(verdict.Tick{})
	a.maintainLines(now)
	a.beatLines(now)
	a.maintainHandout(&a.handouts.keys.handout, now)
	a.maintainHandout(&a.handouts.roots.handout, now)
	a.maintainCertificate(now)
	a.sweep(now)
	a.rememberMembers(now)
}

// publish shows the loop's state to other goroutines.
func (a *Agent) publish() {
	if a.published {
		return
	}
	a.published = true
	if a.show() {
		a.gossip.Recheck()
	}
}

// show is publish without gossip. It reports whether the table has other nodes.
func (a *Agent) show() (others bool) {
	a.view.mu.Lock()
	defer a.view.mu.Unlock()
	a.view.self, a.view.lease = a.member.Self(), a.member.Lease()
	a.view.nodes = a.member.Nodes()
	a.view.term = a.member.Term()
	a.view.alone = a.member.Alone()
	a.view.sessions = slices.Collect(maps.Values(a.sessions.open))
	a.view.lifelines, a.view.stray = a.linesUp(), a.names.stray
	return a.view.circle.meet(a.view.nodes)
}

// Self returns this node. Its Incarnation is the zero Incarnation while it has none.
func (a *Agent) Self() Node {
	a.view.mu.Lock()
	defer a.view.mu.Unlock()
	return a.view.self
}

// Nodes returns all other incarnations in the cluster as this node sees it, in order
// of ID. The caller owns the slice.
func (a *Agent) Nodes() []Node {
	a.view.mu.Lock()
	defer a.view.mu.Unlock()
	return slices.Clone(a.view.nodes)
}

// Report passes on a data link's evidence about an incarnation. It may be called often.
func (a *Agent) Report(incarnation addr.Incarnation, e Evidence) {
	a.post(func() { a.feedMember(verdict.Link{Incarnation: incarnation, Evidence: e}) })
}

// Watch sets whether this node has links in use to incarnation. Such an incarnation gets a lifeline
// beside those that this node watches in any case ([verdict.Watched]).
func (a *Agent) Watch(incarnation addr.Incarnation, inUse bool) {
	a.post(func() {
		if inUse {
			a.watched[incarnation] = true
		} else {
			delete(a.watched, incarnation)
		}
	})
}

// Leave ends this node's incarnation with a leave message to the host and to every member that
// gossips, then closes the agent. It returns earlier, with the agent closed,
// when ctx ends.
func (a *Agent) Leave(ctx context.Context) error {
	defer a.Close()
	if !a.post(func() { a.feedMember(verdict.Depart{}) }) {
		return ErrClosed
	}
	select {
	case <-a.departed:
		return a.gossip.Leave(ctx)
	case <-a.ctx.Done():
		select {
		case <-a.departed: // a host that leaves steps down with that
			return nil
		default:
			return a.Err()
		}
	case <-ctx.Done():
		return fmt.Errorf("leave: the host did not confirm: %w", context.Cause(ctx))
	}
}

// Close ends the agent without a leave message: to the others this node has crashed. It
// waits for every goroutine, and for OnEvent if it runs; OnEvent must not call
// it. A second call waits too.
func (a *Agent) Close() error {
	a.cancel()
	<-a.done
	return nil
}

// Done is closed when the agent has ended, by Close or Leave or because the
// cluster refused this node for good; Err is then the reason.
func (a *Agent) Done() <-chan struct{} { return a.done }

// Err returns why the agent ended: ErrClosed after Close or Leave, nil while it
// runs.
func (a *Agent) Err() error {
	a.view.mu.Lock()
	defer a.view.mu.Unlock()
	return a.view.err
}
