package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/fabricd/fabricd/fabric"
)

// A loss is one daemon that was killed or stopped, and the time in milliseconds until each survivor
// detected it.
type loss struct {
	incarnation fabric.Incarnation
	removed     []figure // NODE_REMOVED
	returned    []figure // the receive that was blocked
}

// A failure is a way to lose a daemon.
type failure struct {
	how       string
	detection string // the daemons' setting
	hit       func(*os.Process) error
}

var (
	kill       = failure{"kill -9", "normal", (*os.Process).Kill}
	stopFast   = failure{"SIGSTOP", "fast", stop}
	stopNormal = failure{"SIGSTOP", "normal", stop}
)

func stop(p *os.Process) error { return p.Signal(syscall.SIGSTOP) }

// loseEach loses one daemon of a cluster after the other: in turn all but the host.
func loseEach(ctx context.Context, exe string, nodes, count int, s failure) (losses []loss, err error) {
	err = withObservers(ctx, exe, nodes, s.detection, func(g *observedFleet) error {
		return g.inTurn(ctx, count, func(victim int) error {
			l, err := g.lose(ctx, victim, s)
			losses = append(losses, l)
			return err
		})
	})
	return losses, err
}

// withObservers starts a fleet with an observer at every daemon, and ends both.
func withObservers(ctx context.Context, exe string, nodes int, detection string, do func(g *observedFleet) error) (err error) {
	f, err := newFleet(ctx, exe, nodes, "--detection", detection)
	if err != nil {
		return err
	}
	g := &observedFleet{fleet: f, observers: make([]*observer, nodes)}
	defer func() {
		if err != nil && !errors.Is(err, context.Canceled) {
			err = fmt.Errorf("%w\n%s", err, f.tails(12))
		}
		g.close()
		err = errors.Join(err, f.close())
	}()
	for i := range f.daemons {
		if err := g.observe(ctx, i); err != nil {
			return err
		}
	}
	return do(g)
}

// inTurn calls lose count times, for all daemons but the host in turn, and fails if an event
// follows the last.
func (g *observedFleet) inTurn(ctx context.Context, count int, lose func(victim int) error) error {
	for i := range count {
		victim := 1 + i%(len(g.observers)-1)
		if err := lose(victim); err != nil {
			return fmt.Errorf("loss %d of %d, node %d: %w", i+1, count, victim, err)
		}
	}
	return g.quiet(ctx, settle)
}

// settle is how long no event may follow the expected ones.
const settle = time.Second

// lossLimit bounds the wait for one loss, and for one return.
const lossLimit = 20 * time.Second

// An observedFleet is a fleet with an observer at every daemon. One goroutine owns it.
type observedFleet struct {
	fleet     *fleet
	observers []*observer    // by daemon
	blocking  sync.WaitGroup // goroutines that are blocked in a receive
}

// An observer is an application at one daemon, which receives its node's events.
type observer struct {
	node   *fabric.Node
	cancel func()
	events chan stamped // capacity 1024, more than all losses cause
}

// A stamped is an event and when it arrived.
type stamped struct {
	fabric.Event
	at time.Time
}

// observe puts an observer at daemon i, once that sees all the others.
func (g *observedFleet) observe(ctx context.Context, i int) error {
	node, err := g.fleet.daemons[i].attach(ctx)
	if err != nil {
		return err
	}
	p := &observer{node: node, events: make(chan stamped, 1024)}
	g.observers[i] = p
	if err := sees(ctx, node, len(g.fleet.daemons)); err != nil {
		return err
	}
	p.cancel = node.OnEvent(func(ev fabric.Event) { p.events <- stamped{ev, time.Now()} })
	return nil
}

func (p *observer) close() {
	if p.cancel != nil {
		p.cancel()
	}
	p.node.Close()
}

func (g *observedFleet) close() {
	for _, p := range g.observers {
		if p != nil {
			p.close() // ends its receives
		}
	}
	g.blocking.Wait()
}

// A wake is the end of a blocked receive.
type wake struct {
	observer int
	at       time.Time
	err      error
}

// lose loses daemon v, waits until every survivor has detected it, and restarts it.
func (g *observedFleet) lose(ctx context.Context, v int, s failure) (loss, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*lossLimit)
	defer cancel()
	incarnation := g.observers[v].node.Incarnation()
	l := loss{incarnation: incarnation}
	wakes, err := g.block(ctx, v)
	if err != nil {
		return l, err
	}
	daemon := g.fleet.daemons[v]
	began := time.Now()
	if err := s.hit(daemon.cmd.Process); err != nil {
		return l, err
	}
	if err := g.collect(ctx, v, incarnation, began, wakes, &l); err != nil {
		return l, err
	}
	return l, g.comeBack(ctx, v, incarnation)
}

