package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/fabricd/fabricd/internal/daemon"
	"github.com/fabricd/fabricd/internal/lab/chaos"
	"github.com/fabricd/fabricd/internal/lab/report"
	"github.com/fabricd/fabricd/internal/lab/scenario"
)

func (a *app) chaosCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "chaos", Short: "Break a cluster on purpose and check what it promises",
		Long: `chaos runs scenarios: files that say which cluster to start, what its
applications do, what to break when, and what must hold. A run ends with a
verdict on every promise of the fabric, and with figures.

A scenario runs in a lab:
  sim      whole clusters on virtual time in this process; a seed repeats a run
  local    processes on loopback
  netns    processes in network namespaces; needs root, nft and tc
  compose  containers; needs Docker and the image that ` + "`make image`" + ` makes

Exit codes: 0 everything held, 1 a promise or an expectation was broken, 2 the
command line, the scenario or the lab is wrong.`,
		Example: `  fabricd chaos run deploy/scenarios/node-killed.yaml --on sim --seeds 100
  fabricd chaos run deploy/scenarios/node-killed.yaml --on local --report out`,
	}
	cmd.AddCommand(a.chaosRunCommand(), a.chaosSuiteCommand(), a.chaosMinimizeCommand(),
		a.chaosCheckCommand(), a.chaosValidateCommand(), a.chaosScaleCommand(), a.chaosPageCommand(), a.chaosCompareCommand())
	cmd.AddCommand(a.chaosAppCommand(), a.chaosCleanupCommand())
	return cmd
}

// chaosFlags are the flags that run and suite share.
type chaosFlags struct {
	on        string
	seed      uint64
	seeds     int
	repeat    int
	parallel  int
	load      int
	report    string
	image     string
	providers string
	streams   bool // no provider of providers sends packets of its own
	json      bool
}

func (f *chaosFlags) addTo(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.on, "on", string(scenario.Sim), "lab: sim, local, netns or compose")
	completeWords(cmd, "on", "sim", "local", "netns", "compose")
	cmd.Flags().Uint64Var(&f.seed, "seed", 1, "seed of the first run")
	cmd.Flags().IntVar(&f.seeds, "seeds", 1, "how many seeds, from --seed on")
	cmd.Flags().StringVar(&f.report, "report", "", "directory for what was seen and the verdicts; none if empty")
	cmd.Flags().StringVar(&f.image, "image", chaos.DefaultImage, "container image of the compose lab")
	cmd.Flags().StringVar(&f.providers, "providers", "", "what carries the data of the daemons, as of fabricd run; not on sim")
	cmd.Flags().IntVar(&f.load, "load", 100, "how much of its rates a workload has in a real lab, in percent")
	cmd.Flags().BoolVar(&f.json, "json", false, "print one JSON object per run")
}

// maxRuns bounds how many runs one command makes of a scenario.
const maxRuns = 1_000_000

func (f *chaosFlags) check() error {
	for name, n := range map[string]int{"seeds": f.seeds, "repeat": f.repeat} {
		if n < 1 || n > maxRuns {
			return usagef("%s: %d: want 1 to %d", name, n, maxRuns)
		}
	}
	if f.load < 1 || f.load > 100 {
		return usagef("load: %d: want 1 to 100 percent", f.load)
	}
	if f.providers == "" {
		return nil
	}
	if f.on == string(scenario.Sim) {
		return usagef("providers: %q: the simulation has none; want another lab", f.providers)
	}
	cfg, err := daemon.Load("", nil, map[string]string{"providers": f.providers})
	if err == nil {
		f.streams = cfg.StreamsOnly()
	}
	return err
}

func (a *app) chaosRunCommand() *cobra.Command {
	var f chaosFlags
	cmd := &cobra.Command{
		Use: "run FILE...", Short: "Run scenarios in a lab and judge them", Args: arguments(1, anyArguments, "files or directories of scenarios"),
		Long: `run runs each scenario once for every seed and prints a verdict. What is random
in a scenario follows from the seed: victims, times, and in a simulation
everything else too. Nothing is left running, and no file but those of --report,
whatever ends the command; only of a run that is killed a lock file may stay, which
stops no other.`,
		Example: `  fabricd chaos run deploy/scenarios/node-killed.yaml
  fabricd chaos run deploy/scenarios/*.yaml --on sim --seeds 50
  fabricd chaos run my.yaml --on netns --seed 7 --report out/my
  fabricd chaos run my.yaml --on local --json | jq .problems`,
	}
	f.addTo(cmd)
	cmd.Flags().IntVar(&f.repeat, "repeat", 1, "how often each seed is run")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := f.check(); err != nil {
			return err
		}
		all, err := readScenarios(args)
		if err != nil {
			return err
		}
		opts, err := a.chaosOptions(&f)
		if err != nil {
			return err
		}
		var jobs []chaos.Job
		for range f.repeat {
			for _, n := range all {
				if !n.Scenario.Has(scenario.Lab(f.on)) && f.validLab() {
					return usagef("%s: it does not run on %s: on: %v", n.File, f.on, n.Scenario.On)
				}
				if err := opts.Able(n.Scenario, scenario.Lab(f.on)); err != nil && f.validLab() {
					return usageError{err}
				}
				jobs = append(jobs, chaos.Plan([]chaos.Named{n}, scenario.Lab(f.on), f.seed, f.seeds, 0)...)
			}
		}
		return a.runJobs(cmd.Context(), &f, opts, jobs, nil)
	}
	return cmd
}

