package scenario

import (
	"fmt"
	"slices"

	"github.com/fabricd/fabricd/internal/faults"
	"github.com/fabricd/fabricd/internal/faults/failpoint"
)

// Check returns the errors in a scenario that was made in Go, an *[Error], or nil. It
// fills in defaults as [Decode] does.
func (s *Scenario) Check() error {
	s.setDefaults()
	if problems := s.problems(); len(problems) > 0 {
		return &Error{problems[:min(len(problems), MaxProblems)]}
	}
	return nil
}

func (s *Scenario) setDefaults() {
	if s.Cluster.Detection == "" {
		s.Cluster.Detection = Normal
	}
}

// A checker collects the problems of a scenario beyond its fields.
type checker struct {
	s        *Scenario
	problems []Problem
}

func (c *checker) bad(field, value, format string, args ...any) {
	c.problems = append(c.problems, Problem{Field: field, Value: shorten(value), Allowed: fmt.Sprintf(format, args...)})
}

// problems returns the problems beyond the fields themselves.
func (s *Scenario) problems() []Problem {
	c := checker{s: s}
	c.head()
	c.selections()
	c.workload()
	for i := range s.Timeline {
		c.step(fmt.Sprintf("timeline[%d]", i), &s.Timeline[i])
	}
	if len(c.problems) == 0 {
		if n := s.count(); n > MaxActions {
			c.bad("timeline", fmt.Sprint(n), "with its repetitions it is more than %d actions", MaxActions)
		}
	}
	for i := range s.Expect {
		c.expect(fmt.Sprintf("expect[%d]", i), &s.Expect[i])
	}
	return c.problems
}

// head checks the part above the timeline.
func (c *checker) head() {
	s := c.s
	if s.Duration < Duration(1e6) {
		c.bad("duration", s.Duration.String(), "want at least 1ms")
	}
	if len(s.On) == 0 {
		c.bad("on", "", "want at least one of sim, local, netns, compose")
	}
	for i, l := range s.On {
		if slices.Contains(s.On[:i], l) {
			c.bad(fmt.Sprintf("on[%d]", i), string(l), "is there twice")
		}
	}
	if len(s.Expect) > MaxExpect {
		c.bad("expect", fmt.Sprint(len(s.Expect)), "want at most %d", MaxExpect)
	}
	c.names(s.Cluster)
	c.set("cluster.late", s.Cluster.Late, setUse{})
	for _, r := range s.Cluster.Late {
		if r.Name == "" && r.ID == 0 || r.Name == SetHost || r.Name == SetAll {
			c.bad("cluster.late", r.String(), "the host runs from the beginning")
		}
	}
	if d := s.Cluster.Certificates; d != 0 && d < Duration(60e9) {
		c.bad("cluster.certificates", d.String(), "want at least 1m")
	}
}

// names checks that each name means one node and nothing else.
func (c *checker) names(of Cluster) {
	if len(of.Names) > of.Nodes {
		c.bad("cluster.names", fmt.Sprint(len(of.Names)), "want at most %d, as many as there are nodes", of.Nodes)
	}
	for i, n := range of.Names {
		at := fmt.Sprintf("cluster.names[%d]", i)
		node, _ := of.Names.node(string(n))
		switch {
		case node != i || slices.Contains(of.defaults(), string(n)):
			c.bad(at, string(n), "is the name of two nodes")
		case slices.Contains(setNames, string(n)):
			c.bad(at, string(n), "means other nodes: want another name than %s", join2(setNames))
		case len(n) >= MaxName:
			c.bad(at, string(n), "want at most %d letters", MaxName-1)
		}
	}
}

// defaults returns the names of the nodes that the file does not name.
func (c Cluster) defaults() (names []string) {
	for node := len(c.Names); node < c.Nodes; node++ {
		names = append(names, c.Names.Of(node))
	}
	return names
}

