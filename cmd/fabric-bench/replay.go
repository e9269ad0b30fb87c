package main

import (
	"bytes"
	"context"
	_ "embed" // for what is replayed
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"

	"github.com/spf13/cobra"
)

// replayTest is whether a simulation with the same seed gives the same log.
const replayTest = "fail_replay"

// replayScenario is what is simulated without --scenario.
//
//go:embed replay.yaml
var replayScenario []byte

// historyFile is where `fabricd chaos run --report` writes its log.
const historyFile = "history.jsonl"

// A Replay is one seed that was run twice.
type Replay struct {
	Scenario string `json:"scenario"`
	Seed     uint64 `json:"seed"`
	Events   int64  `json:"events"` // lines of the first log
	Same     bool   `json:"same"`   // both logs are, byte for byte
	// Fresh is set when the log is not that of the seed before: a log that
	// depends on nothing would be the same too.
	Fresh bool   `json:"fresh"`
	Rate  figure `json:"events_per_s"` // of the two runs' own time
}

// A replayOptions is what the flags of fail_replay say.
type replayOptions struct {
	fabricd  string
	scenario string
	seed     uint64
	reps     int
	format   string
	quiet    bool
}

func (a *app) failReplayCommand() *cobra.Command {
	o := &replayOptions{}
	cmd := &cobra.Command{
		Use: replayTest, Short: "Run a simulation twice with each seed, and compare the logs", Args: cobra.NoArgs,
		Long: `fail_replay runs a scenario with faults in fabricd's simulation (fabricd chaos run
--on sim) twice with each seed, in a process each, and compares the two logs of
every event byte for byte. Logs that differ are a failure, and so is one that is
the same for two seeds: it would not depend on them. Shown are the events a
second. Without --scenario a node is killed and another one paused among five
under load.`,
		Example: `  fabric-bench run fail_replay
  fabric-bench run fail_replay --scenario deploy/scenarios/churn.yaml --reps 20
  fabric-bench run fail_replay --seed 41 --reps 2 --format json`,
	}
	f := cmd.Flags()
	f.StringVar(&o.fabricd, "fabricd", "", "the fabricd to run (default: beside this program, ./bin, $PATH)")
	f.StringVar(&o.scenario, "scenario", "", "the scenario to run (default: one of its own)")
	f.Uint64Var(&o.seed, "seed", 1, "the first seed")
	f.IntVar(&o.reps, "reps", 5, "how many seeds")
	f.StringVar(&o.format, "format", "table", "table, csv or json")
	f.BoolVar(&o.quiet, "quiet", false, "no progress on standard error")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := o.check(); err != nil {
			return err
		}
		return a.reportOn(o.format, func(d *Document) error { return a.measureReplay(cmd.Context(), d, o) })
	}
	return cmd
}

func (o *replayOptions) check() error {
	if o.reps < 1 || o.reps > 10_000 {
		return usagef("--reps %d: 1 to 10000", o.reps)
	}
	return checkChoices("", o.format)
}

