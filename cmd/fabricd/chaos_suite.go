package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fabricd/fabricd/internal/lab/chaos"
	"github.com/fabricd/fabricd/internal/lab/report"
	"github.com/fabricd/fabricd/internal/lab/scenario"
)

func (a *app) chaosSuiteCommand() *cobra.Command {
	f := chaosFlags{repeat: 1}
	var total int
	var only []string
	cmd := &cobra.Command{
		Use: "suite DIR...", Short: "Run all scenarios of directories that a lab can run", Args: arguments(1, anyArguments, "directories of scenarios"),
		Long: `suite runs every scenario of the directories whose "on" names the lab, and ends
with one line for each and its figures over all seeds. With --report it saves the
sums, a page of one run of each scenario, and all of the runs that were not green.`,
		Example: `  fabricd chaos suite deploy/scenarios --on sim --total 2000
  fabricd chaos suite deploy/scenarios deploy/scenarios/fast --on netns --report out/netns
  fabricd chaos suite deploy/scenarios --on local --only node-killed,host-lost
  fabricd chaos suite deploy/scenarios --on netns --providers tcp --parallel 3`,
	}
	f.addTo(cmd)
	cmd.Flags().IntVar(&f.parallel, "parallel", 1, fmt.Sprintf("how many runs of a real lab to make at a time, while the machine has room, up to %d", chaos.MaxParallel))
	cmd.Flags().IntVar(&total, "total", 0, "at least so many runs in all: more seeds for each scenario")
	cmd.Flags().StringSliceVar(&only, "only", nil, "names of the scenarios to run; all if empty")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := f.check(); err != nil {
			return err
		}
		if f.parallel < 1 || f.parallel > chaos.MaxParallel {
			return usagef("parallel: %d: want 1 to %d", f.parallel, chaos.MaxParallel)
		}
		if total < 0 || total > maxRuns {
			return usagef("total: %d: want 0 to %d", total, maxRuns)
		}
		all, err := readScenarios(args)
		if err != nil {
			return err
		}
		if all, err = selected(all, only); err != nil {
			return err
		}
		opts, err := a.chaosOptions(&f)
		if err != nil {
			return err
		}
		all, leftOut := a.able(all, opts, scenario.Lab(f.on))
		jobs := chaos.Plan(all, scenario.Lab(f.on), f.seed, f.seeds, total)
		if len(jobs) == 0 && f.validLab() {
			return usagef("%s: no scenario there runs on %s", strings.Join(args, " "), f.on)
		}
		return a.runJobs(cmd.Context(), &f, opts, jobs, func(v *verdicts, took time.Duration) error { return v.sumUp(opts.Version, leftOut, took) })
	}
	return cmd
}

// selected returns the scenarios whose names are in only, or all.
func selected(all []chaos.Named, only []string) ([]chaos.Named, error) {
	if len(only) == 0 {
		return all, nil
	}
	byName := map[string]chaos.Named{}
	for _, n := range all {
		byName[string(n.Scenario.Name)] = n
	}
	var some []chaos.Named
	for _, name := range only {
		n, ok := byName[name]
		if !ok {
			return nil, usagef("only: %q: no scenario has this name", name)
		}
		some = append(some, n)
	}
	return some, nil
}

// able returns the scenarios that can run with opts, and for each other scenario of the
// lab the reason why it is left out, which it also prints.
func (a *app) able(all []chaos.Named, opts *chaos.Options, lab scenario.Lab) (some []chaos.Named, leftOut []string) {
	for _, n := range all {
		var err error
		if n.Scenario.Has(lab) { // the plan has no jobs for other scenarios
			err = opts.Able(n.Scenario, lab)
		}
		if err != nil {
			leftOut = append(leftOut, err.Error())
			fmt.Fprintf(a.stderr, "left out: %v\n", err)
			continue
		}
		some = append(some, n)
	}
	return some, leftOut
}

// sumUp saves and prints the sums of a suite.
func (v *verdicts) sumUp(version string, leftOut []string, took time.Duration) error {
	entries := v.tally.List()
	if v.f.report != "" {
		if err := chaos.SaveSuite(v.f.report, entries, chaos.SuiteRun{Lab: scenario.Lab(v.f.on), Version: version, Took: took, LeftOut: leftOut}); err != nil {
			return err
		}
	}
	if !v.f.json {
		v.a.printTallies(entries, v.runs, took)
	}
	return nil
}

func (a *app) printTallies(entries []report.Entry, runs int, took time.Duration) {
	w := a.stdout
	for _, e := range entries {
		var notes []string
		if len(e.Broken) > 0 {
			notes = append(notes, "broken by seeds "+report.Seeds(e.Broken))
		}
		if len(e.Harness) > 0 {
			notes = append(notes, "the lab failed with seeds "+report.Seeds(e.Harness))
		}
		if e.Lab != scenario.Sim {
			notes = append(notes, report.Paths(e.Daemons, e.Paths))
		}
		fmt.Fprintf(w, "%-7s %-32s %4d of %4d green  %s\n", e.Verdict(), e.Scenario, e.Green, e.Runs, strings.Join(notes, "; "))
		for _, f := range e.Figures {
			fmt.Fprintf(w, "        %s\n", f)
		}
	}
	fmt.Fprintf(w, "%d runs in %v, %.0f a minute\n", runs, took.Round(time.Millisecond), float64(runs)/took.Minutes())
}
