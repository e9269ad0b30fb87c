package chaos

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/faults"
	"github.com/fabricd/fabricd/internal/lab/scenario"
	"github.com/fabricd/fabricd/internal/wait"
)

// planes are the rules that the fault planes of the daemons hold for the
// timeline. A daemon that is started again while a rule lasts gets it again.
type planes struct {
	mu     sync.Mutex // guards the field below
	active map[int]*planeFault
}

// A planeFault is one action, as rules of fault planes. Each directed link is
// broken by its sender.
type planeFault struct {
	name  string
	rules []planeRule
	until time.Duration // of the run; the nodes end it themselves
}

// A planeRule is a rule whose ends are nodes.
type planeRule struct {
	from, to []int
	rule     faults.Rule
}

// afterwards is how much longer than the run a rule without an end lasts.
const afterwards = time.Minute

// rulesOf returns the rules of a link or a partition.
func rulesOf(a scenario.Action) []planeRule {
	like := faults.Rule{Cut: true, On: faults.All}
	if a.Link != nil {
		like = a.Link.Rule()
	}
	if like.On == "" {
		like.On = faults.All
	}
	like.At, like.Seed, like.Name = faults.AtFrom, a.Seed, ruleName(a)
	var rules []planeRule
	for _, w := range a.Touches().Ways {
		rules = append(rules, planeRule{w.From, w.To, like})
	}
	return rules
}

func ruleName(a scenario.Action) string { return fmt.Sprintf("chaos-%d", a.ID) }

// apply gives an action's rules to the senders of its links.
func (p *planes) apply(ctx context.Context, c *cluster, a scenario.Action) (effect, error) {
	f := &planeFault{name: ruleName(a), rules: rulesOf(a)}
	length := c.schedule.Scenario.Duration - a.At + scenario.Duration(afterwards)
	if a.Until != 0 {
		length = a.Until - a.At
	}
	f.until = c.clock.Now() + length.Time()
	p.mu.Lock()
	if p.active == nil {
		p.active = make(map[int]*planeFault)
	}
	p.active[a.ID] = f
	p.mu.Unlock()
	err := p.each(c, f, func(s *node) error { return f.give(ctx, s) })
	return undoBy(func(ctx context.Context) (uint64, string, error) {
		p.mu.Lock()
		delete(p.active, a.ID)
		p.mu.Unlock()
		return p.take(ctx, c, f)
	}), err
}

// each does something at every sender of a fault that can answer, all at once.
func (p *planes) each(c *cluster, f *planeFault, do func(*node) error) error {
	return everywhere(c.nodes, func(s *node) error {
		sends := slices.ContainsFunc(f.rules, func(r planeRule) bool { return slices.Contains(r.from, s.index) })
		if !sends || !s.answers() {
			return nil
		}
		if err := do(s); err != nil && s.answers() {
			return fmt.Errorf("node %d: %w", s.index, err)
		}
		return nil
	})
}

// answers reports whether the node's daemon serves and does not stand still.
func (s *node) answers() bool {
	d, _, err := s.daemon.running()
	if err != nil || d.frozen() {
		return false
	}
	return wait.Over(s.following().serving)
}

// give gives a sender its rules.
func (f *planeFault) give(ctx context.Context, s *node) error {
	left := f.until - s.c.clock.Now()
	if left < time.Millisecond {
		return nil
	}
	var rules []faults.Rule
	for _, r := range f.rules {
		if !slices.Contains(r.from, s.index) {
			continue
		}
		rule := r.rule
		rule.From = faults.Nodes{addr.NodeID(s.nodeID())}
		for _, to := range r.to {
			if to != s.index {
				rule.To = append(rule.To, addr.NodeID(s.c.nodes[to].nodeID()))
			}
		}
		if len(rule.To) == 0 {
			continue // an empty list would be all peers
		}
		rule.For = faults.Duration(left)
		rules = append(rules, rule)
	}
	if len(rules) == 0 {
		return nil
	}
	_, err := ask(ctx, func(ctx context.Context) (any, error) { return s.admin.AddLinkFaults(ctx, rules) })
	return err
}

// take ends a fault everywhere and returns its count and a description.
func (p *planes) take(ctx context.Context, c *cluster, f *planeFault) (fired uint64, proof string, err error) {
	var mu sync.Mutex
	var sum faults.Counters
	err = p.each(c, f, func(s *node) error {
		ctx, cancel := context.WithTimeout(ctx, adminLimit)
		defer cancel()
		if _, err := s.admin.ClearLinkFaults(ctx, 0, f.name); err != nil {
			return err
		}
		all, err := s.admin.LinkFaults(ctx, true)
		mu.Lock()
		defer mu.Unlock()
		for _, st := range all {
			if st.Rule.Name == f.name {
				sum.Add(st.Counts)
			}
		}
		return err
	})
	return sum.Fired(), sum.String(), err
}

// onServing gives a daemon that serves the rules that last.
func (c *cluster) onServing(ctx context.Context, s *node) {
	c.planes.mu.Lock()
	var active []*planeFault
	for _, f := range c.planes.active {
		active = append(active, f)
	}
	c.planes.mu.Unlock()
	for _, f := range active {
		if err := f.give(ctx, s); err != nil && ctx.Err() == nil && s.answers() {
			c.fail(fmt.Errorf("node %d after its start: %w", s.index, err))
		}
	}
	c.announceNode(ctx, s)
}
