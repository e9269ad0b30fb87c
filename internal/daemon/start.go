package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/engine"
	"github.com/fabricd/fabricd/internal/faults"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/wait"
	"github.com/fabricd/fabricd/membership"
	"github.com/fabricd/fabricd/membership/gossip"
	"github.com/fabricd/fabricd/membership/services"
	"github.com/fabricd/fabricd/membership/state"
	"github.com/fabricd/fabricd/membership/trust"
	"github.com/fabricd/fabricd/membership/verdict"
)

// lostPairs are the policies by the words of the setting.
var lostPairs = map[string]verdict.PartialPolicy{"reset": verdict.PartialReset, "evict": verdict.PartialEvict}

// reloadEvery is the time between two looks at an operator's files.
const reloadEvery = 30 * time.Second

// openOperator reads an operator's files, if there are any.
func (d *Daemon) openOperator(context.Context) (err error) {
	if d.cfg.TLS.CA == "" {
		return nil
	}
	if err := d.noteSecret("key", d.cfg.TLS.Key); err != nil {
		return err
	}
	d.operator, err = trust.LoadOperator(trust.Files(d.cfg.TLS), d.clock.Now)
	if err != nil {
		return operatorProblem(d.cfg.TLS, err)
	}
	return nil
}

// lockPatience bounds how long a host that starts waits for its state directory: a backup
// of a host that has ended has it for a moment, and may not keep the next one from starting.
const lockPatience = 5 * time.Second

// whileLocked calls open until another process does not have the directory, or for patience.
func whileLocked(ctx context.Context, patience time.Duration, open func() error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := open()
		if !errors.Is(err, state.ErrLocked) {
			return err
		}
		if !wait.For(ctx.Done(), 50*time.Millisecond) {
			return err
		}
	}
}

// openState opens the state directory and checks that it is this node's. A new
// one of a node whose certificate an operator has issued gets the UUID in that
// certificate.
func (d *Daemon) openState(ctx context.Context) (err error) {
	opts := state.Options{RebuildLeases: d.opts.RebuildLeases, Now: d.nodeFaults.Now, Faults: d.nodeFaults}
	if d.operator != nil {
		opts.Node = d.operator.Store().Identity().Node
	}
	if d.cfg.Role == RoleHost {
		err = whileLocked(ctx, lockPatience, func() (err error) {
			d.state, err = state.Open(d.cfg.StateDir, opts)
			return err
		})
	} else {
		d.state, err = state.Prepare(d.cfg.StateDir, d.cfg.Name, opts)
	}
	if err != nil {
		return stateProblem(d.cfg.StateDir, err)
	}
	d.keepName()
	if d.state.Identity().Role != state.Role(d.cfg.Role) {
		return problem("role", string(d.cfg.Role), fmt.Sprintf("state directory %s was made for the role %s", d.cfg.StateDir, d.state.Identity().Role), state.ErrRole)
	}
	if own := d.state.Identity().Node; d.operator != nil && own != opts.Node {
		return problem("cert", d.cfg.TLS.Cert, fmt.Sprintf("is for node %s, state directory %s is of node %s", opts.Node, d.cfg.StateDir, own), nil)
	}
	d.tasks.wg.Go(d.maintainDisk)
	if d.opts.Heap != nil {
		d.tasks.wg.Go(func() { d.opts.Heap.rest(d.tasks.ctx) })
	}
	for _, note := range d.state.Notes() {
		d.log.Warn().Str("op", "state").Msg(note)
	}
	return nil
}

// keepName gives a host without a name in its settings the one that it was made with.
func (d *Daemon) keepName() {
	kept := d.state.Identity().Name
	if d.cfg.Role != RoleHost || d.cfg.named || d.cfg.Name != machineName() || kept == "" || kept == d.cfg.Name {
		return
	}
	d.cfg.Name = kept
	d.log = d.opts.Log.With().Str("node", kept).Logger()
}

// join makes the node a member of its cluster, if it is none. It goes on until
// the host answers, or ctx ends.
func (d *Daemon) join(ctx context.Context) error {
	if d.operator != nil {
		err := d.joinOperators()
		if err == nil {
			d.sayStart()
		}
		return err
	}
	token, given, err := d.token()
	if err != nil {
		return err
	}
	switch {
	case d.state.Joined():
		return d.joinWith(ctx, token) // which only has to do something if the certificate has expired
	case !given:
		return problem("token-file", "", "a node that has not joined yet needs the file of a join token", nil)
	case len(d.cfg.Join) == 0:
		return problem("join", "", "a node that has not joined yet needs the host's address", nil)
	}
	return d.joinWith(ctx, token)
}

