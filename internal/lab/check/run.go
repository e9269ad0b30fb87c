package check

import (
	"fmt"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/lab/history"
	"github.com/fabricd/fabricd/internal/lab/scenario"
)

// A machine judges one promise.
type machine interface {
	// see is given every record in order.
	see(i int, r *history.Record)
	// finish is called once, after the last record.
	finish()
	judgement() Judgement
}

// An invariant is a promise and the machine that judges it.
type invariant struct {
	name, rows, claim string
	begin             func(judge) machine
}

// invariants are all promises, in the order of a report.
var invariants = []invariant{
	{"whole", "", "the history begins, ends and is complete",
		func(g judge) machine { return &whole{g, map[history.Source]bool{}} }},
	{"fired", "I16", "every fault was put in place, did something and was taken back",
		func(g judge) machine { return &fired{g} }},
	{"prefix", "I1", "received bytes are a prefix of the sent ones: none lost inside, twice, out of order, changed, or of another connection",
		func(g judge) machine { return &prefix{g} }},
	{"drain", "I2", "after an orderly close everything that send had accepted arrives",
		func(g judge) machine { return &drain{g} }},
	{"reset-all", "I3", "NODE_REMOVED comes only after every operation to that incarnation has failed, and nothing to it succeeds afterwards",
		func(g judge) machine { return &resetAll{judge: g} }},
	{"no-hang", "I4", "no call outlives its deadline, or the detection of a loss, by more than a second",
		func(g judge) machine { return &hang{g} }},
	{"events", "I5", "each observer is notified of each incarnation: ADDED at most once, then REMOVED at most once, generations in order",
		func(g judge) machine { return &events{judge: g} }},
	{"notified", "I5", "every survivor is notified of every incarnation whose process has ended",
		func(g judge) machine { return &notifiedAll{g} }},
	{"cause", "B3 B4", "no healthy incarnation is removed",
		func(g judge) machine { return &cause{g} }},
	{"one-holder", "I6", "no node ID is held by two live generations",
		func(g judge) machine { return &holder{g, map[addr.NodeID][]claim{}} }},
	{"agreement", "I6", "all nodes have the same map of IDs once it is quiet",
		func(g judge) machine { return &agreement{g, map[addr.Incarnation]stamped[addr.UUID]{}} }},
	{"fencing", "I7", "nothing of another generation, connection or window lands in a window, and nothing after its end",
		func(g judge) machine { return &fencing{g, map[uint64]stamped[uint64]{}} }},
	{"rma", "I8", "a transfer that succeeded is whole, and none writes outside its range",
		func(g judge) machine { return &rma{g, map[opKey]int{}} }},
	{"fence", "I9", "fence waits are true when they return; signals are neither early nor late",
		func(g judge) machine {
			return &fence{g, map[history.ConnEnd]stamped[uint64]{}, map[opKey]int{}, map[history.ConnEnd]stamped[uint64]{}}
		}},
	{"windows", "I10", "a window that is gone takes no new operation",
		func(g judge) machine { return &windows{g, map[opKey]int{}, map[uint64]int{}} }},
	{"paths", "", "daemons without --enable-faults: connections go over to paths",
		func(g judge) machine { return &paths{judge: g, sent: map[history.ConnEnd]int64{}, look: -1} }},
	{"leaks", "I12", "everything is released in the end",
		func(g judge) machine { return &leaks{g, map[history.Source]int{}, map[nodeRole]int{}} }},
	{"recovery", "I13", "new connections work soon after the last fault",
		func(g judge) machine { return newRecovery(g) }},
	{"isolation", "I14", "connections that no fault touches are not reset",
		func(g judge) machine { return &isolation{g} }},
	{"stalls", "I14", "connections that no fault touches do not stand still for longer than %s (simulation)",
		func(g judge) machine {
			g.j.Claim = fmt.Sprintf(g.j.Claim, g.w.bound.Stall)
			return &stalls{judge: g}
		}},
	{"survival", "I15", "no daemon ends by itself or breaks its own invariants",
		func(g judge) machine { return &survival{g, map[history.Source]int{}} }},
}

// Run judges a history, which is ordered by time, source and number ([history.Merge]), and, if s is
// not nil, holds it to the scenario's expectations and makes its figures. It never fails: a gap in
// the history is a violation of the invariant "whole".
func Run(records []history.Record, s *scenario.Scenario) *Result {
	w := newWorld(records)
	var all []machine
	for _, v := range invariants {
		all = append(all, v.begin(judge{w: w, j: Judgement{Name: v.name, Rows: v.rows, Claim: v.claim}}))
	}
	for i := range records {
		for _, m := range all {
			m.see(i, &records[i])
		}
	}
	// The nodes of both ends see a path; one of them may have ended before the lab looked.
	out := &Result{Begin: w.begin, Zero: w.zero, End: w.end, Records: len(records), Stall: w.longestStall(), Paths: (w.pathEnds + 1) / 2}
	for _, m := range all {
		m.finish()
		out.Invariants = append(out.Invariants, m.judgement())
	}
	if s != nil {
		schedule := s.Resolve(w.begin.Seed)
		for i := range s.Expect {
			out.Expectations = append(out.Expectations, expect(w, schedule, &s.Expect[i]))
		}
		out.Figures = figures(w, s.Figures)
	} else {
		out.Figures = figures(w, scenario.FigureNames)
	}
	return out
}
