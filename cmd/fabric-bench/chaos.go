package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/internal/faults"
	"github.com/fabricd/fabricd/internal/scenario"
)

// A plan is what --chaos says: which links of the cluster that is measured are
// broken, how, and when. It begins anew with every test and size.
type plan struct {
	name   string // as it was given
	inline bool   // it is not in a file
	text   []byte // in the words of a scenario
	seed   uint64 // decides what is random in it
}

// A Chaos is what a run was measured under.
type Chaos struct {
	Plan   string     `json:"plan"` // as it was given
	Text   string     `json:"text"` // the same in the words of a scenario
	Seed   uint64     `json:"seed"`
	Faults []Injected `json:"faults"` // in the order of the tests
}

// An Injected is one fault in one test.
type Injected struct {
	Test  string      `json:"test"`
	Size  int64       `json:"size_bytes"`
	Rule  faults.Rule `json:"rule"`
	Fired uint64      `json:"fired"` // how often it did something, to a packet or to a piece of a stream
}

// chaosHelp explains --chaos.
const chaosHelp = `With --chaos links between the nodes are broken while the tests run. A plan is a
file with the keys select and timeline of deploy/scenarios, of which link is the only
action, or faults as key=value in the same words, with semicolons between them;
node 0 is the one that is asked, and 1 the one that asks. Its times are from the
beginning of each test and size, before the first repetition. Anchors are not
measured then, and what the faults did is in the report.

  timeline:
    - {at: 1s, link: {from: all, to: all, drop: 5%, for: 2s}}
    - {at: 4s, link: {from: 1, to: 0, delay: 800us, jitter: 400us}}

`

// underChaos is what the rows of such a run have behind their dir, so that nobody
// compares them with others.
const underChaos = ", under chaos"

// breakable are the providers whose links a plan can break.
var breakable = []string{providerQUIC, providerTCP, providerTCPPlain, providerMem}

// checkChaos refuses runs whose links a plan cannot break.
func (o *options) checkChaos() error {
	switch {
	case o.chaos == "":
		return nil
	case o.peer != "":
		return usagef("--chaos and --peer exclude each other: a plan breaks nodes that this program starts (fabricd faults breaks others)")
	case !slices.Contains(breakable, o.provider):
		return usagef("--chaos with --provider %s: it has no links that could be broken; these have: %s", o.provider, strings.Join(breakable, ", "))
	}
	return nil
}

// readPlan reads what --chaos says, a file or faults as key=value, and checks it for
// the clusters of these tests.
func readPlan(arg string, seed uint64, picked []*test) (*plan, error) {
	p := &plan{name: arg, seed: seed}
	var err error
	if ext := filepath.Ext(arg); ext == ".yaml" || ext == ".yml" {
		p.text, err = os.ReadFile(arg)
	} else {
		p.inline = true
		p.text, err = inlinePlan(arg)
	}
	if err != nil {
		return nil, usagef("--chaos: %v", err)
	}
	for _, t := range picked {
		if _, err := p.rules(make([]fabric.NodeID, t.nodes())); err != nil {
			return nil, usageError{err}
		}
	}
	return p, nil
}

// nodes returns how many nodes a test is measured on.
func (t *test) nodes() int {
	if t.onMesh() {
		return meshNodes
	}
	return 2
}

// rules returns the plan for a cluster, whose slots are these nodes. The same seed
// gives the same rules.
func (p *plan) rules(nodes []fabric.NodeID) (rules []faults.Rule, err error) {
	s, err := scenario.DecodePlan(p.name, p.text, len(nodes))
	if err != nil {
		return nil, p.explain(err)
	}
	for _, a := range s.Resolve(p.seed).Actions {
		like := a.Link.Rule()
		like.On, like.At, like.Seed = cmp.Or(like.On, faults.All), faults.AtFrom, a.Seed
		if like.After = faults.Duration(a.At); a.Until != 0 {
			like.For = faults.Duration(a.Until - a.At)
		}
		for _, w := range a.Touches().Ways {
			r := like
			r.From, r.To = nodesAt(nodes, w.From), nodesAt(nodes, w.To)
			rules = append(rules, r)
		}
	}
	if len(rules) == 0 || len(rules) > faults.MaxRules {
		return nil, fmt.Errorf("%s: %d faults of links, with their repetitions and both directions: want 1 to %d", p.name, len(rules), faults.MaxRules)
	}
	return rules, nil
}

// nodesAt returns the nodes in these slots.
func nodesAt(nodes []fabric.NodeID, slots []int) (ids faults.Nodes) {
	for _, slot := range slots {
		ids = append(ids, nodes[slot])
	}
	return ids
}

// explain says what is wrong with a plan that is in no file without the places in
// a file.
func (p *plan) explain(err error) error {
	wrong, ok := errors.AsType[*scenario.Error](err)
	if !p.inline || !ok {
		return err
	}
	var lines []error
	for _, x := range wrong.Problems {
		number, field, _ := strings.Cut(strings.TrimPrefix(x.Field, "timeline["), "]")
		fault := ""
		if n, err := strconv.Atoi(number); err == nil && strings.Contains(p.name, ";") {
			fault = fmt.Sprintf("fault %d: ", n+1)
		}
		field = strings.TrimPrefix(strings.TrimPrefix(field, "."), "link.")
		lines = append(lines, fmt.Errorf("--chaos: %s%s: %q: %s", fault, cmp.Or(field, "fault"), x.Value, x.Allowed))
	}
	return errors.Join(lines...)
}

// word is the name of a key.
var word = regexp.MustCompile(`^[a-z_]+$`)

