package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/fabricd/fabricd/internal/lab/chaos"
	"github.com/fabricd/fabricd/internal/lab/scenario"
)

func (a *app) chaosMinimizeCommand() *cobra.Command {
	var on, to string
	var seed uint64
	cmd := &cobra.Command{
		Use: "minimize FILE", Short: "Shorten a scenario that breaks a promise", Args: oneArgument("the file of a scenario"),
		Long: `minimize leaves out steps of the timeline, kinds of traffic, pairs and time, as
long as the run with this seed still breaks the same promise, and prints what is
left as a scenario in which nothing is random. It needs runs that repeat: those
of the simulation.`,
		Example: `  fabricd chaos minimize deploy/scenarios/churn.yaml --seed 42
  fabricd chaos minimize my.yaml --on sim --seed 42 --out shorter.yaml`,
	}
	cmd.Flags().StringVar(&on, "on", string(scenario.Sim), "lab: sim, whose runs repeat")
	cmd.Flags().Uint64Var(&seed, "seed", 1, "seed of the run that breaks a promise")
	cmd.Flags().StringVar(&to, "out", "", "file for the shorter scenario; standard output if empty")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if on != string(scenario.Sim) {
			return usagef("on: %q: want sim: only its runs repeat", on)
		}
		all, err := readScenarios(args)
		if err != nil {
			return err
		}
		return a.minimize(cmd.Context(), all[0], seed, to)
	}
	return cmd
}

func (a *app) minimize(ctx context.Context, n chaos.Named, seed uint64, to string) error {
	lab, err := chaos.OpenLab(scenario.Sim)
	if err != nil {
		return usageError{err}
	}
	defer lab.Close()
	run := func(ctx context.Context, s *scenario.Schedule) *chaos.Outcome {
		return chaos.Once(ctx, lab, s, &chaos.Options{File: n.File})
	}
	short, err := chaos.Minimize(ctx, n.Scenario, seed, run, func(s chaos.Shortening) {
		fmt.Fprintf(a.stderr, "run %d: %d steps, %s, still breaks %s\n", s.Runs, s.After, s.Scenario.Duration, s.Promise)
	})
	if err != nil {
		return usageError{err}
	}
	fmt.Fprintf(a.stderr, "%s: %d of %d actions, after %d runs\n", short.Promise, short.After, short.Before, short.Runs)
	text := scenario.Encode(short.Scenario)
	if to != "" {
		return os.WriteFile(to, text, 0o644)
	}
	_, err = a.stdout.Write(text)
	return err
}