// joinOperators makes the node a member of the cluster that its certificate
// names. It needs nothing from the host but the gossip keys.
func (d *Daemon) joinOperators() error {
	cluster := d.operator.Store().Identity().Cluster
	if d.state.Joined() {
		if d.state.CheckCluster(cluster) != nil {
			return problem("state-dir", d.cfg.StateDir, fmt.Sprintf("belongs to cluster %s, the certificate to %s",
				d.state.Identity().Cluster, cluster), state.ErrOtherCluster)
		}
		return nil
	}
	switch {
	case d.cfg.TokenFile == "":
		return problem("token-file", "", "a node that has not joined yet needs the file of the gossip keys", nil)
	case len(d.cfg.Join) == 0:
		return problem("join", "", "a node that has not joined yet needs the host's address", nil)
	}
	if err := d.noteSecret("token-file", d.cfg.TokenFile); err != nil {
		return err
	}
	keys, err := readKeyring(d.cfg.TokenFile)
	if err != nil {
		return err
	}
	err = d.state.Join(state.Joined{Cluster: cluster, Secrets: map[state.SecretName][]byte{state.SecretKeyring: keys.Encode()}})
	if err != nil {
		return stateProblem(d.cfg.StateDir, err)
	}
	return nil
}

// waitsEvery is how often a node that has not joined logs that it waits for the host.
const waitsEvery = time.Minute

// joinWith joins with a token.
func (d *Daemon) joinWith(ctx context.Context, token trust.Token) error {
	d.sayStart()
	said, saidAt, joined := "", time.Time{}, d.state.Joined()
	err := membership.Join(ctx, membership.JoinConfig{
		State: d.state, Token: token, Addresses: d.cfg.Join, Log: d.log, Faults: d.nodeFaults,
		Status: func(text string) { // every second, mostly the same
			text = oneLine(text)
			if text != said || time.Since(saidAt) >= waitsEvery {
				d.log.Warn().Str("op", "join").Msg(text)
				said, saidAt = text, time.Now()
			}
			d.setWaits(text)
		},
	})
	switch {
	case err == nil && !joined:
		d.log.Info().Str("op", "join").Stringer("cluster", d.state.Identity().Cluster).Msg("joined a cluster")
		return nil
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return err
	}
	if errors.Is(err, membership.ErrName) {
		return problem("name", d.cfg.Name, oneLine(err.Error()), err)
	}
	return problem("token-file", d.cfg.TokenFile, oneLine(err.Error()), err)
}

// token returns the configured join token. A node that has joined may have lost
// its token, but not hold one of another cluster.
func (d *Daemon) token() (token trust.Token, given bool, err error) {
	if d.cfg.TokenFile == "" {
		return token, false, nil
	}
	if err := d.noteSecret("token-file", d.cfg.TokenFile); err != nil {
		return token, false, err
	}
	token, err = readToken(d.cfg.TokenFile)
	if d.state.Joined() && errors.Is(err, fs.ErrNotExist) {
		return token, false, nil
	}
	if err != nil {
		return token, false, err
	}
	if d.state.Joined() && d.state.CheckCluster(token.Cluster) != nil {
		return token, false, problem("state-dir", d.cfg.StateDir, fmt.Sprintf("belongs to cluster %s, the token to %s; want another directory or another token",
			d.state.Identity().Cluster, token.Cluster), state.ErrOtherCluster)
	}
	return token, true, nil
}

func (d *Daemon) setWaits(text string) {
	if d.opts.Waits != nil {
		d.opts.Waits(text)
	}
	d.live.set(func(p *parts) { p.waits = text })
}

// loadTrust returns the node's credentials: the operator's, or those that the
// host has issued.
func (d *Daemon) loadTrust() (*trust.Store, error) {
	if d.operator == nil {
		return membership.LoadTrust(d.state, d.clock.Now)
	}
	d.tasks.wg.Go(func() { d.reload(d.operator) })
	return d.operator.Store(), nil
}

// reload takes over new operator's files until the node ends.
func (d *Daemon) reload(op *trust.Operator) {
	for wait.For(d.tasks.ctx.Done(), reloadEvery) {
		changed, err := op.Reload()
		switch {
		case err != nil:
			d.log.Warn().Str("op", "trust").Err(err).Msg("the operator's files cannot be used; keeping the ones before")
		case changed:
			d.log.Info().Str("op", "trust").Msg("took over the operator's new files")
		}
	}
}

