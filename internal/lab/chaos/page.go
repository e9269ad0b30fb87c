package chaos

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/fabricd/fabricd/internal/lab/report"
	"github.com/fabricd/fabricd/internal/lab/scenario"
	"github.com/fabricd/fabricd/internal/lab/sim"
)

// A SuiteRun describes the runs that a lab has made, apart from their results.
type SuiteRun struct {
	Lab     scenario.Lab
	Version string // of fabricd
	Took    time.Duration
	LeftOut []string // why scenarios of the lab were not run, a line each
}

// SaveSuite writes the report of the runs that a lab has made: the results of each
// scenario.
func SaveSuite(dir string, entries []report.Entry, of SuiteRun) error {
	s := &report.Suite{Build: of.Version, Rows: entries}
	lab := report.LabTime{Lab: of.Lab, Took: of.Took.Seconds(), LeftOut: of.LeftOut}
	for _, e := range entries {
		lab.Runs += e.Runs
	}
	s.Labs = []report.LabTime{lab}
	return report.WriteSuite(dir, "suite-"+string(lab.Lab), s)
}

// ScaleName is the file of the figures of [sim.Scale], in a directory scale beside those
// of the labs.
const ScaleName = "scale.json"

// Page puts the reports of several labs, each in a directory of its own below dir, on
// one page there, and returns its path and the time of each lab.
func Page(dir string) (path string, labs []report.LabTime, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "*", "suite-*.json"))
	if err != nil {
		return "", nil, err
	}
	if len(files) == 0 {
		return "", nil, refusef("%s: no report of a suite, which would be a file */suite-*.json", dir)
	}
	all := &report.Suite{Title: "Scenarios in all labs"}
	for _, file := range files {
		s, err := report.ReadSuite(file)
		if err != nil {
			return "", nil, err
		}
		all.Join(s, filepath.Base(filepath.Dir(file)))
	}
	if all.Scale, err = readScale(filepath.Join(dir, "scale", ScaleName)); err != nil {
		return "", nil, err
	}
	const name = "index"
	return filepath.Join(dir, name+".html"), all.Labs, report.WriteSuite(dir, name, all)
}

// readScale draws saved figures; nothing if there are none.
func readScale(path string) ([]byte, error) {
	text, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var points []sim.ScalePoint
	if err := json.Unmarshal(text, &points); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if len(points) < 2 {
		return nil, nil
	}
	return sim.ScalePlot(points), nil
}
