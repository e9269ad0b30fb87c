package scenario

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/fabricd/fabricd/internal/lab/history"
)

// A Touch is the nodes and links of an action.
type Touch struct {
	Nodes []int         // nodes that it touches as a whole
	Ways  []history.Way // directed links that it touches
	Apps  []int         // nodes whose application alone it touches
}

// Touches returns the nodes and links of the action of a [Schedule].
func (a Action) Touches() (t Touch) {
	switch {
	case a.Link != nil:
		return Touch{Ways: a.Link.ways()}
	case a.Partition != nil:
		return Touch{Ways: a.Partition.ways()}
	case a.Path != nil:
		return Touch{Ways: a.Path.ways()}
	case a.App != nil:
		return Touch{Apps: a.App.Node.IDs()}
	case a.Node != nil && a.Node.Do == Usurp: // one of the two hosts has to give up
		t.Nodes = []int{0}
	}
	for _, set := range a.sets() {
		t.Nodes = append(t.Nodes, set.IDs()...)
	}
	return t
}

// ways returns the directed links of a resolved link action.
func (l *Link) ways() []history.Way {
	ways := []history.Way{{From: l.From.IDs(), To: l.To.IDs()}}
	if l.Both {
		ways = append(ways, history.Way{From: l.To.IDs(), To: l.From.IDs()})
	}
	return ways
}

// ways returns both directions between the ends of a resolved action on paths.
func (p *Path) ways() []history.Way {
	return []history.Way{{From: p.From.IDs(), To: p.To.IDs()}, {From: p.To.IDs(), To: p.From.IDs()}}
}

// ways returns the directed links of a resolved partition.
func (p *Partition) ways() []history.Way {
	var ways []history.Way
	cut := func(from, to []int) { ways = append(ways, history.Way{From: from, To: to}) }
	for i, g := range p.Groups {
		for j, h := range p.Groups {
			neighbours := i-j == 1 || j-i == 1
			switch {
			case i == j:
			case p.Way == "asymmetric" && i > j:
			case p.Way == "partial" && !neighbours:
			default:
				cut(g.IDs(), h.IDs())
			}
		}
	}
	return ways
}

// What names the action as readable text, without its nodes: "node kill", "link drop
// 20%".
func (a Action) What() string {
	switch {
	case a.Link != nil:
		rule := a.Link.Rule()
		rule.On = ""
		_, effects, _ := strings.Cut(rule.String(), "→any ")
		return strings.Join(strings.Fields("link "+string(a.Link.Plane)+" "+effects), " ")
	case a.CPU != nil:
		return fmt.Sprintf("cpu share %s hogs %d", a.CPU.Share, a.CPU.Hogs)
	case a.Memory != nil:
		return "memory " + a.Memory.Limit.String()
	}
	words := setFields(valueOf(&a.Do)) // the action's name
	for _, f := range theOne(valueOf(&a.Do)).Fields() {
		if f.Kind() == reflect.String && f.String() != "" {
			words = append(words, f.String())
		}
	}
	return strings.Join(words, " ")
}

// Begin returns the record that opens a run of the schedule in a lab, as far as the
// schedule says.
func (out *Schedule) Begin(lab Lab) *history.Begin {
	s := out.Scenario
	return &history.Begin{Version: history.Version, Scenario: string(s.Name), Seed: out.Seed, Lab: string(lab),
		Detection: string(s.Cluster.Detection), LostPair: string(s.Cluster.LostPair), Nodes: s.Cluster.Nodes,
		Names: list(s.Cluster.Names...), Duration: int64(s.Duration)}
}

// Begun returns the record that a lab writes when the action is in place.
func (a Action) Begun(c Cluster, since time.Duration) *history.Fault {
	t := a.Touches()
	return &history.Fault{ID: a.ID, Step: a.Step, Round: a.Round, What: a.What(), Since: int64(since), Until: int64(a.Until),
		Nodes: t.Nodes, Ways: t.Ways, Apps: t.Apps, Harm: a.Harm(c), Cut: a.cuts()}
}

// cuts reports whether nothing passes where the action touches, from its begin
// to its end.
func (a Action) cuts() bool {
	switch {
	case a.Link != nil:
		l := a.Link
		return (l.Cut || l.HalfOpen) && l.Up == 0 && (l.Plane == "" || l.Plane == "all" || l.Plane == "link")
	case a.Partition != nil:
		return true
	case a.Network != nil:
		return a.Network.Do == Disconnect
	case a.Node != nil:
		return a.Node.Do == Stop
	}
	return false
}

// Harm returns the worst that the action may do to the nodes that it touches. It
// leans to none only where the design promises that nothing happens.
func (a Action) Harm(c Cluster) history.Harm {
	switch b := c.Detection.Bound(); {
	case a.Link != nil:
		h := a.Link.harm(b, a.length())
		if h == history.HarmReset && c.LostPair == LostPairEvict {
			h = history.HarmRemove
		}
		return h
	case a.Path != nil:
		return history.HarmReset
	case a.Partition != nil:
		return unless(a.length() <= b.Gap, history.HarmRemove)
	case a.Network != nil && a.Network.Do != Disconnect:
		return history.HarmNone
	case a.Network != nil:
		return unless(a.length() <= b.Gap, history.HarmRemove)
	case a.Node != nil:
		return a.Node.harm(b, a.length())
	case a.App != nil:
		return unless(a.App.Do != AppKill && a.App.Do != AppClose, history.HarmReset) // a flood is another application's
	case a.Fault != nil:
		return a.Fault.harm(b)
	case a.CPU != nil:
		return unless(a.CPU.Share == 0 || a.CPU.Share >= 20, history.HarmRemove)
	}
	return history.HarmNone
}

