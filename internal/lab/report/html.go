package report

import (
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

// HTML writes the page of a run. It is one file that needs nothing else.
func HTML(w io.Writer, r *Run) error {
	r = r.whole()
	p := &page{}
	s := newScene(r.Records)
	b := r.Result.Begin
	p.head(b.Scenario + " on " + b.Lab + ", seed " + uintText(b.Seed))
	p.f("<h1>%s ", b.Scenario)
	p.verdict(string(r.Verdict()))
	p.f("</h1>\n")
	if r.Scenario != nil && r.Scenario.About != "" {
		p.f("<p>%s</p>\n", string(r.Scenario.About))
	}
	if r.Problem != "" {
		p.f("<p class=\"warn\">The lab failed, so nothing is said of the fabric: %s</p>\n", r.Problem)
	}
	p.facts(r)
	p.f("<h2>Timeline</h2>\n<div class=\"wide\">%s</div>\n", raw(drawTimeline(s)))
	p.legend(s)
	p.judgements("Expectations", r.Result.Expectations)
	p.judgements("Invariants", r.Result.Invariants)
	p.figureTables(r.Result.Figures)
	p.faultTable(s)
	if r.Scenario != nil {
		p.f("<h2>Scenario</h2>\n<pre>%s</pre>\n", string(scenario.Encode(r.Scenario)))
	}
	p.foot()
	_, err := io.WriteString(w, p.String())
	return err
}

func uintText(v uint64) string {
	var p page
	p.f("%d", v)
	return p.String()
}

// facts says what ran, and how to run it again.
func (p *page) facts(r *Run) {
	b := r.Result.Begin
	p.f("<table>\n")
	row := func(name, value string) {
		if value != "" {
			p.f("<tr><th scope=\"row\">%s</th><td>%s</td></tr>\n", name, value)
		}
	}
	row("lab", b.Lab)
	row("seed", uintText(b.Seed))
	row("nodes", uintText(uint64(b.Nodes))+", detection "+b.Detection)
	row("length", dur(r.Result.End)+", "+uintText(uint64(r.Result.Records))+" records")
	switch b.Paths {
	case history.PathsLazy:
		row("daemons", "without --enable-faults; connections that went over to a path: "+uintText(uint64(r.Result.Paths)))
	case history.PathsOff:
		row("daemons", "with --enable-faults: no connection has a path")
	}
	if r.Result.Still > 0 {
		row("the lab itself stood still for at most", dur(r.Result.Still))
	}
	row("fabricd", b.Build)
	row("started", b.Started)
	if r.Scenario != nil && len(r.Scenario.Rows) > 0 {
		var rows []string
		for _, x := range r.Scenario.Rows {
			rows = append(rows, string(x))
		}
		row("shows", strings.Join(rows, ", "))
	}
	p.f("</table>\n<p>Repeat it:</p>\n<pre>%s</pre>\n", command(r))
}

// command returns the command that repeats the run.
func command(r *Run) string {
	b := r.Result.Begin
	if b.Command != "" {
		return b.Command
	}
	return "fabricd chaos run " + ScenarioName + " --on " + b.Lab + " --seed " + uintText(b.Seed)
}

func (p *page) legend(s *scene) {
	p.f("<p class=\"mute\">A bar is a life of the node, ID and generation on it; hatched: it stands still; a stroke: its process ends. " +
		"What its application is told: ▲ added, ▼ removed, ✕ its own life was given up. Dashed frames are faults.")
	if len(s.lanes) > maxLanes {
		p.f(" %d of %d slots are shown.", maxLanes, len(s.lanes))
	}
	if len(s.faults) > maxFaults {
		p.f(" The first %d of %d faults are shown.", maxFaults, len(s.faults))
	}
	p.f("</p>\n")
}

// judgements lists verdicts with what proves the bad ones.
func (p *page) judgements(title string, all []check.Judgement) {
	if len(all) == 0 {
		return
	}
	p.f("<h2>%s</h2>\n<table>\n<thead><tr><th scope=\"col\">verdict</th><th scope=\"col\">name</th><th scope=\"col\">claim</th><th scope=\"col\" class=\"n\">judged</th></tr></thead>\n<tbody>\n", title)
	for _, j := range all {
		p.f("<tr><td>")
		p.verdict(string(j.Verdict))
		p.f("</td><td>%s", j.Name)
		if j.Rows != "" {
			p.f(" <span class=\"mute\">%s</span>", j.Rows)
		}
		p.f("</td><td>%s", j.Claim)
		p.violations(j)
		p.f("</td><td class=\"n\">%d</td></tr>\n", j.Checked)
	}
	p.f("</tbody>\n</table>\n")
}

func (p *page) violations(j check.Judgement) {
	for i, v := range j.Violations {
		if i == maxShown {
			break
		}
		p.f("<details><summary class=\"bad\">%s: %s</summary>", dur(v.At), v.What)
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

// figureTables lists all figures, and draws those of times.
func (p *page) figureTables(all []check.Figure) {
	if len(all) == 0 {
		return
	}
	p.f("<h2>Figures</h2>\n<table>\n<thead><tr><th scope=\"col\">figure</th><th scope=\"col\">of</th><th scope=\"col\" class=\"n\">samples</th><th scope=\"col\" class=\"n\">min</th><th scope=\"col\" class=\"n\">p50</th><th scope=\"col\" class=\"n\">p99</th><th scope=\"col\" class=\"n\">max</th></tr></thead>\n<tbody>\n")
	for _, f := range all {
		p.figureRow(f)
	}
	p.f("</tbody>\n</table>\n<div class=\"figs\">\n")
	drawn := map[scenario.FigureName]bool{}
	for _, f := range all {
		if f.Count == 0 || f.Name == scenario.Throughput || drawn[f.Name] {
			continue
		}
		drawn[f.Name] = true
		p.f("<figure>%s<figcaption>%s: %d samples</figcaption></figure>\n", raw(drawHistogram(f)), figureTitle(f), f.Count)
	}
	p.f("</div>\n")
}

func (p *page) figureRow(f check.Figure) {
	show := dur
	if f.Name == scenario.Throughput {
		show = amount
	}
	p.f("<tr><td>%s</td><td>%s</td><td class=\"n\">%d</td>", string(f.Name), f.Of, f.Count)
	for _, v := range []int64{f.Min, f.P50, f.P99, f.Max} {
		if f.Count == 0 {
			p.f("<td class=\"n\">–</td>")
		} else {
			p.f("<td class=\"n\">%s</td>", show(v))
		}
	}
	p.f("</tr>\n")
}

func figureTitle(f check.Figure) string {
	if f.Of == "" {
		return string(f.Name)
	}
	return string(f.Name) + " (" + f.Of + ")"
}

// faultTable lists what was broken and what proves it.
func (p *page) faultTable(s *scene) {
	if len(s.faults) == 0 {
		return
	}
	p.f("<h2>Faults</h2>\n<table>\n<thead><tr><th scope=\"col\" class=\"n\">from</th><th scope=\"col\" class=\"n\">to</th><th scope=\"col\">what</th><th scope=\"col\">touches</th><th scope=\"col\">may</th><th scope=\"col\">did</th></tr></thead>\n<tbody>\n")
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
		p.f("<tr><td class=\"n\">%s</td><td class=\"n\">%s</td><td>%s</td><td>%s</td><td>%s</td><td>%s</td></tr>\n", dur(f.from), to, f.What, f.touches(), may, f.outcome())
	}
	p.f("</tbody>\n</table>\n")
}
