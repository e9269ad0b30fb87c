package main

import (
	"errors"
	"os"

	"github.com/spf13/cobra"

	"github.com/fabricd/fabricd/internal/lab/report"
)

func (a *app) chaosCompareCommand() *cobra.Command {
	out := ""
	cmd := &cobra.Command{
		Use: "compare DIR DIR", Short: "Show two saved runs on one page", Args: arguments(2, 2, "the directories of two runs"),
		Long: `compare reads the report.json of two runs that --report has saved, and writes one page:
throughput, latency and errors of both over time, by the scenario's own clock and with
the faults shaded, and their figures and verdicts beside each other.`,
		Example: `  fabricd chaos run my.yaml --on local --report out/before
  fabricd chaos run my.yaml --on local --report out/after
  fabricd chaos compare out/before out/after --out compare.html`,
		RunE: func(_ *cobra.Command, args []string) error {
			one, err := report.ReadSaved(args[0])
			if err != nil {
				return usageError{err}
			}
			other, err := report.ReadSaved(args[1])
			if err != nil {
				return usageError{err}
			}
			if out == "" {
				return report.Compare(a.stdout, one, other)
			}
			f, err := os.Create(out)
			if err != nil {
				return err
			}
			return errors.Join(report.Compare(f, one, other), f.Close())
		},
	}
	cmd.Flags().StringVarP(&out, "out", "o", "", "write to this file (default: standard output)")
	return cmd
}
