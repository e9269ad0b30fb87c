package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// errRegressed is what `compare` ends with when something has become worse.
var errRegressed = errors.New("something has become worse")

// The verdicts of a comparison.
const (
	verdictSame    = "same"
	verdictBetter  = "better"
	verdictWorse   = "WORSE"
	verdictWrong   = "WRONG BYTES"
	verdictMissing = "missing"
)

// A Change is what became of one row.
type Change struct {
	Test     string `json:"test"`
	Provider string `json:"provider"`
	Dir      string `json:"dir"`
	Size     int64  `json:"size_bytes"`
	Pairs    int64  `json:"pairs"`
	Figure   string `json:"figure"`
	Old      figure `json:"old"`
	New      figure `json:"new"`
	Worse    figure `json:"worse_pct"`   // negative: better
	Allowed  figure `json:"allowed_pct"` // the threshold, or the noise of both runs if that is more
	Verdict  string `json:"verdict"`
}

// vanished reports whether the old run had a figure of which the new one has nothing.
func (c Change) vanished() bool {
	return c.Verdict == verdictMissing && c.Old.measured() && c.Old != 0
}

// row says which row it is.
func (c Change) row() string {
	return fmt.Sprintf("%s over %s, %s, %s bytes, %d pairs, %s", c.Test, c.Provider, c.Dir, sizeName(c.Size), c.Pairs, c.Figure)
}

// noiseFactor is how many times the noise of both runs a change must be beyond
// to be believed.
const noiseFactor = 2

// judgeChange compares a row of two runs. A change counts if it is beyond the
// threshold, in percent, and beyond twice the variation of both together.
func judgeChange(old, now Result, threshold figure) Change {
	c := changeOf(old)
	c.New, c.Verdict = now.Median, verdictSame
	switch old.Figure {
	case latencyFigure:
		c.Worse = 100 * (now.Median/old.Median - 1)
	case falseFigure:
		c.Worse = 100 * (now.Median - old.Median) / max(old.Median, 1) // none is the rule, and some is worse
	default:
		c.Worse = 100 * (old.Median/now.Median - 1) // less is worse
	}
	noise := figure(math.Hypot(max(0, variationOf(old)), max(0, variationOf(now))))
	c.Allowed = max(threshold, noiseFactor*noise)
	switch {
	case now.Errors > 0:
		c.Verdict = verdictWrong
	case !c.Worse.measured():
		c.Verdict = verdictMissing
	case c.Worse > c.Allowed:
		c.Verdict = verdictWorse
	case c.Worse < -c.Allowed:
		c.Verdict = verdictBetter
	}
	return c
}

// changeOf returns the change of a row that is missing.
func changeOf(old Result) Change {
	return Change{Test: old.Test, Provider: old.Provider, Dir: old.Dir, Size: old.Size, Pairs: old.Pairs, Figure: old.Figure,
		Old: old.Median, New: absent, Worse: absent, Allowed: absent, Verdict: verdictMissing}
}

// variationOf returns how much the repetitions of a result differ in percent; 0
// if nobody knows.
func variationOf(r Result) float64 {
	if !r.CV.measured() {
		return 0
	}
	return float64(r.CV)
}

// compareRuns compares the rows that are in the old run and are ours. The anchors
// are not ours to make worse.
func compareRuns(old, now *Document, threshold figure) (changes []Change) {
	for _, o := range old.Results {
		if isAnchorName(o.Provider) {
			continue
		}
		i := slices.IndexFunc(now.Results, func(n Result) bool {
			return sweepOf(n) == sweepOf(o) && n.Size == o.Size && n.Window == o.Window && n.Figure == o.Figure
		})
		if i < 0 {
			changes = append(changes, changeOf(o))
			continue
		}
		changes = append(changes, judgeChange(o, now.Results[i], threshold))
	}
	return changes
}

// isAnchorName reports whether a provider is an anchor.
func isAnchorName(provider string) bool { return strings.HasPrefix(provider, "raw-") }

func (a *app) compareCommand() *cobra.Command {
	var threshold float64
	var format string
	var part bool
	cmd := &cobra.Command{
		Use: "compare OLD [NEW]", Short: "Compare two runs; exit code 3 if something is worse or gone", Args: cobra.RangeArgs(1, 2),
		Long: `compare reads two runs in JSON or CSV and compares what stands for each row. A
change counts if it is beyond the threshold and beyond twice the variation
between the repetitions of both runs together. Wrong bytes always count. With
one file, what it says was measured by "local" or "run" is measured again and
compared with it. The exit code is 3 if a row has become worse, and if one of the
old run is not in the new one: those are listed. With --part only what both have is
compared, for a new run of some tests or sizes.`,
		Example: `  fabric-bench local --format json > old.json
  fabric-bench compare old.json new.json
  fabric-bench compare suite.json msg_lat.json --part
  fabric-bench compare old.json --threshold 20`,
	}
	cmd.Flags().Float64Var(&threshold, "threshold", 10, "changes up to so many percent are none")
	cmd.Flags().BoolVar(&part, "part", false, "the new run is a part of the old one: rows that it lacks are no failure")
	cmd.Flags().StringVar(&format, "format", "table", "table or json")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case math.IsNaN(threshold) || threshold < 0 || threshold > 1000:
			return usagef("--threshold %v: 0 to 1000 percent", threshold)
		case format != "table" && format != "json":
			return usagef("--format %q: table or json", format)
		}
		old, err := readRun(args[0])
		if err != nil {
			return err
		}
		var now *Document
		if len(args) == 2 {
			now, err = readRun(args[1])
		} else {
			now, err = a.again(cmd.Context(), old)
		}
		if err != nil {
			return err
		}
		return a.reportChanges(old, now, figure(threshold), part, format)
	}
	return cmd
}

