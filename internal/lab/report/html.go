package report

import (
	"fmt"
	"io"
	"strings"

	"github.com/fabricd/fabricd/internal/lab/check"
	"github.com/fabricd/fabricd/internal/lab/history"
	"github.com/fabricd/fabricd/internal/lab/scenario"
)

// Limits of a page.
const (
	maxListed = 200 // faults, and rows of a suite's scenario
	maxShown  = 5   // violations of one judgement, with their proof
)

// HTML writes the page of a run. It is one file that needs nothing else. All times are
// by the scenario's own clock.
func HTML(w io.Writer, r *Run) error {
	r = r.whole()
	p := &page{}
	s := newScene(&r.Result.Begin, r.Records, r.Result.Zero)
	b := r.Result.Begin
	p.head(b.Scenario + " on " + b.Lab + ", seed " + fmt.Sprint(b.Seed))
	p.f("<h1>%s ", b.Scenario)
	p.verdict(string(r.Verdict()))
	p.f("</h1>\n")
	if r.Scenario != nil && r.Scenario.About != "" {
		p.f("<p>%s</p>\n", string(r.Scenario.About))
	}
	if r.Problem != "" {
		p.f("<p class=\"warn\">The lab failed, so nothing is said of the fabric: %s</p>\n", r.Problem)
	}
	p.problems(r.Result)
	p.facts(r)
	p.f("<h2>What happened<small>all times are by the scenario's own clock; faults are shaded</small></h2>\n<div class=\"wide\">\n<figure>%s</figure>\n", raw(drawTimeline(s)))
	p.legend(s)
	if c := newCurves(r.Records, r.Result.Zero, r.Result.End); c != nil {
		x, marks := newAxis(-s.zero, s.end)
		p.graph(&graph{x, marks, []graphRun{{"", "s1", c, shades(s.entries(), s.zero, s.end+s.zero, "")}}})
	}
	p.f("</div>\n")
	p.figureTable([]named{{"", r.Result.Figures}}, false)
	p.judgements("Expectations", r.Result.Expectations, s.zero)
	p.judgements("Invariants", r.Result.Invariants, s.zero)
	p.faultTable(s)
	if r.Scenario != nil {
		p.f("<h2>Scenario</h2>\n<pre>%s</pre>\n", string(scenario.Encode(r.Scenario)))
	}
	p.foot()
	_, err := io.WriteString(w, p.String())
	return err
}

// problems lists first the violations.
func (p *page) problems(r *check.Result) {
	all := r.Problems()
	if len(all) == 0 {
		return
	}
	p.f("<ul class=\"bad\">\n")
	for i, text := range all {
		if i == maxShown {
			p.f("<li>and %d more, below</li>\n", len(all)-i)
			break
		}
		p.f("<li>%s</li>\n", text)
	}
	p.f("</ul>\n")
}

// facts describes the run, and how to repeat it.
func (p *page) facts(r *Run) {
	p.f("<p class=\"mute\">%s</p>\n<pre>%s</pre>\n", facts(r.Result, r.Scenario), command(r.Result))
}

// facts describe the run, in a line.
func facts(r *check.Result, s *scenario.Scenario) string {
	b := r.Begin
	all := []string{"lab " + b.Lab, "seed " + fmt.Sprint(b.Seed), fmt.Sprintf("%d nodes, detection %s", b.Nodes, b.Detection),
		fmt.Sprintf("%s long, with %s to start", dur(r.End-r.Zero), dur(r.Zero)), fmt.Sprintf("%d records", r.Records)}
	if text := Paths(b.Paths, r.Paths); text != "" {
		all = append(all, text)
	}
	if r.Stall > 0 {
		all = append(all, "the lab itself stood still for at most "+dur(r.Stall))
	}
	if b.Build != "" {
		all = append(all, "fabricd "+b.Build)
	}
	if b.Started != "" {
		all = append(all, "started "+b.Started)
	}
	if s != nil && len(s.Rows) > 0 {
		all = append(all, "shows "+rowsText(s.Rows))
	}
	return strings.Join(all, " · ")
}

