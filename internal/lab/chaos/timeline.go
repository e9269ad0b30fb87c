package chaos

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fabricd/fabricd/internal/lab/history"
	"github.com/fabricd/fabricd/internal/lab/scenario"
)

// run runs the timeline of the schedule from now on: its zero is the present time of
// the run's clock. Every action that is in place when the scenario's time is over, or
// when ctx is done, is taken back. Then the workload goes on for as long as the
// expectations after the last fault may take.
func (c *cluster) run(ctx context.Context) error {
	began := c.clock.Now()
	c.log.Put(&history.Timeline{})
	end := began + c.schedule.Scenario.Duration.Time()
	var wg sync.WaitGroup
	for _, a := range c.schedule.Actions {
		if !pauseUntil(ctx, c.clock.Wall(began+a.At.Time())) {
			break
		}
		wg.Go(func() { c.act(ctx, a, began) })
	}
	wg.Wait()
	for { // a daemon that begins to serve meanwhile moves the end
		c.mu.Lock()
		end = max(end, c.lastEnd+c.rest())
		c.mu.Unlock()
		if c.clock.Now() >= end {
			return nil
		}
		if !pauseUntil(ctx, c.clock.Wall(end)) {
			return context.Cause(ctx)
		}
	}
}

// disturbed notes that something has happened now after which things have to
// settle.
func (c *cluster) disturbed() {
	now := c.clock.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lastEnd = max(c.lastEnd, now)
}

// margin is how much longer than the longest expectation a run lasts, so that events at
// its bound are written.
const margin = 300 * time.Millisecond

// rest returns how long after the last fault the run has to go on.
func (c *cluster) rest() time.Duration {
	var longest scenario.Duration
	for _, e := range c.schedule.Scenario.Expect {
		switch {
		case e.Mesh != nil:
			longest = max(longest, e.Mesh.Within)
		case e.Connects != nil:
			longest = max(longest, e.Connects.Within)
		case e.Added != nil:
			longest = max(longest, e.Added.Within)
		case e.Removed != nil:
			longest = max(longest, e.Removed.Within)
		case e.Errors != nil:
			longest = max(longest, e.Errors.Within)
		case e.Exits != nil:
			longest = max(longest, e.Exits.Within)
		}
	}
	return max(lead, longest.Time()+c.lab.Slack().Time+margin)
}

// pauseUntil waits until t and reports true, or returns false as soon as ctx is
// done.
func pauseUntil(ctx context.Context, t time.Time) bool {
	return ctx.Err() == nil && pause(ctx, time.Until(t))
}

// undoLimit bounds the taking back of one action, also after an interrupt.
const undoLimit = 20 * time.Second

// act puts an action in place, keeps it there for its time, and takes it back.
// began is the time of the run at the timeline's zero.
func (c *cluster) act(ctx context.Context, a scenario.Action, began time.Duration) {
	since := c.clock.Now()
	e, err := c.apply(ctx, a)
	f := a.Begun(c.schedule.Scenario.Cluster, since)
	if f.Until != 0 {
		f.Until += int64(began)
	}
	c.log.Put(f)
	if err != nil {
		c.say("%v %s: %v", (since - began).Round(time.Millisecond), a.What(), err)
		c.fail(fmt.Errorf("%s: %w", a.What(), err))
		c.log.Put(&history.FaultEnd{ID: a.ID, Err: oneLine([]byte(err.Error()))})
		if e == nil {
			return
		}
	} else {
		c.say("%8v  %s %s", (since - began).Round(time.Millisecond), a.What(), c.touched(a))
	}
	if _, instant := e.(done); !instant {
		end := c.schedule.Scenario.Duration
		if a.Until != 0 {
			end = a.Until
		}
		c.last(ctx, e, c.clock.Wall(began+end.Time()))
	}
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
	defer cancel()
	fired, proof, undoErr := e.undo(undo)
	if late := c.clock.Now() - began - a.Until.Time(); a.Until != 0 && late > tooLate && f.Harm == history.HarmNone && !timed(a) {
		c.fail(fmt.Errorf("%s lasted %v longer than it was to: the lab was too slow for what may follow to say anything", a.What(), late))
	}
	if undoErr != nil {
		c.fail(fmt.Errorf("take back %s: %w", a.What(), undoErr))
	}
	if err == nil {
		end := &history.FaultEnd{ID: a.ID, Fired: fired, Proof: proof}
		if undoErr != nil {
			end.Err = oneLine([]byte(undoErr.Error()))
		}
		c.log.Put(end)
		c.disturbed()
		if _, instant := e.(done); !instant {
			c.say("%8v  %s %s is over: %s", (c.clock.Now() - began).Round(time.Millisecond), a.What(), c.touched(a), proof)
		}
	}
}

// tooLate is by how much a fault that has to stay invisible may be longer than
// it was meant to be.
const tooLate = 400 * time.Millisecond

// timed reports whether an action ends by itself in time, however late the lab
// is: rules have an end of their own.
func timed(a scenario.Action) bool { return a.Link != nil || a.Partition != nil || a.Fault != nil }

