package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/fabricd/fabricd/internal/chaos"
)

func (a *app) chaosCheckCommand() *cobra.Command {
	f := chaosFlags{seeds: 1, repeat: 1}
	cmd := &cobra.Command{
		Use: "check DIR", Short: "Judge a saved run again", Args: cobra.ExactArgs(1),
		Long: `check reads the history that --report has saved and judges it anew, against the
invariants and the scenario beside it.`,
		Example: `  fabricd chaos check out/my
  fabricd chaos check out/my --json | jq .result.invariants`,
	}
	cmd.Flags().BoolVar(&f.json, "json", false, "print one JSON object")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		out, err := chaos.Recheck(args[0])
		if err != nil {
			return usageError{err}
		}
		v := &verdicts{a: a, f: &f, worst: chaos.Green}
		v.add(chaos.Job{}, out)
		return v.end()
	}
	return cmd
}

func (a *app) chaosValidateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "validate FILE...", Short: "Check scenarios without running them", Args: cobra.MinimumNArgs(1),
		Long: `validate reads scenarios, or all *.yaml of directories, and prints every mistake
with its line and what is allowed there.`,
		Example: `  fabricd chaos validate my.yaml
  fabricd chaos validate deploy/scenarios`,
	}
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		all, err := readScenarios(args)
		if err != nil {
			return err
		}
		for _, n := range all {
			fmt.Fprintf(a.stdout, "%s: %s, %d nodes, %d steps, %s, on %v\n", n.File, n.Scenario.Name,
				n.Scenario.Cluster.Nodes, len(n.Scenario.Timeline), n.Scenario.Duration, n.Scenario.On)
		}
		return nil
	}
	return cmd
}