// Paths describes how the daemons of a real lab ran ([history.Begin].Paths), and how many
// connections went over to a path; nothing of a simulation.
func Paths(daemons string, n int) string {
	switch daemons {
	case history.PathsLazy:
		return fmt.Sprintf("%d connections on paths", n)
	case history.PathsOff:
		return "faults enabled: no paths"
	}
	return ""
}

// command returns the command that repeats the run.
func command(r *check.Result) string {
	b := r.Begin
	if b.Command != "" {
		return b.Command
	}
	return "fabricd chaos run " + ScenarioName + " --on " + b.Lab + " --seed " + fmt.Sprint(b.Seed)
}

func (p *page) legend(s *scene) {
	p.f("<p class=\"mute\">A bar is an incarnation of the node, with its ID and generation; hatched: the node is stopped; a stroke: its process ends. " +
		"Events of its application: ▲ a node was added, ▼ removed, ✕ its own incarnation was removed. Dashed frames are faults.")
	if len(s.streams) > maxStreams {
		p.f(" %d of %d nodes are shown.", maxStreams, len(s.streams))
	}
	if len(s.faults) > maxFaults {
		p.f(" The first %d of %d faults are shown.", maxFaults, len(s.faults))
	}
	p.f("</p>\n")
}

// judgements lists verdicts with the proofs of the bad ones.
func (p *page) judgements(title string, all []check.Judgement, zero int64) {
	if len(all) == 0 {
		return
	}
	p.f("<h2>%s</h2>\n<div class=\"wide\"><table>\n<thead><tr><th scope=\"col\">verdict</th><th scope=\"col\">name</th><th scope=\"col\">claim</th><th scope=\"col\" class=\"n\">judged</th></tr></thead>\n<tbody>\n", title)
	for _, j := range all {
		p.f("<tr><td>")
		p.verdict(string(j.Verdict))
		p.f("</td><td>%s", j.Name)
		if j.Rows != "" {
			p.f(" <span class=\"mute\">%s</span>", j.Rows)
		}
		p.f("</td><td>%s", j.Claim)
		p.violations(j, zero)
		p.f("</td><td class=\"n\">%d</td></tr>\n", j.Checked)
	}
	p.f("</tbody>\n</table></div>\n")
}

func (p *page) violations(j check.Judgement, zero int64) {
	for i, v := range j.Violations {
		if i == maxShown {
			break
		}
		p.f("<details><summary class=\"bad\">%s: %s</summary>", dur(v.At-zero), v.What)
		if len(v.Lines) > 0 {
			p.f("<pre>%s</pre>", shortLines(v.Lines))
		}
		p.f("</details>")
	}
	if more := j.Count - min(len(j.Violations), maxShown); more > 0 {
		p.f("<p class=\"bad\">and %d more</p>", more)
	}
}

// shortLines joins records, each at most 600 bytes.
func shortLines(lines []string) string {
	var b strings.Builder
	for _, l := range lines {
		if len(l) > 600 {
			l = strings.ToValidUTF8(l[:600], "") + "…"
		}
		b.WriteString(l + "\n")
	}
	return b.String()
}

// faultTable lists the faults and their proofs.
func (p *page) faultTable(s *scene) {
	if len(s.faults) == 0 {
		return
	}
	p.f("<h2>Faults</h2>\n<div class=\"wide\"><table>\n<thead><tr><th scope=\"col\" class=\"n\">from</th><th scope=\"col\" class=\"n\">to</th><th scope=\"col\">what</th><th scope=\"col\">touches</th><th scope=\"col\">may</th><th scope=\"col\">did</th></tr></thead>\n<tbody>\n")
	for i, f := range s.faults {
		if i == maxListed {
			p.f("<tr><td colspan=\"6\">and %d more</td></tr>\n", len(s.faults)-maxListed)
			break
		}
		to := "–"
		if f.ended {
			to = dur(f.to)
		}
		may := map[string]string{"none": "slow down", "reset": "reset", "remove": "remove"}[string(f.Harm)]
		p.f("<tr><td class=\"n\">%s</td><td class=\"n\">%s</td><td>%s</td><td>%s</td><td>%s</td><td>%s</td></tr>\n", dur(f.from), to, f.What, s.touches(f), may, f.outcome())
	}
	p.f("</tbody>\n</table></div>\n")
}