func (f *chaosFlags) validLab() bool { return slices.Contains(scenario.Labs, scenario.Lab(f.on)) }

// readScenarios is chaos.ReadScenarios with errors that end with exit code 2.
func readScenarios(paths []string) ([]chaos.Named, error) {
	all, err := chaos.ReadScenarios(paths)
	if err != nil {
		return nil, usageError{err}
	}
	return all, nil
}

// runJobs runs jobs and prints their verdicts. Then it calls sum, unless that is nil, with
// the verdicts and how long they took.
func (a *app) runJobs(ctx context.Context, f *chaosFlags, opts *chaos.Options, jobs []chaos.Job, sum func(*verdicts, time.Duration) error) error {
	lab, err := chaos.OpenLab(scenario.Lab(f.on))
	if err != nil {
		return usageError{err}
	}
	defer lab.Close()
	v := &verdicts{a: a, f: f, many: len(jobs) > 1 || sum != nil}
	began := time.Now()
	chaos.RunAll(ctx, lab, jobs, opts, v.add)
	if sum != nil {
		if err := sum(v, time.Since(began)); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return usagef("interrupted after %d of %d runs", v.runs, len(jobs))
	}
	return v.end()
}

func (a *app) chaosOptions(f *chaosFlags) (*chaos.Options, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	o := &chaos.Options{Exe: exe, Image: f.image, Version: buildVersion(), Parallel: f.parallel, Load: f.load, Providers: f.providers, StreamsOnly: f.streams}
	if f.on != string(scenario.Sim) {
		o.Say = func(line string) { fmt.Fprintln(a.stderr, line) }
	}
	return o, nil
}

// verdicts prints and counts the outcomes of a command.
type verdicts struct {
	a     *app
	f     *chaosFlags
	many  bool // each report gets a directory of its own
	tally chaos.Tallies
	runs  int
	bad   int   // that are not green
	vain  bool  // the lab has failed in one of them
	err   error // the first of a report
	// refused is why the only run was not begun.
	refused error
}

// maxShown bounds the problems of a run that are printed.
const maxShown = 10

func (v *verdicts) add(j chaos.Job, out *chaos.Outcome) {
	v.runs++
	if !v.many && chaos.Refused(out.Err) && len(out.Records) == 0 {
		v.refused = out.Err
		return
	}
	v.tally.Add(out)
	verdict := out.Verdict()
	v.vain = v.vain || verdict == report.Harness
	if verdict != report.Green {
		v.bad++
	}
	if err := v.save(out, j.Seed == v.f.seed); err != nil && v.err == nil {
		v.err = err
	}
	if v.f.json {
		s := chaos.Summarize(out)
		if err := json.NewEncoder(v.a.stdout).Encode(s); err != nil && v.err == nil {
			v.err = err
		}
		return
	}
	if verdict != report.Green || v.f.on != string(scenario.Sim) || !v.many {
		v.print(out)
	}
}

// maxSaved bounds the runs that a command saves whole.
const maxSaved = 100

// save saves the only run whole, and of many those that were not green and a page of
// each scenario's run of the first seed, whichever ends first.
func (v *verdicts) save(out *chaos.Outcome, first bool) error {
	switch {
	case v.f.report == "":
		return nil
	case !v.many:
		return chaos.Save(v.f.report, out)
	}
	whole := out.Verdict() != report.Green && v.bad <= maxSaved
	if !whole && !first {
		return nil
	}
	run := filepath.Join("runs", fmt.Sprintf("%s-%s-%d", out.Schedule.Scenario.Name, out.Lab, out.Schedule.Seed))
	v.tally.Reported(out, run)
	if whole {
		return chaos.Save(filepath.Join(v.f.report, run), out)
	}
	return chaos.SavePage(filepath.Join(v.f.report, run), out)
}

func (v *verdicts) print(out *chaos.Outcome) {
	w := v.a.stdout
	how := ""
	if out.Result != nil && out.Lab != scenario.Sim {
		how = ", " + report.Paths(out.Result.Begin.Paths, out.Result.Paths)
	}
	fmt.Fprintf(w, "%-7s %s on %s, seed %d: %d records, %v%s\n", out.Verdict(), out.Schedule.Scenario.Name, out.Lab,
		out.Schedule.Seed, len(out.Records), out.Took.Round(time.Millisecond), how)
	for i, problem := range out.Problems() {
		if i == maxShown {
			fmt.Fprintf(w, "    … and %d more\n", len(out.Problems())-maxShown)
			break
		}
		fmt.Fprintln(w, "    "+problem)
	}
	if out.Result == nil {
		return
	}
	for _, fig := range out.Result.Figures {
		fmt.Fprintf(w, "    %s\n", fig)
	}
}

// end returns the verdict on all runs together as an error; nil: all are green.
func (v *verdicts) end() error {
	if v.refused != nil {
		return usageError{v.refused}
	}
	if v.err != nil {
		return fmt.Errorf("report: %w", v.err)
	}
	if v.many && !v.f.json {
		fmt.Fprintf(v.a.stdout, "%d runs, %d not green\n", v.runs, v.bad)
	}
	switch {
	case v.bad == 0:
		return nil
	case !v.vain:
		return fmt.Errorf("%d of %d runs broke a promise or an expectation", v.bad, v.runs)
	}
	return usageError{errors.New("the lab failed, which is no result about the fabric; the lines above show how")}
}
