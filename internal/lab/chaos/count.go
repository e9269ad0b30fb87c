package chaos

import (
	"context"
	"maps"
	"strconv"
	"time"

	"github.com/fabricd/fabricd/internal/lab/chaos/workload"
	"github.com/fabricd/fabricd/internal/lab/history"
	"github.com/fabricd/fabricd/internal/wait"
)

const (
	settleLimit = 5 * time.Second // from the end of the applications until daemons hold nothing
	settleEvery = 100 * time.Millisecond
)

// count waits until the daemons hold no connection any more, and writes down their
// resources.
func (c *cluster) count(ctx context.Context) {
	used, at := make(map[history.Source]int64), int64(c.clock.Now())
	for _, s := range c.running() { // before counting takes any
		d, source := s.daemon.current()
		used[source] = usedBy(d)
	}
	c.settle(ctx)
	for _, r := range c.held(ctx, history.PhaseEnd) {
		if r.Used = used[r.Target]; r.Used > 0 {
			r.UsedAt = at
		}
		c.log.Put(r)
	}
}

// held returns the resources of every daemon.
func (c *cluster) held(ctx context.Context, phase history.Phase) []*history.Resources {
	var all []*history.Resources
	for _, s := range c.running() {
		if r := s.resources(ctx, phase); r != nil {
			all = append(all, r)
		}
	}
	return all
}

// warmed writes the baseline. Its memory is that of daemons that work, without garbage,
// so that later growth shows.
func (c *cluster) warmed(ctx context.Context, held []*history.Resources) {
	for _, r := range held {
		if d, _, err := c.nodes[r.Target.Node].daemon.running(); err == nil {
			c.nodes[r.Target.Node].collect(ctx)
			if rss, ok := workload.Held(strconv.Itoa(d.pid()))["rss"]; ok {
				r.Count["rss"] = rss
			}
			r.Used, r.UsedAt = usedBy(d), int64(c.clock.Now())
		}
		c.log.Put(r)
	}
}

// settle waits until no daemon holds connections, windows or ports of
// applications, for a while at most.
func (c *cluster) settle(ctx context.Context) {
	deadline := time.Now().Add(settleLimit)
	for {
		held := false
		for _, s := range c.running() {
			st, err := s.status(ctx)
			held = held || err == nil && st.Counts.Conns+st.Counts.Windows+st.Counts.Ports > 0
		}
		if !held || time.Now().After(deadline) || !pause(ctx, settleEvery) {
			return
		}
	}
}

// resources returns the resources of the node's daemon; nil if they cannot be read.
func (s *node) resources(ctx context.Context, phase history.Phase) *history.Resources {
	d, source := s.daemon.current()
	if d.frozen() {
		return nil
	}
	st, err := s.status(ctx)
	if err != nil {
		return nil
	}
	r := &history.Resources{Target: source, Phase: phase, Count: map[string]int64{
		"ports": int64(st.Counts.Ports), "conns": int64(st.Counts.Conns), "windows": int64(st.Counts.Windows), "links": int64(st.Counts.Links),
	}}
	if phase == history.PhaseEnd {
		s.collect(ctx)
	}
	maps.Copy(r.Count, workload.Held(strconv.Itoa(d.pid())))
	return r
}

// usedBy returns how much processor time a daemon has used, in nanoseconds; 0 if it is
// not known.
func usedBy(d child) int64 {
	used, err := cpuOf(d.pid())
	if err != nil {
		return 0
	}
	return int64(used)
}

// collect has the node's daemon give back unused memory. If the daemon does not answer,
// its figures include garbage.
func (s *node) collect(ctx context.Context) {
	_, _ = ask(ctx, func(ctx context.Context) (any, error) { return nil, s.admin.Collect(ctx) })
}

// pause waits for d and reports true, or returns false as soon as ctx is done.
func pause(ctx context.Context, d time.Duration) bool { return wait.For(ctx.Done(), d) }
