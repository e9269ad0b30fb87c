// Package report writes the report of a run: a folder with everything that a program may want to
// read, and one page that a person can.
//
//	report.json    verdicts, figures, the run and how to repeat it
//	history.jsonl  every record of every source, in order
//	scenario.yaml  the scenario
//	report.html    the page: needs nothing beside itself, and no script
//
// [Suite] sums up many runs in one page and one JSON file. Pages are bounded: long histories are
// thinned out, and marked so.
package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/fabricd/fabricd/internal/lab/check"
	"github.com/fabricd/fabricd/internal/lab/history"
	"github.com/fabricd/fabricd/internal/lab/scenario"
)

// The files of a report.
const (
	JSONName     = "report.json"
	HistoryName  = "history.jsonl"
	ScenarioName = "scenario.yaml"
	HTMLName     = "report.html"
)

// Version is the version of report.json.
const Version = 1

// A Run is one run that is reported.
type Run struct {
	Records  []history.Record
	Result   *check.Result      // nil if there is nothing to judge
	Scenario *scenario.Scenario // nil if it is not known
	// Problem is why the lab could not do its task; empty: it could.
	Problem string
}

// A Verdict is one word on a run.
type Verdict string

// The verdicts.
const (
	Green   Verdict = "green"   // everything held
	Broken  Verdict = "broken"  // a promise or an expectation was not kept
	Harness Verdict = "harness" // the lab failed: nothing is said of the fabric
)

// Verdict returns the word on the run.
func (r *Run) Verdict() Verdict {
	switch {
	case r.Problem != "" || r.Result == nil:
		return Harness
	case !r.Result.OK():
		return Broken
	}
	return Green
}

// whole returns the run with a result, an empty one if it has none.
func (r *Run) whole() *Run {
	if r.Result != nil {
		return r
	}
	c := *r
	c.Result = &check.Result{}
	if c.Problem == "" {
		c.Problem = "there is no history to judge"
	}
	if c.Scenario != nil {
		c.Result.Begin = history.Begin{Scenario: string(c.Scenario.Name), Detection: string(c.Scenario.Cluster.Detection), Nodes: c.Scenario.Cluster.Nodes}
	}
	return &c
}

// document is report.json.
type document struct {
	Version  int                  `json:"version"`
	Verdict  Verdict              `json:"verdict"`
	Problem  string               `json:"problem,omitempty"`
	Problems []string             `json:"problems,omitempty"` // one line each
	About    string               `json:"about,omitempty"`
	Rows     []scenario.Name      `json:"rows,omitempty"`
	Faults   []faultEntry         `json:"faults,omitempty"`
	Counts   map[history.Kind]int `json:"records"`          // by kind
	Curves   *Curves              `json:"curves,omitempty"` // nil: nothing was recorded
	Result   *check.Result        `json:"result"`
}

// A faultEntry is one fault as it was.
type faultEntry struct {
	ID    int           `json:"id"`
	What  string        `json:"what"`
	Begin int64         `json:"begin"`         // ns of the run's clock, as [check.Result.Zero]
	End   int64         `json:"end,omitempty"` // ns; 0: it did not end
	Nodes []int         `json:"nodes,omitempty"`
	Ways  []history.Way `json:"ways,omitempty"`
	Apps  []int         `json:"apps,omitempty"`
	Harm  history.Harm  `json:"harm"`
	Fired uint64        `json:"fired"`
	Proof string        `json:"proof,omitempty"`
	Err   string        `json:"err,omitempty"`
}

// JSON returns report.json.
func JSON(r *Run) ([]byte, error) {
	r = r.whole()
	d := document{Version: Version, Verdict: r.Verdict(), Problem: r.Problem, Problems: r.Result.Problems(), Result: r.Result, Counts: map[history.Kind]int{}}
	if r.Scenario != nil {
		d.About, d.Rows = string(r.Scenario.About), r.Scenario.Rows
	}
	for _, rec := range r.Records {
		d.Counts[rec.Kind()]++
	}
	d.Curves = newCurves(r.Records, r.Result.Zero, r.Result.End)
	d.Faults = newScene(&r.Result.Begin, r.Records, r.Result.Zero).entries()
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", " ")
	e.SetEscapeHTML(false)
	err := e.Encode(d)
	return b.Bytes(), err
}

// Write writes the report of a run to a directory, which it makes. Files of an
// earlier report there are replaced.
func Write(dir string, r *Run) error {
	if err := WritePage(dir, r); err != nil {
		return err
	}
	if r.Scenario != nil {
		if err := os.WriteFile(filepath.Join(dir, ScenarioName), scenario.Encode(r.Scenario), 0o644); err != nil {
			return err
		}
	}
	return writeFile(filepath.Join(dir, HistoryName), func(w io.Writer) error { return history.WriteAll(w, r.Records) })
}

// WritePage writes the page for people and report.json, without the history.
func WritePage(dir string, r *Run) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	text, err := JSON(r)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, JSONName), text, 0o644)
	}
	if err != nil {
		return err
	}
	return writeFile(filepath.Join(dir, HTMLName), func(w io.Writer) error { return HTML(w, r) })
}

func writeFile(name string, write func(io.Writer) error) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}

// maxJSON bounds a file of JSON that is read, in bytes.
const maxJSON = 64 << 20

// readJSON reads a file that one of the labs has written.
func readJSON(path string, into any) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxJSON+1))
	if err == nil && len(text) > maxJSON {
		err = fmt.Errorf("more than %d bytes", maxJSON)
	}
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