// startEngine starts the engine over its providers, then membership, which reports the nodes to it.
func (d *Daemon) startEngine(ctx context.Context) error {
	store, err := d.loadTrust()
	if err != nil {
		return err
	}
	d.nodeList.setCluster(d.state.Identity().Cluster)
	timing := verdict.TimingOf(d.cfg.Detection)
	giveUp := giveUpAfter(timing)
	providers, err := d.openProviders(store, giveUp)
	if err != nil {
		return err
	}
	reports, leases := &reporter{}, newLeases(d.tasks.ctx)
	engine := engine.Start(engine.Config{
		Access:         d.live.get().access,
		Refused:        d.auditRefusal,
		Providers:      providers,
		Log:            d.log,
		Record:         d.record,
		ConnectTimeout: d.cfg.ConnectTimeout,
		Heartbeat:      timing.Heartbeat,
		SilenceBound:   timing.Silence,
		GiveUp:         giveUp,
		ConnMemory:     d.memory.get,
		MaxEndpoints:   max(d.cfg.Local.Quotas.Endpoints, engine.MaxEndpoints),
		ProveLease:     leases.prove,
		Now:            d.clock.Now,
		Report:         reports.report,
		Faults:         d.nodeFaults,
		Paths:          d.pathNetwork(),
		ServesAnew:     reports.servesAnew,
	})
	d.acceptPaths(engine)
	d.live.set(func(p *parts) {
		p.engine = engine
		engine.SetAccess(p.access) // which may have changed meanwhile
	})
	return d.startMembership(ctx, store, engine, reports, leases)
}

// giveUpAfter is when a silent link is given up, and a connection of it whose bytes do not
// arrive: as a silent node is known to be lost.
func giveUpAfter(t verdict.Timing) time.Duration { return t.Silence + t.Check }

// startMembership takes part in the cluster.
func (d *Daemon) startMembership(ctx context.Context, store *trust.Store, engine *engine.Node, reports *reporter, leases *leases) error {
	b := &bridge{
		cluster: d.state.Identity().Cluster, name: d.cfg.Name, term: d.state.Term, lease: leases.own,
		engine: engine, nodeList: d.nodeList, log: d.log,
		meet: func(ev membership.Event) { d.links.meet(d.tasks.ctx, ev, d.tasks.wg.Go) },
	}
	at := d.live.get().addresses
	carried, _ := d.providers()
	agent, err := membership.Start(ctx, membership.Config{
		State:    d.state,
		Trust:    store,
		Node:     membership.NodeConfig{Name: d.cfg.Name, Addresses: []string{at.data}, Providers: carried, Want: d.cfg.NodeID},
		Listener: d.links.streams(d.ports.demux, faults.Control),
		Dial:     d.links.dial(faults.Control),
		Refused:  d.countRefused,
		Seeds:    d.cfg.Join,
		Gossip: membership.GossipConfig{
			Advertise: at.gossip,
			Packets:   d.links.packets(d.ports.gossip.packets, faults.Gossip),
			Streams:   d.links.streams(d.ports.gossip.streams, faults.Gossip),
			Dial:      d.links.dial(faults.Gossip),
			Sighted:   d.links.sighted(),
		},
		Detection: gossip.Profile(d.cfg.Detection),
		Partial:   lostPairs[d.cfg.LostPair],

		CertificateValidity: d.cfg.CertificateValidity,
		MaxNodes:            d.cfg.MaxNodes,
		Networks:            d.cfg.AllowedNetworks,
		Audit:               d.auditMembership,
		Probe:               func(ctx context.Context, incarnation addr.Incarnation) error { return probe(ctx, engine, incarnation) },
		OnEvent: func(ev membership.Event) {
			d.auditIncarnation(ev)
			b.handle(ev)
		},
		Revalidate: engine.Revalidate,
		Serves:     func() []services.Service { return servicesOf(engine.Serves()) },
		OnServices: func(incarnation addr.Incarnation, list []services.Service) {
			engine.NodeServices(incarnation, namedOf(list))
		},
		Bars:   d.barsService,
		Barred: engine.Barred,
		Now:    d.clock.Now,
		Faults: d.nodeFaults,
		Log:    d.log,
	})
	d.ports.data.streams, d.ports.gossip = nil, portPair{} // the agent's, also if it failed
	leases.of(agent)
	if err != nil {
		return err
	}
	reports.to(agent)
	d.live.set(func(p *parts) { p.agent, p.store, p.phase, p.waits = agent, store, phaseJoined, "" })
	d.tasks.wg.Go(func() { d.watch(agent) })
	return nil
}

// probe returns nil if an incarnation answers the engine.
func probe(ctx context.Context, engine *engine.Node, incarnation addr.Incarnation) error {
	_, err := engine.Ping(ctx, incarnation.Node)
	if errors.Is(err, status.Version) {
		return nil // an answer: it runs, only no link with it is to be had
	}
	return err
}

// watch ends the node when membership ends by itself, which it also does, in
// its own words, at the end of a leave.
func (d *Daemon) watch(agent *membership.Agent) {
	select {
	case <-agent.Done():
		if err := agent.Err(); !errors.Is(err, membership.ErrClosed) && d.live.get().phase != phaseLeaving {
			d.fail(err)
		}
	case <-d.tasks.ctx.Done():
	}
}
