package chaos

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/fabricd/fabricd/internal/lab/check"
	"github.com/fabricd/fabricd/internal/lab/history"
	"github.com/fabricd/fabricd/internal/lab/report"
	"github.com/fabricd/fabricd/internal/lab/scenario"
)

// The files of a saved run that are read again.
const (
	historyName  = report.HistoryName  // all records, merged
	scenarioName = report.ScenarioName // the scenario as it was read
)

// MaxHistory bounds a saved history that is read, in bytes.
const MaxHistory = 4 << 30

// Save writes a run to directory dir, which is made: its history, its scenario, the
// verdict, a page for people, and the output of the processes. Files of an earlier run
// there are replaced.
func Save(dir string, out *Outcome) error {
	if err := report.Write(dir, reported(out)); err != nil {
		return err
	}
	logs := filepath.Join(dir, "logs")
	if len(out.Logs) > 0 {
		if err := os.MkdirAll(logs, 0o755); err != nil {
			return err
		}
	}
	for name, text := range out.Logs {
		if err := os.WriteFile(filepath.Join(logs, name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// SavePage saves the page for people, without history and logs.
func SavePage(dir string, out *Outcome) error { return report.WritePage(dir, reported(out)) }

// reported is an outcome as the report takes it.
func reported(out *Outcome) *report.Run {
	r := &report.Run{Records: out.Records, Result: out.Result}
	if out.Schedule != nil {
		r.Scenario = out.Schedule.Scenario
	}
	if out.Err != nil {
		r.Problem = out.Err.Error()
	}
	return r
}

// Recheck judges a saved run anew.
func Recheck(dir string) (*Outcome, error) {
	sc, err := ReadScenario(filepath.Join(dir, scenarioName))
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, historyName)
	info, err := os.Stat(path)
	if err == nil && info.Size() > MaxHistory {
		err = fmt.Errorf("%s: %d bytes: want at most %d", path, info.Size(), int64(MaxHistory))
	}
	if err != nil {
		return nil, notThere(dir, err)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	records, err := history.Read(f, path)
	if err != nil {
		return nil, &Refusal{text: "the history cannot be read", err: err}
	}
	out := &Outcome{Records: records}
	out.judge(sc)
	out.Schedule = sc.Resolve(out.Result.Begin.Seed)
	out.Lab = scenario.Lab(out.Result.Begin.Lab)
	return out, nil
}

// ReadScenario reads a scenario from a file.
func ReadScenario(path string) (*scenario.Scenario, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, &Refusal{text: "scenario", err: err}
	}
	return scenario.Decode(path, text)
}

func notThere(dir string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return refusef("%s holds no saved run: want a directory that --report has made", dir)
	}
	return err
}

// A Summary is an outcome for machines.
type Summary struct {
	Scenario string         `json:"scenario"`
	Lab      scenario.Lab   `json:"lab"`
	Seed     uint64         `json:"seed"`
	Verdict  report.Verdict `json:"verdict"`
	Took     float64        `json:"took_seconds"`
	Records  int            `json:"records"`
	Problems []string       `json:"problems"`
	Result   *check.Result  `json:"result,omitempty"`
}

// Summarize returns the summary of an outcome.
func Summarize(out *Outcome) Summary {
	s := Summary{Scenario: string(out.Schedule.Scenario.Name), Lab: out.Lab, Seed: out.Schedule.Seed, Verdict: out.Verdict(),
		Took: out.Took.Seconds(), Records: len(out.Records), Problems: out.Problems(), Result: out.Result}
	if s.Problems == nil {
		s.Problems = []string{}
	}
	return s
}