// last waits until an effect is over by itself, or it is time, or ctx is done.
func (c *cluster) last(ctx context.Context, e effect, until time.Time) {
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	all, ok := e.(several)
	if !ok {
		all = several{e}
	}
	for _, e := range all {
		var over <-chan struct{} // nil: the effect has to be taken back
		if o, ok := e.(interface{ over() <-chan struct{} }); ok {
			over = o.over()
		}
		select {
		case <-over:
		case <-ctx.Done():
			return
		}
	}
}

// touched names the nodes and links that an action touches.
func (c *cluster) touched(a scenario.Action) string {
	t, begin := a.Touches(), c.schedule.Begin(c.lab)
	words := []string{}
	if nodes := slices.Concat(t.Nodes, t.Apps); len(nodes) > 0 {
		words = append(words, begin.NodeLabels(nodes))
	}
	for _, w := range t.Ways {
		words = append(words, begin.NodeLabels(w.From)+"→"+begin.NodeLabels(w.To))
	}
	return strings.Join(words, " ")
}

// apply puts an action in place.
func (c *cluster) apply(ctx context.Context, a scenario.Action) (effect, error) {
	switch {
	case a.Network != nil && a.Network.Do == scenario.Garbage:
		return c.garbage(a), nil
	case a.Path != nil:
		return c.breakPaths(ctx, a)
	case c.site.breaks(a):
		return c.site.breakNetwork(ctx, a)
	case a.Link != nil, a.Partition != nil, a.Network != nil:
		return c.planes.apply(ctx, c, a)
	case a.Node != nil:
		return c.forEach(a.Node.ID.IDs(), func(s *node) (effect, error) {
			s.awaitBack(ctx, &s.daemon)
			return c.node(ctx, s, a)
		})
	case a.App != nil:
		return c.forEach(a.App.Node.IDs(), func(s *node) (effect, error) {
			s.awaitBack(ctx, &s.app)
			return c.app(ctx, s, a.App)
		})
	case a.Fault != nil && a.Fault.Kind == scenario.FaultDescriptors:
		return c.forEach(a.Fault.Node.IDs(), func(s *node) (effect, error) { return starve(s, a.Fault.Free) })
	case a.Fault != nil:
		return c.forEach(a.Fault.Node.IDs(), func(s *node) (effect, error) { return c.point(ctx, s, a) })
	case a.CPU != nil:
		return c.forEach(a.CPU.Node.IDs(), func(s *node) (effect, error) { return c.cpu(ctx, s, a) })
	case a.Memory != nil:
		return c.forEach(a.Memory.Node.IDs(), func(s *node) (effect, error) { return c.site.squeeze(ctx, s, a) })
	case a.Rotate != nil:
		return c.rotate(ctx)
	}
	return nil, errors.New("the lab does not know this action")
}

// forEach puts an action in place at several nodes at once.
func (c *cluster) forEach(ids []int, do func(*node) (effect, error)) (effect, error) {
	var mu sync.Mutex // guards all
	var all several
	err := everywhere(ids, func(id int) error {
		s := c.nodes[id]
		s.act.Lock()
		defer s.act.Unlock()
		e, err := do(s)
		if e != nil {
			mu.Lock()
			all = append(all, e)
			mu.Unlock()
		}
		if err != nil {
			err = fmt.Errorf("node %d: %w", s.index, err)
		}
		return err
	})
	if instant := all.instant(); instant != nil {
		return *instant, err
	}
	return all, err
}

// several are the effects of one action at several nodes.
type several []effect

// instant returns all in one if none is to be taken back.
func (s several) instant() *done {
	var sum done
	for _, e := range s {
		d, ok := e.(done)
		if !ok {
			return nil
		}
		sum.add(d.fired, d.proof, d.err)
	}
	return &sum
}

func (d *done) add(fired uint64, proof string, err error) {
	d.fired += fired
	if proof != "" && d.proof != "" && proof != d.proof {
		d.proof += ", "
	}
	if proof != d.proof {
		d.proof += proof
	}
	d.err = errors.Join(d.err, err)
}

func (s several) undo(ctx context.Context) (uint64, string, error) {
	sums := make([]done, len(s))
	var wg sync.WaitGroup
	for i, e := range s {
		wg.Go(func() { sums[i].fired, sums[i].proof, sums[i].err = e.undo(ctx) })
	}
	wg.Wait()
	var sum done
	for _, d := range sums {
		sum.add(d.fired, d.proof, d.err)
	}
	return sum.fired, sum.proof, sum.err
}

// An undoing is an effect that is taken back by a function, once.
type undoing struct {
	once sync.Once
	f    func(context.Context) (uint64, string, error)
	done
}

func undoBy(f func(context.Context) (uint64, string, error)) *undoing { return &undoing{f: f} }

func (u *undoing) undo(ctx context.Context) (uint64, string, error) {
	u.once.Do(func() { u.fired, u.proof, u.err = u.f(ctx) })
	return u.fired, u.proof, u.err
}
