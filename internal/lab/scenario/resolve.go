package scenario

import (
	"cmp"
	"fmt"
	"slices"
)

// A Schedule is a scenario with nothing random left: each action has its time. The
// same scenario and seed give the same schedule, in every lab and in every version of
// this package that has the same [Version].
type Schedule struct {
	Scenario *Scenario
	Seed     uint64
	// Drawn are the nodes of each selection that is not fresh.
	Drawn map[Name][]int
	// Actions are in the order of their times; at equal times in that of the
	// timeline.
	Actions []Action
}

// An Action is one thing to do. Every [NodeSet] in it is a sorted list of
// nodes, and every [Span] one time.
type Action struct {
	ID    int      // counts the actions of the schedule from 1, in order
	Step  int      // index in the timeline
	Round int      // of a repeated step, from 0
	At    Duration // from the beginning of the run
	// Until is when it is undone. 0: it is instant, or lasts to the end.
	Until Duration
	// Seed is for choices that stay random inside the action: the decisions about packets.
	Seed uint64
	Do
}

// Resolve draws everything random from the seed. The scenario must have passed
// [Decode] or [Scenario.Check].
func (s *Scenario) Resolve(seed uint64) *Schedule {
	out := &Schedule{Scenario: s, Seed: seed, Drawn: map[Name][]int{}}
	for i, sel := range s.Select {
		if !sel.Fresh {
			out.Drawn[sel.Name] = s.draw(sel, newDice(seed, "select", uint64(i)))
		}
	}
	for i := range s.Timeline {
		out.step(i, &s.Timeline[i])
	}
	slices.SortStableFunc(out.Actions, func(a, b Action) int { return cmp.Compare(a.At, b.At) })
	for i := range out.Actions {
		out.Actions[i].ID = i + 1
	}
	return out
}

// step adds the actions of one step. Each round has dice of its own, so that a
// change of one step leaves all others as they were.
func (out *Schedule) step(i int, s *Step) {
	if !s.Every.Set {
		d := newDice(out.Seed, "step", uint64(i), 0)
		out.add(i, 0, d.span(s.At), s, d)
		return
	}
	at := s.From
	for round := 0; at < s.Until; round++ {
		d := newDice(out.Seed, "step", uint64(i), uint64(round))
		every := d.span(s.Every)
		out.add(i, round, at, s, d)
		at += every
	}
}

func (out *Schedule) add(step, round int, at Duration, s *Step, d *dice) {
	do := s.Do.Clone()
	span := do.fix(out, d)
	a := Action{Step: step, Round: round, At: at, Do: do, Seed: d.next()}
	if span > 0 {
		a.Until = at + span
	}
	out.Actions = append(out.Actions, a)
}

// count returns how many actions the timeline may have, at most.
func (s *Scenario) count() int {
	n := 0
	for _, st := range s.Timeline {
		if st.Every.Set {
			n += int((st.Until-st.From-1)/max(st.Every.From, 1)) + 1
		} else {
			n++
		}
	}
	return n
}

// candidates returns the nodes from which a selection draws.
func (s *Scenario) candidates(sel Selection) []int {
	from := s.literal(sel.Of)
	if sel.Of == nil {
		from = s.literal(NodeSet{{Name: SetAll}})
	}
	not := s.literal(sel.Not)
	return slices.DeleteFunc(from, func(id int) bool { return slices.Contains(not, id) })
}

// draw draws the nodes of a selection.
func (s *Scenario) draw(sel Selection, d *dice) []int {
	from := s.candidates(sel)
	for i := range min(sel.Any, len(from)) {
		j := i + d.below(len(from)-i)
		from[i], from[j] = from[j], from[i]
	}
	drawn := from[:min(sel.Any, len(from))]
	slices.Sort(drawn)
	return drawn
}

// literal returns the nodes of a set without those of selections and others,
// sorted, each once.
func (s *Scenario) literal(set NodeSet) []int {
	var ids []int
	for _, r := range set {
		switch r.Name {
		case "":
			ids = append(ids, r.ID)
		case SetHost:
			ids = append(ids, 0)
		case SetAll, SetNodes:
			for id := range s.Cluster.Nodes {
				if id > 0 || r.Name == SetAll {
					ids = append(ids, id)
				}
			}
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// possible returns every node that a set may have, without those of others.
func (s *Scenario) possible(set NodeSet) []int {
	ids := s.literal(set)
	for _, sel := range s.Select {
		if set.has("$" + string(sel.Name)) {
			ids = append(ids, s.candidates(sel)...)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// size returns how many nodes a set has at most, without those of others.
func (s *Scenario) size(set NodeSet) int {
	n := len(s.literal(set))
	for _, sel := range s.Select {
		if set.has("$" + string(sel.Name)) {
			n += sel.Any
		}
	}
	return n
}

// NodesIn returns the nodes that a set of an expectation means, sorted; others
// are those that no fault of the schedule touches.
func (out *Schedule) NodesIn(set NodeSet) []int {
	ids := out.Scenario.literal(set)
	for _, r := range set {
		if name, ok := r.selection(); ok {
			ids = append(ids, out.Drawn[name]...)
		}
	}
	if set.has(SetOthers) {
		ids = append(ids, out.Untouched()...)
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// Untouched returns the nodes that no action touches: neither they, nor a link
// of theirs, nor their application.
func (out *Schedule) Untouched() []int {
	touched := map[int]bool{}
	for _, a := range out.Actions {
		t := a.Touches()
		for _, id := range slices.Concat(t.Nodes, t.Apps) {
			touched[id] = true
		}
		for _, w := range t.Ways {
			for _, id := range slices.Concat(w.From, w.To) {
				touched[id] = true
			}
		}
	}
	var ids []int
	for id := range out.Scenario.Cluster.Nodes {
		if !touched[id] {
			ids = append(ids, id)
		}
	}
	return ids
}

// Late returns the nodes that do not run at the beginning, sorted.
func (s *Scenario) Late() []int { return s.literal(s.Cluster.Late) }

// Fixed returns a scenario that has this schedule whatever the seed: every
// action is a step of its own with a fixed time and fixed nodes. Actions for
// which keep is false are left out; a nil keep keeps all.
func (out *Schedule) Fixed(keep func(Action) bool) *Scenario {
	s := *out.Scenario
	s.Select, s.Timeline, s.Expect = nil, nil, nil
	for _, sel := range out.Scenario.Select {
		if !sel.Fresh { // expectations may name it
			ids := out.Drawn[sel.Name]
			s.Select = append(s.Select, Selection{Name: sel.Name, Any: len(ids), Of: NodesOf(ids...)})
		}
	}
	s.Expect = slices.Clone(out.Scenario.Expect)
	for _, a := range out.Actions {
		if keep == nil || keep(a) {
			s.Timeline = append(s.Timeline, Step{At: At(a.At), Do: a.Do})
		}
	}
	return &s
}

// String names the action for people: "node kill 3".
func (a Action) String() string { return fmt.Sprintf("%s at %s", a.What(), a.At) }
