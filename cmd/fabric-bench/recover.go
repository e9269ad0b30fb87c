package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/fabricd/fabricd/fabric"
)

// recoverTest is from a loss until a survivor has an answer over a new
// connection.
const recoverTest = "fail_recover"

func (a *app) failRecoverCommand() *cobra.Command {
	o := &lossOptions{}
	cmd := &cobra.Command{
		Use: recoverTest, Short: "Kill daemons that are started again, until connections work", Args: cobra.NoArgs,
		Long: `fail_recover starts fabricd processes on loopback, kills one after the other with
SIGKILL and starts each again at once, as a supervisor does, with an application
that listens as soon as its node has a place. An application at every survivor
waits for the NODE_REMOVED and the NODE_ADDED, dials, and dials again after a
millisecond if that fails. Measured is from the kill until it has had an answer of
8 bytes. The new application looks for its daemon every 10 ms.`,
		Example: `  fabric-bench run fail_recover
  fabric-bench run fail_recover --providers tcp
  fabric-bench run fail_recover --nodes 3 --kills 5 --format json`,
	}
	o.flags(cmd, 8, 14)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := o.check(2); err != nil {
			return err
		}
		return a.reportOn(o.format, func(d *Document) error {
			err := a.measureRecovery(cmd.Context(), d, o)
			d.Complete = err == nil
			return err
		})
	}
	return cmd
}

// measureRecovery adds the row and the losses of fail_recover.
func (a *app) measureRecovery(ctx context.Context, d *Document, o *lossOptions) error {
	var losses []Loss
	c, err := o.loseInTurn(ctx, a, recoverTest, func(g *trial, victim int) error {
		l, err := g.recover(ctx, victim)
		if err == nil {
			losses = append(losses, l)
		}
		return err
	})
	d.Losses = append(d.Losses, losses...)
	if len(losses) > 0 {
		row := rowOf(d)
		row.carriedBy(c)
		row.Test = recoverTest
		row.Dir = "kill -9, started again, detection " + o.detection
		d.addLossRow(row, losses, func(l Loss) []figure { return l.Recovered })
	}
	return err
}

// A reach is how one survivor came to an answer.
type reach struct {
	post                   int
	removed, added, talked time.Time
	err                    error
}

// recover kills daemon v, starts it again at once, and waits until every survivor
// has talked to an application at its next life.
func (g *trial) recover(ctx context.Context, v int) (Loss, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*strikeLimit)
	defer cancel()
	life := g.posts[v].node.Life()
	l := Loss{How: "kill -9", Node: uint16(life.Node), Life: uint16(life.Generation)}
	if _, err := g.block(ctx, v); err != nil { // so that there is something to lose
		return l, err
	}
	began := time.Now()
	reached := g.talkAgain(ctx, v, life)
	g.fleet.daemons[v].kill()
	g.posts[v].close()
	restarted := time.Now()
	server, err := g.serveAgain(ctx, v)
	if err != nil {
		cancel()
	}
	for range len(g.posts) - 1 {
		r := <-reached // each ends with ctx
		if r.err != nil {
			err = first(err, fmt.Errorf("at node %d: %w", r.post, r.err))
			continue
		}
		l.Removed = append(l.Removed, microseconds(r.removed.Sub(began)))
		l.Recovered = append(l.Recovered, microseconds(r.talked.Sub(began)))
		l.Back = max(l.Back, microseconds(r.added.Sub(restarted)))
	}
	if server == nil {
		return l, err
	}
	if closed := server.close(); err != nil || closed != nil {
		return l, first(err, closed, server.node.Close())
	}
	if got := server.node.Life(); got != lifeAfter(life) {
		return l, errors.Join(fmt.Errorf("it is back as node %v, want %v", got, lifeAfter(life)), server.node.Close())
	}
	return l, g.observe(ctx, v, server.node)
}

// serveAgain starts daemon v, and a server at it as soon as it has a place.
func (g *trial) serveAgain(ctx context.Context, v int) (*server, error) {
	if err := g.fleet.start(g.fleet.daemons[v]); err != nil {
		return nil, err
	}
	node, err := g.fleet.attach(ctx, g.fleet.daemons[v])
	if err != nil {
		return nil, err
	}
	s, err := serve(node, defaultPort)
	if err != nil {
		return nil, errors.Join(err, node.Close())
	}
	return s, nil
}

// talkAgain lets every survivor of v wait for its next life and talk to it. The
// channel receives one reach of each.
func (g *trial) talkAgain(ctx context.Context, v int, life fabric.Life) <-chan reach {
	reached := make(chan reach, len(g.posts))
	for i, p := range g.posts {
		if i == v {
			continue
		}
		g.blocking.Go(func() { // ends with ctx
			r := p.reach(ctx, life)
			r.post = i
			reached <- r
		})
	}
	return reached
}

// redialEvery is the pause between two attempts to connect.
const redialEvery = time.Millisecond

// reach waits for the end of a life and for the next, and until an application
// there has answered.
func (p *post) reach(ctx context.Context, life fabric.Life) (r reach) {
	next := lifeAfter(life)
	if r.err = p.next(ctx, fabric.NodeRemoved, life, func(ev stamped) { r.removed = ev.at }); r.err != nil {
		return r
	}
	if r.err = p.next(ctx, fabric.NodeAdded, next, func(ev stamped) { r.added = ev.at }); r.err != nil {
		return r
	}
	to := fabric.Addr{Node: next.Node, Port: defaultPort}
	r.err = untilEvery(ctx, redialEvery, func() error { return talk(ctx, p.node, to) })
	r.talked = time.Now()
	return r
}

// talk connects, and sends one message there and back.
func talk(ctx context.Context, from *fabric.Node, to fabric.Addr) error {
	ch, err := dialNode(ctx, from, to)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, ch.abort)
	defer stop()
	err = converse(ch)
	return first(err, ch.close())
}
