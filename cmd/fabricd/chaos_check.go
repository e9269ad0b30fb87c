package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/fabricd/fabricd/internal/lab/chaos"
	"github.com/fabricd/fabricd/internal/lab/scenario"
)

func (a *app) chaosCheckCommand() *cobra.Command {
	f := chaosFlags{seeds: 1, repeat: 1}
	cmd := &cobra.Command{
		Use: "check DIR", Short: "Judge a saved run again", Args: oneArgument("the directory of a run"),
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
		v := &verdicts{a: a, f: &f}
		v.add(chaos.Job{}, out)
		return v.end()
	}
	return cmd
}

// A valid is a scenario as `fabricd chaos validate --json` prints it.
type valid struct {
	File     string            `json:"file"`
	Name     string            `json:"name"`
	Nodes    int               `json:"nodes"`
	Steps    int               `json:"steps"`
	Duration scenario.Duration `json:"duration_ns"`
	On       []scenario.Lab    `json:"on"`
}

func (a *app) chaosValidateCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "validate FILE...", Short: "Check scenarios without running them", Args: arguments(1, anyArguments, "files or directories of scenarios"),
		Long: `validate reads scenarios, or all *.yaml of directories, and prints every mistake
with its line and what is allowed there.`,
		Example: `  fabricd chaos validate my.yaml
  fabricd chaos validate deploy/scenarios
  fabricd chaos validate deploy/scenarios --json | jq -r 'select(.nodes > 5) | .name'`,
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object per scenario")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		all, err := readScenarios(args)
		if err != nil {
			return err
		}
		for _, n := range all {
			v := valid{n.File, string(n.Scenario.Name), n.Scenario.Cluster.Nodes, len(n.Scenario.Timeline), n.Scenario.Duration, n.Scenario.On}
			if asJSON {
				err = json.NewEncoder(a.stdout).Encode(v)
			} else {
				_, err = fmt.Fprintf(a.stdout, "%s: %s, %s, %s, %s, on %v\n", v.File, v.Name, plural(v.Nodes, "node"), plural(v.Steps, "step"), v.Duration, v.On)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	return cmd
}
