package report

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/fabricd/fabricd/internal/lab/check"
	"github.com/fabricd/fabricd/internal/lab/scenario"
)

// A lostBy is a fault by which a node is lost, and the scenario that shows it: with
// profile normal under this name, with fast under the same and "-fast".
type lostBy struct {
	fault    string
	paused   string // its name in containers, if that is another
	scenario string
	silent   bool // there is no evidence of it but silence
}

// lostBys are the faults of which a suite's page shows the times, in this order.
var lostBys = []lostBy{
	{fault: "kill −9", scenario: "node-killed"},
	{fault: "SIGSTOP", paused: "container pause", scenario: "node-paused-long", silent: true},
	{fault: "network disconnect", scenario: "network-disconnected", silent: true},
	{fault: "symmetric partition", scenario: "split-healed", silent: true},
	{fault: "asymmetric partition", scenario: "split-one-way", silent: true},
	{fault: "host killed", scenario: "host-lost"},
	{fault: "host restarted", scenario: "host-restarted"},
}

// in returns the name of the fault in a lab.
func (f lostBy) in(l scenario.Lab) string {
	if l == scenario.Compose {
		return cmp.Or(f.paused, f.fault)
	}
	return f.fault
}

// crashP99 is within which 99 of 100 observers are to know that a process was killed.
const crashP99 = 250 * time.Millisecond

// target returns the design's bound of the time from the fault to NODE_REMOVED.
func (f lostBy) target(d scenario.Detection) Target {
	b := d.Bound()
	if f.silent {
		return Target{Max: int64(b.Silence)}
	}
	return Target{P99: int64(crashP99), Max: int64(b.Crash)}
}

// A Loss is how soon a node that is lost by one fault is missed, with one profile in
// one lab, over all runs there.
type Loss struct {
	Fault     string             `json:"fault"`
	Detection scenario.Detection `json:"detection"`
	Lab       scenario.Lab       `json:"lab"`
	Scenario  string             `json:"scenario"`
	Nodes     int                `json:"nodes"` // of the cluster
	// Error is until a call that the fault caught under way has failed, Removed until
	// an application is notified that the node is lost.
	Error   Times  `json:"time_to_error"`
	Removed Times  `json:"time_to_removed"`
	Target  Target `json:"target"` // of Removed
	Met     Met    `json:"met"`
}

// Times sum up samples, in ns.
type Times struct {
	Count int   `json:"count"`
	P50   int64 `json:"p50"`
	P99   int64 `json:"p99"`
	Max   int64 `json:"max"`
}

// A Target is a bound of times, in ns; 0: none.
type Target struct {
	P99 int64 `json:"p99,omitempty"`
	Max int64 `json:"max"`
}

// A Met is whether times have met their target.
type Met string

// The values of a Met.
const (
	TargetMet    Met = "met"
	TargetMissed Met = "missed"
	NoSample     Met = "no sample"
)

// met judges times.
func (t Target) met(s Times) Met {
	switch {
	case s.Count == 0:
		return NoSample
	case s.Max > t.Max, t.P99 > 0 && s.P99 > t.P99:
		return TargetMissed
	}
	return TargetMet
}

// losses returns the losses that a suite has times of, by fault, profile and lab.
func (s *Suite) losses() []Loss {
	var all []Loss
	for _, f := range lostBys {
		first := len(all)
		for i := range s.Rows {
			if e := &s.Rows[i]; strings.TrimSuffix(e.Scenario, "-"+string(scenario.Fast)) == f.scenario {
				all = append(all, f.loss(e))
			}
		}
		slices.SortStableFunc(all[first:], func(a, b Loss) int {
			return cmp.Or(cmp.Compare(a.Fault, b.Fault), cmp.Compare(a.Detection, b.Detection), byLab(a.Lab, b.Lab))
		})
	}
	return all
}

// loss returns the times of the fault in the runs of a scenario in a lab.
func (f lostBy) loss(e *Entry) Loss {
	l := Loss{Fault: f.in(e.Lab), Detection: e.Detection, Lab: e.Lab, Scenario: e.Scenario, Nodes: e.Nodes,
		Error: e.times(scenario.TimeToError), Removed: e.times(scenario.TimeToRemoved), Target: f.target(e.Detection)}
	l.Met = l.Target.met(l.Removed)
	return l
}

// times returns the figure of all samples of a name: a scenario of one fault may have
// it under the name of the fault only.
func (e *Entry) times(name scenario.FigureName) Times {
	var most check.Figure
	for _, f := range e.Figures {
		if f.Name == name && f.Count > most.Count {
			most = f
		}
	}
	return Times{Count: most.Count, P50: most.P50, P99: most.P99, Max: most.Max}
}

// lossTable shows how soon lost nodes are missed, against the targets.
func (p *page) lossTable(all []Loss) {
	if len(all) == 0 {
		return
	}
	p.f("<h2>How soon a loss is known</h2>\n<p class=\"mute\">From the fault to the error of a call that it caught under way, and to NODE_REMOVED at each application. " +
		"The targets are the design's for NODE_REMOVED, at 8 nodes.</p>\n<div class=\"wide\"><table>\n<thead>\n" +
		"<tr><th scope=\"col\" rowspan=\"2\">fault</th><th scope=\"col\" rowspan=\"2\">profile</th><th scope=\"col\" rowspan=\"2\">lab</th><th scope=\"col\" rowspan=\"2\" class=\"n\">nodes</th>" +
		"<th scope=\"colgroup\" colspan=\"4\">time to error</th><th scope=\"colgroup\" colspan=\"4\">time to NODE_REMOVED</th><th scope=\"col\" rowspan=\"2\">target</th><th scope=\"col\" rowspan=\"2\"></th></tr>\n<tr>")
	for range 2 {
		for _, name := range []string{"samples", "p50", "p99", "max"} {
			p.f("<th scope=\"col\" class=\"n\">%s</th>", name)
		}
	}
	p.f("</tr>\n</thead>\n<tbody>\n")
	for _, l := range all {
		p.f("<tr><td>%s</td><td>%s</td><td>%s</td><td class=\"n\">%d</td>", l.Fault, string(l.Detection), string(l.Lab), l.Nodes)
		p.times(l.Error)
		p.times(l.Removed)
		p.f("<td>%s</td><td>", l.Target.String())
		p.verdict(string(l.Met))
		p.f("</td></tr>\n")
	}
	p.f("</tbody>\n</table></div>\n")
}

func (p *page) times(t Times) {
	p.f("<td class=\"n\">%d</td>", t.Count)
	for _, v := range []int64{t.P50, t.P99, t.Max} {
		if t.Count == 0 {
			p.f("<td class=\"n\">–</td>")
		} else {
			p.f("<td class=\"n\">%s</td>", dur(v))
		}
	}
}

// String returns the target in words.
func (t Target) String() string {
	most := "max " + dur(t.Max)
	if t.P99 > 0 {
		return "p99 " + dur(t.P99) + ", " + most
	}
	return most
}