// measureReplay adds the row and the seeds of fail_replay.
func (a *app) measureReplay(ctx context.Context, d *Document, o *replayOptions) error {
	exe, err := findFabricd(o.fabricd)
	if err != nil {
		return err
	}
	runtime.LockOSThread() // see fleet
	defer runtime.UnlockOSThread()
	dir, err := os.MkdirTemp("", "fabric-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	r := &replayer{exe: exe, dir: dir, scenario: o.scenario}
	if r.scenario == "" {
		r.scenario = filepath.Join(dir, "replay.yaml")
		if err := os.WriteFile(r.scenario, replayScenario, 0o600); err != nil {
			return err
		}
	}
	progress := a.progress(o.quiet)
	var all []Replay
	for i := range o.reps {
		one, err := r.replay(ctx, o.seed+uint64(i))
		if err != nil {
			d.addReplays(rowOf(d), all)
			return fmt.Errorf("%s: seed %d: %w", replayTest, o.seed+uint64(i), err)
		}
		all = append(all, one)
		progress("%s: %d of %d", replayTest, i+1, o.reps)
	}
	d.addReplays(rowOf(d), all)
	return judgeReplays(all)
}

// errNotReplayed is the failure of a simulation that its seed does not decide.
var errNotReplayed = errors.New("a seed does not decide the log")

func judgeReplays(all []Replay) error {
	for _, r := range all {
		switch {
		case !r.Same:
			return fmt.Errorf("%s: %w: seed %d has given two", replayTest, errNotReplayed, r.Seed)
		case !r.Fresh:
			return fmt.Errorf("%s: %w: seed %d has given that of the seed before", replayTest, errNotReplayed, r.Seed)
		}
	}
	return nil
}

// addReplays adds the seeds and the row.
func (d *Document) addReplays(row Row, all []Replay) {
	d.Replays = append(d.Replays, all...)
	if len(all) == 0 {
		return
	}
	var rates []figure
	row.Test, row.Dir, row.Provider, row.Security = replayTest, "twice with each seed: "+all[0].Scenario, providerSim, "none"
	for _, r := range all {
		rates = append(rates, r.Rate)
		row.Iters += 2 * r.Events
		if !r.Same || !r.Fresh {
			row.Errors++
		}
	}
	s := spreadOf(rates)
	row.Rate, row.Reps, row.CV, row.Validated = s.Median, int64(len(all)), variation(rates), true
	row.Noise = row.CV > noisyAbove
	d.Results = append(d.Results, Result{Row: row, Figure: rateFigure, Min: s.Min, Median: s.Median, Max: s.Max, PerRep: rates})
}

// providerSim is what carries a simulation.
const providerSim = "sim"

// A replayer runs a scenario in simulations.
type replayer struct {
	exe, dir, scenario string

	last []byte // the log of the seed before
}

// A simulated is what one run tells of itself.
type simulated struct {
	Scenario string   `json:"scenario"`
	Verdict  string   `json:"verdict"`
	Took     float64  `json:"took_seconds"`
	Problems []string `json:"problems"`

	log []byte
}

// replay runs a seed twice.
func (r *replayer) replay(ctx context.Context, seed uint64) (Replay, error) {
	var runs [2]simulated
	for i := range runs {
		var err error
		if runs[i], err = r.run(ctx, seed); err != nil {
			return Replay{}, err
		}
	}
	a, b := runs[0], runs[1]
	events := int64(bytes.Count(a.log, []byte("\n")))
	out := Replay{Scenario: a.Scenario, Seed: seed, Events: events, Same: bytes.Equal(a.log, b.log), Fresh: !sameEvents(a.log, r.last),
		Rate: figure(float64(2*events) / max(a.Took+b.Took, 1e-9))}
	r.last = a.log
	return out, nil
}

// sameEvents reports whether two logs are the same behind their first lines, which
// name the seed.
func sameEvents(a, b []byte) bool {
	_, a, _ = bytes.Cut(a, []byte("\n"))
	_, b, _ = bytes.Cut(b, []byte("\n"))
	return bytes.Equal(a, b)
}

// run runs a seed, in a process that ends with ctx.
func (r *replayer) run(ctx context.Context, seed uint64) (s simulated, err error) {
	out := filepath.Join(r.dir, "run")
	defer func() { err = errors.Join(err, os.RemoveAll(out)) }()
	cmd := exec.CommandContext(ctx, r.exe, "chaos", "run", r.scenario, "--on", "sim", "--seed", strconv.FormatUint(seed, 10), "--json", "--report", out)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	var errs bytes.Buffer
	cmd.Stderr = &errs
	text, runErr := cmd.Output()
	if ctx.Err() != nil {
		return s, context.Cause(ctx)
	}
	if err := json.Unmarshal(text, &s); err != nil {
		return s, fmt.Errorf("fabricd chaos run: %w: %s", errors.Join(runErr, err), bytes.TrimSpace(errs.Bytes()))
	}
	if s.Verdict != "green" {
		return s, fmt.Errorf("the run is %s: %v", s.Verdict, s.Problems)
	}
	s.log, err = os.ReadFile(filepath.Join(out, historyFile))
	return s, err
}