func (c *checker) selections() {
	for _, s := range c.s.Select {
		at := "select." + string(s.Name)
		c.set(at+".of", s.Of, setUse{})
		c.set(at+".not", s.Not, setUse{})
		if len(c.problems) == 0 {
			if n := len(c.s.candidates(s)); n < s.Any {
				c.bad(at+".any", fmt.Sprint(s.Any), "only %d nodes to draw from", n)
			}
		}
	}
}

func (c *checker) workload() {
	w := c.s.Workload
	for _, p := range w.Pairs.List {
		switch {
		case max(p[0], p[1]) >= c.s.Cluster.Nodes:
			c.bad("workload.pairs", fmt.Sprint(p), "no such node: the cluster has 0 to %d", c.s.Cluster.Nodes-1)
		case p[0] == p[1]:
			c.bad("workload.pairs", fmt.Sprint(p), "want two nodes")
		}
	}
	if r := w.RMA; r != nil {
		if r.Window%4096 != 0 {
			c.bad("workload.rma.window", r.Window.String(), "want a multiple of 4096")
		}
		if r.Size.To > r.Window {
			c.bad("workload.rma.size", r.Size.String(), "is larger than the window of %s", r.Window)
		}
		if r.Size.From < 8 {
			c.bad("workload.rma.size", r.Size.String(), "want at least 8: the tag of a word")
		}
	}
}

// A setUse is the names that a set may have where it is used.
type setUse struct {
	selection bool // $names
	fresh     bool // of selections that are drawn anew
	others    bool
}

// set checks a set of nodes.
func (c *checker) set(at string, set NodeSet, use setUse) {
	for i, r := range set {
		name, isSelection := r.selection()
		switch {
		case isSelection:
			c.reference(at, r, name, use)
		case r.Name == SetOthers && !use.others:
			c.bad(at, r.Name, "says nothing here: name the nodes")
		case r.Name == SetNodes && c.s.Cluster.Nodes == 1:
			c.bad(at, r.Name, "there is only the host")
		case r.Name == "" && r.ID >= c.s.Cluster.Nodes:
			c.bad(at, r.String(), "no such node: the cluster has 0 to %d", c.s.Cluster.Nodes-1)
		case slices.ContainsFunc(set[:i], func(o NodeRef) bool { return o.ID == r.ID && o.Name == r.Name }):
			c.bad(at, r.String(), "is there twice")
		}
	}
	if set != nil && len(set) == 0 {
		c.bad(at, "[]", "want at least one node")
	}
}

func (c *checker) reference(at string, r NodeRef, name Name, use setUse) {
	i := slices.IndexFunc(c.s.Select, func(s Selection) bool { return s.Name == name })
	switch {
	case !use.selection:
		c.bad(at, r.Name, "want nodes here, no selection")
	case i < 0:
		c.bad(at, r.Name, "no such selection: select has none of this name")
	case c.s.Select[i].Fresh && !use.fresh:
		c.bad(at, r.Name, "is drawn anew for every step (fresh): it has no value here")
	}
}

// selection returns the name after the $.
func (r NodeRef) selection() (Name, bool) {
	if len(r.Name) > 1 && r.Name[0] == '$' {
		return Name(r.Name[1:]), true
	}
	return "", false
}

// realLabs are the labs that run daemons.
var realLabs = []Lab{Local, Netns, Compose}

// networkLabs are the labs that have a network on which it can be done.
var networkLabs = map[NetworkDo][]Lab{
	Disconnect: {Sim, Netns, Compose},
	Reject:     {Netns},
	Forge:      {Netns},
	Garbage:    {Local, Netns},
}

// step checks one line of the timeline.
func (c *checker) step(at string, s *Step) {
	c.times(at, s)
	at, ok := c.one(at, "action", valueOf(&s.Do), inStep)
	if !ok {
		return
	}
	switch {
	case s.Link != nil:
		c.link(at, s.Link)
	case s.Partition != nil:
		c.partition(at, s.Partition)
	case s.Path != nil:
		c.ends(at, s.Path.From, s.Path.To)
		c.labs(at, string(s.Path.Do), Netns)
	case s.Network != nil:
		c.labs(at+".do", string(s.Network.Do), networkLabs[s.Network.Do]...)
	case s.Node != nil:
		c.node(at, s.Node)
	case s.App != nil:
		c.app(at, s.App)
	case s.Fault != nil:
		c.fault(at, s.Fault)
	case s.CPU != nil:
		c.cpu(at, s.CPU)
	case s.Memory != nil:
		c.labs(at, "", Compose)
	case s.Rotate != nil:
		c.labs(at, string(s.Rotate.What), realLabs...)
	}
	if f := s.Do.span(); f.Set && f.From == 0 {
		c.bad(at+".for", f.String(), "want more than 0s")
	}
}