// maxRun bounds the file of a run, in bytes.
const maxRun = 64 << 20

// readRun reads a run from a file, JSON or CSV.
func readRun(path string) (*Document, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxRun+1))
	switch {
	case err != nil:
		return nil, err
	case len(text) > maxRun:
		return nil, fmt.Errorf("%s: more than %d bytes", path, maxRun)
	}
	d, err := parseRun(text)
	if err != nil {
		return nil, fmt.Errorf("%s is no run of fabric-bench: %w", path, err)
	}
	return d, nil
}

func parseRun(text []byte) (*Document, error) {
	if bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) {
		return readJSON(bytes.NewReader(text))
	}
	rows, err := readCSV(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	d := &Document{Schema: schemaVersion}
	for _, r := range rows {
		d.Results = append(d.Results, fromRow(r))
	}
	return d, nil
}

// fromRow returns what a row alone says of its result.
func fromRow(r Row) Result {
	res := Result{Row: r}
	switch {
	case r.BWAvg.measured() && !r.LatP50.measured() && !isRate(r.Test):
		res.Figure, res.Median, res.Max = bandwidthFigure, r.BWAvg, r.BWPeak
	case r.LatP50.measured():
		res.Figure, res.Median = latencyFigure, r.LatP50
	case r.FalseRate.measured():
		res.Figure, res.Median = falseFigure, r.FalseRate
	default:
		res.Figure, res.Median = rateFigure, r.Rate
	}
	return res
}

// isRate reports whether what stands for a test is a rate, though it moves bytes.
func isRate(name string) bool {
	return slices.ContainsFunc(tests(), func(t *test) bool { return t.name == name && t.kind.rate })
}

// again measures what the command of a run measured.
func (a *app) again(ctx context.Context, old *Document) (*Document, error) {
	args, err := repeatable(old.Command)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if code := execute(ctx, args, &out, a.stderr); code != exitOK {
		return nil, fmt.Errorf("fabric-bench %s ended with exit code %d", strings.Join(args, " "), code)
	}
	return readJSON(&out)
}

// repeatable returns the arguments that measure what a command of `local` or
// `run` did, and write nothing but JSON to standard output.
func repeatable(command []string) ([]string, error) {
	if len(command) < 2 || command[1] != "local" && command[1] != "run" {
		return nil, errors.New("only what `local` or `run` measured can be measured again: name a second file")
	}
	var args []string
	for i := 1; i < len(command); i++ {
		name, _, joined := strings.Cut(command[i], "=")
		if name == "--fail-on-cliff" {
			continue // what is worse, the comparison tells
		}
		if name == "--format" || name == "--cpuprofile" {
			if !joined {
				i++ // its value
			}
			continue
		}
		args = append(args, command[i])
	}
	return append(args, "--format", "json"), nil
}

// reportChanges prints a comparison and fails if something is worse, if rows have
// vanished and now is not only a part of what old is, or if the runs have nothing in
// common.
func (a *app) reportChanges(old, now *Document, threshold figure, part bool, format string) error {
	changes := compareRuns(old, now, threshold)
	var err error
	if format == "json" {
		err = writeJSON(a.stdout, changes)
	} else {
		err = writeChanges(a.stdout, old, now, changes)
	}
	if err != nil {
		return err
	}
	return judgeChanges(changes, part)
}

// judgeChanges returns why a comparison fails; vanished rows are listed.
func judgeChanges(changes []Change, part bool) error {
	counts := map[string]int{}
	var gone []string
	for _, c := range changes {
		counts[c.Verdict]++
		if c.vanished() && !part {
			gone = append(gone, "  "+c.row())
		}
	}
	bad := counts[verdictWorse] + counts[verdictWrong]
	switch {
	case len(changes) == counts[verdictMissing]:
		return errors.New("the two runs have no row in common")
	case len(gone) > 0:
		return fmt.Errorf("%w: %d of %d rows, and %d have vanished (--part allows that):\n%s",
			errRegressed, bad, len(changes), len(gone), strings.Join(gone, "\n"))
	case bad > 0:
		return fmt.Errorf("%w: %d of %d rows", errRegressed, bad, len(changes))
	}
	return nil
}

func writeChanges(w io.Writer, old, now *Document, changes []Change) error {
	t := newTable(w)
	if a, b := machineOf(old), machineOf(now); a != b {
		t.title("The machines differ: %s; %s", a, b)
	}
	t.row("test", "provider", "bytes", "pairs", "of", "old", "new", "worse by", "allowed", "")
	for _, c := range changes {
		t.row(c.Test, c.Provider, fmt.Sprint(c.Size), fmt.Sprint(c.Pairs), c.Figure, short(c.Old), short(c.New),
			percent(c.Worse), percent(c.Allowed), c.Verdict)
	}
	t.flush()
	return t.err
}

// machineOf returns what a run's rows say of its machine.
func machineOf(d *Document) string {
	if len(d.Results) == 0 {
		return "unknown"
	}
	r := d.Results[0].Row
	return r.CPU + ", Linux " + r.Kernel
}

func percent(f figure) string {
	if !f.measured() {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", float64(f))
}