// inlinePlan turns faults as key=value, with commas between keys and semicolons
// between faults, into a plan.
func inlinePlan(arg string) ([]byte, error) {
	var b strings.Builder
	b.WriteString("timeline:\n")
	for i, one := range strings.Split(arg, ";") {
		step, err := inlineFault(one)
		if err != nil {
			return nil, fmt.Errorf("fault %d: %w", i+1, err)
		}
		b.WriteString("  - " + step + "\n")
	}
	return []byte(b.String()), nil
}

// inlineFault turns one fault into a step of a timeline: between all nodes and from
// the beginning, unless it says otherwise.
func inlineFault(text string) (string, error) {
	var link, when []string
	var ends, timed bool
	add := func(list *[]string, key, value string) { *list = append(*list, key+": "+strconv.Quote(value)) }
	for item := range strings.SplitSeq(text, ",") {
		key, value, hasValue := strings.Cut(strings.TrimSpace(item), "=")
		if !word.MatchString(key) {
			return "", fmt.Errorf("%q: want keys and values, as drop=5%%,at=1s,for=2s, or a file whose name ends with .yaml", item)
		}
		if !hasValue {
			value = "true"
		}
		switch key {
		case "at", "every", "until":
			timed = timed || key != "until"
			add(&when, key, value)
			continue
		case "from", "to":
			ends = true
		case "loss":
			key = "drop"
		case "delay":
			delay, jitter, err := spreadDelay(value)
			if err != nil {
				return "", err
			}
			if value = delay; jitter != "" {
				add(&link, "jitter", jitter)
			}
		}
		add(&link, key, value)
	}
	if !ends {
		link = append(link, "from: all", "to: all")
	}
	if !timed {
		when = append(when, "at: 0s")
	}
	return "{" + strings.Join(when, ", ") + ", link: {" + strings.Join(link, ", ") + "}}", nil
}

// spreadDelay turns a delay with a deviation, 1ms+-200us, into the least delay and
// the jitter on top of it.
func spreadDelay(value string) (delay, jitter string, err error) {
	middle, deviation, ok := strings.Cut(strings.Replace(value, "±", "+-", 1), "+-")
	if !ok {
		return value, "", nil
	}
	m, err1 := time.ParseDuration(middle)
	d, err2 := time.ParseDuration(deviation)
	if err1 != nil || err2 != nil || d < 0 || d > m {
		return "", "", fmt.Errorf("delay: %q: want a duration, and one that is not longer as its deviation, as 1ms+-200us", value)
	}
	return (m - d).String(), (2 * d).String(), nil
}

// portions returns the sizes of a test by what is measured together: under a plan
// each is alone.
func (b *bench) portions(t *test, sizes []int64) [][]int64 {
	sizes = t.sizesOf(sizes)
	if b.plan == nil {
		return [][]int64{sizes}
	}
	var all [][]int64
	for size := range slices.Values(sizes) {
		all = append(all, []int64{size})
	}
	return all
}

// broken measures a test at one size while the plan breaks its cluster.
func (b *bench) broken(ctx context.Context, t *test, size int64, d *Document) (results []Result, ratios []Ratio, err error) {
	cluster, err := b.clusterOf(ctx, t)
	if err != nil {
		return nil, nil, err
	}
	rules, err := b.plan.rules(cluster.ids())
	if err != nil {
		return nil, nil, err
	}
	if err := cluster.breaker.add(ctx, rules); err != nil {
		return nil, nil, fmt.Errorf("to break links: %w", err)
	}
	results, ratios, err = b.runTest(ctx, t, []int64{size})
	for i := range results {
		results[i].Dir += underChaos
	}
	after := context.WithoutCancel(ctx) // nothing stays broken
	fired, countErr := cluster.breaker.fired(after)
	d.addFaults(b.plan, t, size, rules, fired)
	return results, ratios, first(err, countErr, cluster.breaker.clear(after))
}

// clusterOf returns the nodes that a test is measured on.
func (b *bench) clusterOf(ctx context.Context, t *test) (*mesh, error) {
	if t.onMesh() {
		return b.needMesh(ctx)
	}
	return b.ours.(*nodes).mesh, nil // checkChaos has let no other side through
}

// addFaults adds what the faults of a plan did during a test.
func (d *Document) addFaults(p *plan, t *test, size int64, rules []faults.Rule, fired []uint64) {
	if d.Chaos == nil {
		d.Chaos = &Chaos{Plan: p.name, Text: string(p.text), Seed: p.seed}
	}
	if t.sizeless {
		size = 0
	}
	idle := 0
	for i, r := range rules {
		x := Injected{Test: t.name, Size: size, Rule: r}
		if i < len(fired) {
			x.Fired = fired[i]
		}
		if x.Fired == 0 {
			idle++
		}
		d.Chaos.Faults = append(d.Chaos.Faults, x)
	}
	if idle > 0 {
		d.note("of the %d faults of the plan %d did nothing to %s of %s: it was over before, or nothing passed there", len(rules), idle, t.name, sizeName(size))
	}
}

// remark is a line of comment that says under what the figures were measured; empty
// if nothing was broken.
func (c *Chaos) remark() string {
	if c == nil {
		return ""
	}
	return fmt.Sprintf("# under chaos: %s, seed %d\n", c.Plan, c.Seed)
}

// chaos says under what the figures were measured.
func (t *table) chaos(c *Chaos) {
	if c == nil {
		return
	}
	t.title("\nUnder chaos: %s, seed %d; every test and size from the beginning of the plan", c.Plan, c.Seed)
	t.row("test", "bytes", "what is broken", "how often it did something")
	for _, f := range c.Faults {
		t.row(f.Test, fmt.Sprint(f.Size), f.Rule.String(), fmt.Sprint(f.Fired))
	}
}