// times checks when a step happens.
func (c *checker) times(at string, s *Step) {
	end := c.s.Duration
	switch {
	case s.At.Set == s.Every.Set:
		c.bad(at+".at", s.At.String(), "want at, or every with until, and not both")
	case s.At.Set:
		if s.At.To > end {
			c.bad(at+".at", s.At.String(), "is after the end: duration is %s", end)
		}
		if s.From != 0 || s.Until != 0 {
			c.bad(at+".from", s.From.String(), "from and until belong to every")
		}
	case s.Every.From < Duration(1e6):
		c.bad(at+".every", s.Every.String(), "want at least 1ms")
	case s.Until == 0:
		c.bad(at+".until", "", "every needs until")
	case s.Until > end:
		c.bad(at+".until", s.Until.String(), "is after the end: duration is %s", end)
	case s.Until <= s.From:
		c.bad(at+".until", s.Until.String(), "is not after from, %s", s.From)
	}
}

// inStep is how a step may name nodes.
var inStep = setUse{selection: true, fresh: true}

// labs refuses an action that a lab of the scenario cannot do.
func (c *checker) labs(at, value string, can ...Lab) {
	for _, l := range c.s.On {
		if !slices.Contains(can, l) {
			c.bad(at, value, "cannot be done on %s, which on names: only on %s", l, join2(can))
		}
	}
}

// ends checks the two sets of nodes that something is between.
func (c *checker) ends(at string, from, to NodeSet) {
	if from.has(SetOthers) && to.has(SetOthers) {
		c.bad(at+".to", SetOthers, "others on both sides says nothing")
	}
	senders, receivers := c.s.possible(from), c.s.possible(to)
	if c.s.size(from) == 1 && c.s.size(to) == 1 && slices.ContainsFunc(senders, func(id int) bool { return slices.Contains(receivers, id) }) {
		c.bad(at+".to", to.String(), "is or may be the same node as from")
	}
}

func (c *checker) link(at string, l *Link) {
	c.ends(at, l.From, l.To)
	if l.Hold && !l.For.Set {
		c.bad(at+".hold", "true", "needs for: what is held must be let go")
		return
	}
	rule := l.Rule()
	if rule.On == "" {
		rule.On = faults.All
	}
	rule.For = faults.Duration(max(l.For.To, 1))
	if err := rule.Check(); err != nil {
		c.foreign(at, err)
	}
}

func (c *checker) partition(at string, p *Partition) {
	seen := map[int]int{}
	others, taken := 0, 0
	for i, g := range p.Groups {
		use := inStep
		use.others = len(g) == 1
		c.set(fmt.Sprintf("%s.groups[%d]", at, i), g, use)
		if g.has(SetOthers) {
			others++
		}
		for _, id := range c.s.possible(g) {
			if first, twice := seen[id]; twice && first != i {
				c.bad(fmt.Sprintf("%s.groups[%d]", at, i), g.String(), "node %d is or may be in group %d too", id, first)
				return
			}
			seen[id] = i
		}
		taken += c.s.size(g)
	}
	switch {
	case others > 1:
		c.bad(at+".groups", SetOthers, "is there twice")
	case others == 1 && taken >= c.s.Cluster.Nodes:
		c.bad(at+".groups", SetOthers, "the other groups leave no slot")
	}
}