// comeBack restarts the lost daemon v and waits until every survivor has seen its next incarnation.
func (g *observedFleet) comeBack(ctx context.Context, v int, incarnation fabric.Incarnation) error {
	daemon := g.fleet.daemons[v]
	daemon.end()           // it may only be stopped
	g.observers[v].close() // then, because it waits for its daemon
	if err := g.fleet.startDaemon(daemon); err != nil {
		return err
	}
	next := incarnationAfter(incarnation)
	if err := g.each(v, func(p *observer) error { return p.next(ctx, fabric.NodeAdded, next, func(stamped) {}) }); err != nil {
		return err
	}
	if err := g.observe(ctx, v); err != nil {
		return err
	}
	if got := g.observers[v].node.Incarnation(); got != next {
		return fmt.Errorf("it is back as node %v, want %v", got, next)
	}
	return nil
}

func incarnationAfter(l fabric.Incarnation) fabric.Incarnation {
	return fabric.Incarnation{Node: l.Node, Generation: l.Generation + 1}
}

// each calls do for every observer but v's.
func (g *observedFleet) each(v int, do func(p *observer) error) error {
	for i, p := range g.observers {
		if i == v {
			continue
		}
		if err := do(p); err != nil {
			return fmt.Errorf("at node %d: %w", i, err)
		}
	}
	return nil
}

// block connects every survivor to the victim and blocks it in a receive.
func (g *observedFleet) block(ctx context.Context, v int) (<-chan wake, error) {
	listener, err := g.observers[v].node.Listen(0)
	if err != nil {
		return nil, err
	}
	wakes := make(chan wake, len(g.observers)) // one of each
	for i, p := range g.observers {
		if i == v {
			continue
		}
		conn, err := connect(ctx, p.node, listener)
		if err != nil {
			return nil, fmt.Errorf("node %d connects: %w", i, err)
		}
		g.blocking.Go(func() { // ends with the connection: the victim is killed, or all is closed
			_, err := conn.Endpoint().Recv(context.Background(), make([]byte, 1))
			wakes <- wake{i, time.Now(), err}
			conn.Close()
		})
	}
	wait(ctx, 5*pollEvery) // until all of them block
	return wakes, nil
}

// connect dials the listener, which accepts and then leaves the connection idle.
func connect(ctx context.Context, from *fabric.Node, to *fabric.Listener) (*fabric.Conn, error) {
	accepted := make(chan error, 1)
	go func() { // ends with the dial: accepted, or the listener is closed
		_, err := to.AcceptConn(ctx)
		accepted <- err
	}()
	conn, err := from.DialAddr(ctx, to.Addr().(fabric.Addr))
	if err != nil {
		to.Close()
	}
	if aerr := <-accepted; err == nil {
		err = aerr
	}
	return conn, err
}

// collect waits until every survivor has detected the loss.
func (g *observedFleet) collect(ctx context.Context, v int, incarnation fabric.Incarnation, began time.Time, wakes <-chan wake, l *loss) error {
	ctx, cancel := context.WithTimeout(ctx, lossLimit)
	defer cancel()
	for range len(g.observers) - 1 {
		select {
		case w := <-wakes:
			if !errors.Is(w.err, syscall.ECONNRESET) || errors.Is(w.err, io.EOF) {
				return fmt.Errorf("at node %d the blocked receive returned %w, want ECONNRESET alone", w.observer, w.err)
			}
			l.returned = append(l.returned, milliseconds(w.at.Sub(began)))
		case <-ctx.Done():
			return fmt.Errorf("only %d receives returned: %w", len(l.returned), ctx.Err())
		}
	}
	return g.each(v, func(p *observer) error {
		return p.next(ctx, fabric.NodeRemoved, incarnation, func(ev stamped) {
			l.removed = append(l.removed, milliseconds(ev.at.Sub(began)))
		})
	})
}

// next waits for the observer's next event, which must be of this kind and incarnation.
func (p *observer) next(ctx context.Context, kind fabric.EventKind, incarnation fabric.Incarnation, see func(stamped)) error {
	want := fabric.Event{Kind: kind, Node: incarnation.Node, Generation: incarnation.Generation}
	select {
	case ev := <-p.events:
		if ev.Kind != kind || ev.Node != incarnation.Node || ev.Generation != incarnation.Generation {
			return fmt.Errorf("unexpected event: %v, want %v", ev.Event, want)
		}
		see(ev)
		return nil
	case <-ctx.Done():
		return fmt.Errorf("missing event: %v: %w", want, ctx.Err())
	}
}

// quiet fails if any event arrives within d.
func (g *observedFleet) quiet(ctx context.Context, d time.Duration) error {
	if !wait(ctx, d) {
		return ctx.Err()
	}
	return g.each(-1, func(p *observer) error {
		select {
		case ev := <-p.events:
			return fmt.Errorf("an event too many: %v", ev.Event)
		default:
			return nil
		}
	})
}

func milliseconds(d time.Duration) figure { return figure(d.Seconds() * 1e3) }