// length is how long the action lasts; for ever if it is not undone.
func (a Action) length() time.Duration {
	if a.Until == 0 {
		return time.Duration(MaxDuration)
	}
	return time.Duration(a.Until - a.At)
}

func unless(harmless bool, worst history.Harm) history.Harm {
	if harmless {
		return history.HarmNone
	}
	return worst
}

func (n *Node) harm(b Bound, length time.Duration) history.Harm {
	switch n.Do {
	case Stop:
		return unless(length <= b.Pause, history.HarmRemove)
	case Start:
		return history.HarmNone
	}
	return history.HarmRemove
}

func (f *Fault) harm(b Bound) history.Harm {
	switch f.Kind {
	case FaultCrash:
		return history.HarmRemove
	case FaultDelay:
		return unless(time.Duration(f.For.To) <= b.Pause, history.HarmRemove)
	}
	return history.HarmNone
}

// harm of a link: a slowdown is invisible, a stopped link resets its two ends, and a
// node cut off from the host may be removed.
func (l *Link) harm(b Bound, length time.Duration) history.Harm {
	gap := length
	if l.Up != 0 && l.Up <= l.Down {
		gap = min(gap, l.Up.Time()) // a network that is away for most of the time is away
	}
	stops := l.Cut || l.HalfOpen || l.Hold || l.BlockUDP || l.Drop > 20 || l.Corrupt > 20
	slow := (l.Delay+l.Jitter).Time() > 500*time.Millisecond || l.Rate != 0 && l.Rate < 125_000
	small := l.MTU != 0 && l.MTU < 1280
	switch {
	case (stops || slow || small) && gap > b.Gap && l.touchesHost():
		return history.HarmRemove
	case (stops || slow) && gap > b.Gap, l.MTU != 0, l.Reset, l.HalfOpen:
		return history.HarmReset
	}
	return history.HarmNone
}

func (l *Link) touchesHost() bool {
	return slices.Contains(l.From.IDs(), 0) || slices.Contains(l.To.IDs(), 0)
}

// span returns the For of the action that is set.
func (d *Do) span() Span {
	if p := d.Lasts(); p != nil {
		return *p
	}
	return Span{}
}

// Lasts returns how long the action that is set lasts, nil if it has none.
func (d *Do) Lasts() *Span {
	if f := theOne(valueOf(d)).FieldByName("For"); f.IsValid() {
		return f.Addr().Interface().(*Span)
	}
	return nil
}

// sets returns the sets of nodes of the action.
func (d *Do) sets() (all []*NodeSet) {
	for _, f := range theOne(valueOf(d)).Fields() {
		switch x := f.Addr().Interface().(type) {
		case *NodeSet:
			all = append(all, x)
		case *Groups:
			for i := range *x {
				all = append(all, &(*x)[i])
			}
		}
	}
	return all
}

// theOne returns the mapping of the key of a union that is set.
func theOne(union reflect.Value) reflect.Value {
	for _, v := range union.Fields() {
		if !v.IsNil() {
			return v.Elem()
		}
	}
	return reflect.ValueOf(struct{}{})
}

// Clone returns a copy that shares nothing that fixing the action changes.
func (d Do) Clone() Do {
	for _, f := range valueOf(&d).Fields() {
		if !f.IsNil() {
			c := reflect.New(f.Type().Elem())
			c.Elem().Set(f.Elem())
			f.Set(c)
		}
	}
	if d.Partition != nil {
		d.Partition.Groups = slices.Clone(d.Partition.Groups)
	}
	return d
}

// fix draws the random parts of the action: the nodes of its sets, and how long it
// lasts, which it returns; 0: it has no end.
func (d *Do) fix(out *Schedule, r *dice) Duration {
	fresh := map[Name][]int{}
	sets := d.sets()
	drawn := make([][]int, len(sets))
	for i, set := range sets {
		drawn[i] = out.nodes(*set, fresh, r)
	}
	for i, set := range sets {
		if set.has(SetOthers) {
			drawn[i] = append(drawn[i], out.rest(drawn)...)
			slices.Sort(drawn[i])
			drawn[i] = slices.Compact(drawn[i])
		}
	}
	for i, set := range sets {
		*set = NodesOf(drawn[i]...)
	}
	return d.fixSpan(r)
}

// fixSpan draws how long the action lasts. A fault at a step lasts while it is
// armed, and for its own time on top.
func (d *Do) fixSpan(r *dice) Duration {
	length := Duration(0)
	if span := d.Lasts(); span != nil && span.Set {
		*span = At(r.span(*span))
		length = span.From
	}
	if d.Fault != nil && d.Fault.Step != "" {
		if d.Fault.Within == 0 {
			return 0
		}
		return d.Fault.Within + length
	}
	return length
}

// nodes returns the nodes of a set without others. A fresh selection is drawn
// once for an action.
func (out *Schedule) nodes(set NodeSet, fresh map[Name][]int, r *dice) []int {
	ids := out.Scenario.literal(set)
	for _, ref := range set {
		name, ok := ref.selection()
		if !ok {
			continue
		}
		drawn, known := out.Drawn[name]
		if !known {
			if drawn, known = fresh[name]; !known {
				i := slices.IndexFunc(out.Scenario.Select, func(s Selection) bool { return s.Name == name })
				drawn = out.Scenario.draw(out.Scenario.Select[i], r)
				fresh[name] = drawn
			}
		}
		ids = append(ids, drawn...)
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// rest returns the nodes that are in none of the sets.
func (out *Schedule) rest(sets [][]int) []int {
	var ids []int
	for id := range out.Scenario.Cluster.Nodes {
		if !slices.ContainsFunc(sets, func(set []int) bool { return slices.Contains(set, id) }) {
			ids = append(ids, id)
		}
	}
	return ids
}