// nodeRules are the conditions of effects on nodes, each with its reason.
var nodeRules = map[NodeDo]struct {
	labs                 []Lab  // that can do it; nil: all
	notHost, need, never string // it is not for the host; it needs for; it takes no for
}{
	Start:   {never: "start is not undone: leave it out"},
	Usurp:   {labs: []Lab{Local, Netns}, notHost: "node 0 is the host itself"},
	Damage:  {labs: []Lab{Local, Netns}, need: "damage needs it: its state has to be put back"},
	Ban:     {labs: realLabs, notHost: "the host itself decides", need: "ban needs it: when the node may come back"},
	Remove:  {labs: realLabs, notHost: "the host itself decides", need: "remove needs it: when the node may come back"},
	Replace: {notHost: "another host is another cluster"},
}

func (c *checker) node(at string, n *Node) {
	rule := nodeRules[n.Do]
	if rule.labs != nil {
		c.labs(at+".do", string(n.Do), rule.labs...)
	}
	if rule.notHost != "" && (n.ID.has(SetHost) || n.ID.has(SetAll) || slices.Contains(n.ID.IDs(), 0)) {
		c.bad(at+".id", n.ID.String(), "%s", rule.notHost)
	}
	if rule.need != "" && !n.For.Set {
		c.bad(at+".for", "", "%s", rule.need)
	}
	if rule.never != "" && n.For.Set {
		c.bad(at+".for", n.For.String(), "%s", rule.never)
	}
}

func (c *checker) app(at string, a *App) {
	if a.Do == AppFlood {
		c.labs(at+".do", string(a.Do), realLabs...)
	}
	switch {
	case a.Do == AppSlow && a.Rate == 0:
		c.bad(at+".rate", "", "slow needs it: messages a second")
	case a.Do != AppSlow && a.Rate != 0:
		c.bad(at+".rate", fmt.Sprint(a.Rate), "only slow takes it")
	case a.For.Set && a.Do == AppClose:
		c.bad(at+".for", a.For.String(), "close is not undone: leave it out")
	}
}

func (c *checker) cpu(at string, p *CPU) {
	if p.Share == 0 && p.Hogs == 0 {
		c.bad(at+".share", "", "want share, hogs or both")
	}
	if p.Share != 0 {
		c.labs(at+".share", p.Share.String(), realLabs...)
	}
	if p.Hogs != 0 {
		c.labs(at+".hogs", fmt.Sprint(p.Hogs), realLabs...)
	}
}

func (c *checker) fault(at string, f *Fault) {
	if err := f.Point(0).Check(); err != nil {
		c.foreign(at, err)
	}
	switch f.Kind {
	case FaultClock, FaultDescriptors:
		c.labs(at+".kind", string(f.Kind), realLabs...)
	}
	if f.Restart != 0 && f.Kind != FaultCrash {
		c.bad(at+".restart", f.Restart.String(), "only a crash is started again")
	}
}

// Point returns the fault of package failpoint that the step means; seed is for the
// random parts of it.
func (f *Fault) Point(seed uint64) failpoint.Fault {
	p := failpoint.Fault{
		Kind: failpoint.Kind(f.Kind), Step: string(f.Step), For: failpoint.Duration(f.For.To),
		Within: failpoint.Duration(f.Within), Nth: f.Nth, Times: f.Times, Probability: float64(f.Probability / 100),
		Offset: failpoint.Duration(f.Offset), Disk: string(f.Disk), Delay: failpoint.Duration(f.Delay), Free: f.Free,
	}
	if f.Step != "" {
		p.Seed = seed
	}
	return p
}

// foreign reports an error of another package in an action's fields.
func (c *checker) foreign(at string, err error) {
	switch e := err.(type) {
	case *faults.FieldError:
		c.bad(field2(at, e.Field), e.Value, "%s", e.Want)
	case *failpoint.FieldError:
		c.bad(field2(at, e.Field), e.Value, "%s", e.Allowed)
	default:
		c.bad(at, "", "%v", err)
	}
}

func field2(at, name string) string {
	if name == "rule" {
		return at
	}
	return at + "." + name
}

// stepNames are the steps of package failpoint.
func stepNames() []string {
	var names []string
	for _, s := range failpoint.Steps() {
		names = append(names, s.Name)
	}
	return names
}
