package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// An entry is the presentation of a row, or of its processor time: each target has its own line,
// and the text, the page and TARGETS.md show the same.
type entry struct {
	Verdict string // empty: it has no target and was measured
	What    string
	Ours    string       // or why it was not measured
	Beside  []comparison // the target's source first
	Target  string       // empty: none

	ratios  []figure // ours to the target's source, run by run
	goal    *figure  // for the ratios
	atLeast bool     // the goal is a lower bound
}

// A comparison is a row's figures compared with another source, or with a bound.
type comparison struct {
	Source, Its string
	Ratio       string // ours divided by its
	CPU         string // ours, and its ratio to the source's
}

// theBound names the bound in a row without a baseline.
const theBound = "the bound"

// readable maps sources to their usual names.
var readable = map[string]string{carryTCP: "raw TCP", carryTLS: "crypto/tls", carryDirect: "direct TCP"}

func nameOf(source string) string {
	if name := readable[source]; name != "" {
		return name
	}
	return source
}

// entries returns the row's entry and that of its processor time, if that has a target.
func (r *Row) entries() []entry {
	all := []entry{r.entry()}
	if r.CPUTarget != nil {
		all = append(all, r.cpuEntry())
	}
	if r.Why == "" {
		return all
	}
	for i := range all {
		all[i] = entry{Verdict: notMeasured, What: all[i].What, Target: all[i].Target, Ours: clip(r.Why)}
	}
	return all
}

func (r *Row) entry() entry {
	e := entry{Verdict: r.verdict(), What: r.What, Ours: quantity(r.ours(), r.Unit), Target: r.bound(), goal: r.Target,
		atLeast: r.Baseline != "" && moreIsBetter(r.Unit)}
	ourCPU := ""
	if cpu := median(r.CPU[r.Sources[0]]); cpu.measured() {
		ourCPU = quantity([]figure{cpu}, r.CPUUnit)
	}
	if r.Baseline == "" && r.Target != nil {
		e.goal = to(1)
		for _, f := range r.ours() {
			e.ratios = append(e.ratios, f / *r.Target)
		}
		e.Beside = append(e.Beside, comparison{theBound, "", e.ratio(), ourCPU})
	}
	for _, s := range r.others() {
		ratios := r.ratio(r.Figures, s)
		c := comparison{nameOf(s), quantity(r.Figures[s], r.Unit), times(median(ratios)), ourCPU}
		switch {
		case len(e.Beside) == 0:
			e.ratios = ratios
			c.Ratio = e.ratio()
		case r.Baseline == "" && r.Target != nil: // the bound counts, not this source
			c.Ratio = ""
		}
		if cpu := median(r.ratio(r.CPU, s)); cpu.measured() {
			c.CPU += ", " + times(cpu)
		}
		e.Beside = append(e.Beside, c)
	}
	if len(e.Beside) == 0 {
		e.Beside = []comparison{{CPU: ourCPU}}
	}
	return e
}

// ratio prints the target's ratio, with enough decimals to differ from the target.
func (e *entry) ratio() string {
	f := median(e.ratios)
	if e.goal != nil && f != *e.goal && short(f) == short(*e.goal) {
		return fmt.Sprintf("%.4f×", float64(f))
	}
	return times(f)
}

// others returns the further measured sources, the target's first.
func (r *Row) others() (all []string) {
	for _, s := range r.Sources[1:] {
		switch {
		case !median(r.Figures[s]).measured():
		case s == r.Baseline:
			all = slices.Insert(all, 0, s)
		default:
			all = append(all, s)
		}
	}
	return all
}

// cpuEntry returns the entry of the row's processor time.
func (r *Row) cpuEntry() entry {
	e := entry{Verdict: r.cpuVerdict(), What: r.What + ": processor time", Ours: quantity(r.CPU[r.Sources[0]], r.CPUUnit),
		Target: fmt.Sprintf("≤ %v×", *r.CPUTarget), ratios: r.ratio(r.CPU, r.Baseline), goal: r.CPUTarget}
	e.Beside = []comparison{{nameOf(r.Baseline), quantity(r.CPU[r.Baseline], r.CPUUnit), e.ratio(), ""}}
	return e
}

// A group is the entries of related cases.
type group struct {
	Title   string
	Setup   string // of the machines
	Entries []entry
}

// titles maps the beginning of a case's name to its group's title.
var titles = map[string]string{
	"message": "Messages and connects", "connect": "Messages and connects", "rma": "Remote memory", "way": "25 ms there and back, 1 Gbit/s",
	"link": "QUIC", "quic": "QUIC", "node": "Two applications of one node", "apps": "Unmodified applications", "conns": "Many connections",
	"loss": "Clusters: lost nodes, idle nodes", "false": "Clusters: lost nodes, idle nodes", "idle": "Clusters: lost nodes, idle nodes",
}

// groups returns the groups of the report.
func (d *Report) groups() (all []group) {
	for _, r := range d.Rows {
		begins, _, _ := strings.Cut(r.Case, "-")
		title := cmp.Or(titles[begins], "Other cases")
		if n := len(all); n == 0 || all[n-1].Title != title {
			all = append(all, group{Title: title, Setup: r.Setup})
		}
		g := &all[len(all)-1]
		if !slices.Contains(strings.Split(g.Setup, "; "), r.Setup) {
			g.Setup += "; " + r.Setup
		}
		g.Entries = append(g.Entries, r.entries()...)
	}
	return all
}

// headline counts the verdicts.
func (d *Report) headline() string {
	counts, targets := map[string]int{}, d.targets()
	for _, e := range targets {
		counts[e.Verdict]++
	}
	text := fmt.Sprintf("%d of %d targets reached", counts[reached], len(targets))
	if n := counts[notMeasured]; n > 0 {
		text += fmt.Sprintf(", %d not measured", n)
	}
	if d.Quick {
		text += "; by --quick: the figures show that all works, not how fast"
	}
	return text
}
