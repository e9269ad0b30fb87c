package gateway

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/internal/gateway/spec"
	"github.com/fabricd/fabricd/internal/logbound"
)

const (
	maxCommands = 32 // of commands, each of which holds one of the admin interface's connections
)

// Gateways are the gateways of one node. Its methods may be called from any goroutine.
type Gateways struct {
	attach nodeFunc
	log    zerolog.Logger
	ctx    context.Context // of all gateways
	cancel context.CancelFunc

	attaching sync.Mutex // held while attach is asked; guards node
	node      *fabric.Node

	refusals *logbound.Summary
	runs     sync.WaitGroup // calls of Run whose gateway is among all

	mu  sync.Mutex // guards the field below
	all []*gateway // those of the configuration and of commands, in the order of their starts
}

// New returns an empty set of gateways on the node of attach, which is called when a gateway
// needs the node, and again when that node has ended. The owner of attach closes the node.
func New(attach func(context.Context) (*fabric.Node, error), log zerolog.Logger) *Gateways {
	log = log.With().Str("op", "gateway").Logger()
	g := &Gateways{attach: attach, log: log, refusals: logbound.New(log, "connections of gateways were refused")}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	return g
}

// attached returns the node.
func (g *Gateways) attached(ctx context.Context) (*fabric.Node, error) {
	g.attaching.Lock()
	defer g.attaching.Unlock()
	if g.node != nil {
		select {
		case <-g.node.Done():
		default:
			return g.node, nil
		}
	}
	node, err := g.attach(ctx)
	if err == nil {
		g.node = node
	}
	return node, err
}

// Set makes lines the gateways of the configuration: it starts those that are new and ends
// those that are gone, with their connections. It does not touch the others, nor those of
// commands. One that cannot listen tries again until it can.
func (g *Gateways) Set(lines []spec.Gateway) {
	g.mu.Lock()
	var gone []*gateway
	kept := make(map[string]bool)
	g.all = slices.DeleteFunc(g.all, func(old *gateway) bool {
		stays := old.source == spec.SourceCommand || slices.ContainsFunc(lines, old.is)
		if !stays {
			gone = append(gone, old)
		}
		kept[old.key()] = kept[old.key()] || stays && old.source == spec.SourceConfig
		return !stays
	})
	g.mu.Unlock()
	for _, old := range gone {
		old.end()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, line := range lines {
		n := g.prepare(line, spec.SourceConfig, func(spec.Event) {})
		if kept[n.key()] || g.ctx.Err() != nil {
			continue
		}
		g.all = append(g.all, n)
		n.start(g.ctx, nil)
	}
}

// Run runs a gateway for a command until ctx ends, and calls report with its events. report
// must not block. The error is the reason why the gateway could not start.
func (g *Gateways) Run(ctx context.Context, line spec.Gateway, report func(spec.Event)) error {
	if _, err := g.attached(ctx); err != nil {
		return err
	}
	n := g.prepare(line, spec.SourceCommand, report)
	if err := g.add(n); err != nil {
		return err
	}
	defer g.remove(n)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(g.ctx, cancel)()
	l, err := n.listen(ctx)
	if err != nil {
		return err
	}
	n.start(ctx, l)
	<-n.done
	return nil
}

// add adds a gateway of a command, if it does not conflict with the others.
func (g *Gateways) add(n *gateway) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ctx.Err() != nil {
		return errEnded
	}
	var lines []spec.Gateway
	commands := 0
	for _, other := range g.all {
		lines = append(lines, other.Gateway)
		if other.source == spec.SourceCommand {
			commands++
		}
	}
	if commands >= maxCommands {
		return fmt.Errorf("%d commands run gateways on this node already: make them lines of its configuration", commands)
	}
	lines = append(lines, n.Gateway)
	if _, err := spec.Check(lines, g.self()...); err != nil {
		return err
	}
	g.all = append(g.all, n)
	g.runs.Add(1)
	return nil
}

// lines returns the lines of all gateways.
func (g *Gateways) lines() []spec.Gateway {
	g.mu.Lock()
	defer g.mu.Unlock()
	var lines []spec.Gateway
	for _, n := range g.all {
		lines = append(lines, n.Gateway)
	}
	return lines
}

func (g *Gateways) remove(n *gateway) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.all = slices.DeleteFunc(g.all, func(other *gateway) bool { return other == n })
	g.runs.Done()
}

// self returns the name and the ID of the node, none if it is not attached.
func (g *Gateways) self() []string {
	g.attaching.Lock()
	defer g.attaching.Unlock()
	if g.node == nil {
		return nil
	}
	return []string{g.node.Name(), strconv.Itoa(int(g.node.ID()))}
}

// List returns the gateways as they are now.
func (g *Gateways) List() []spec.Status {
	g.mu.Lock()
	all := slices.Clone(g.all)
	g.mu.Unlock()
	list := []spec.Status{}
	for _, n := range all {
		list = append(list, n.status())
	}
	return list
}

// Close ends all gateways, resets their connections and waits for them. It waits for no
// peer: the node is left to the daemon, whose leave has a bound. A second Close does nothing.
func (g *Gateways) Close() {
	g.cancel()
	g.Set(nil)
	g.runs.Wait()
	g.refusals.Close()
}

// prepare returns a gateway that was not started.
func (g *Gateways) prepare(line spec.Gateway, source string, report func(spec.Event)) *gateway {
	return &gateway{
		Gateway: line, owner: g, side: sideOf(line, g), source: source, report: report,
		log:  g.log.With().Str("gateway", string(line.Kind)+" "+line.String()).Logger(),
		stop: func() {}, done: make(chan struct{}), open: make(map[uint64]*tracked), held: make(map[string]int),
	}
}

// key is the gateway as a line of its kind.
func (g *gateway) key() string { return string(g.Kind) + " " + g.String() }

// is reports whether the gateway is that of a line.
func (g *gateway) is(line spec.Gateway) bool {
	return g.key() == string(line.Kind)+" "+line.String()
}

// start runs the gateway until end, or the end of ctx.
func (g *gateway) start(ctx context.Context, l net.Listener) {
	ctx, g.stop = context.WithCancel(ctx)
	go g.run(ctx, l)
}

// end ends a gateway that was started and waits until nothing is left of it.
func (g *gateway) end() {
	g.stop()
	<-g.done
}
