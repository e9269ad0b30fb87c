package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/fabricd/fabricd/internal/lab/chaos"
)

func (a *app) chaosPageCommand() *cobra.Command {
	return &cobra.Command{
		Use: "page DIR", Short: "Put the reports of several labs together on one page", Args: oneArgument("the directory of reports"),
		Long: `page reads what suite and scale have saved in the directories of DIR, and writes
DIR/index.html and DIR/index.json: the verdict on each scenario in each lab, with
the page of one of its runs behind it, how soon each loss was known against its
target, all figures and where their samples lie, and how clusters grow. It prints how many runs each lab has made in which time. make chaos
and make criteria end with it.`,
		Example: `  fabricd chaos suite deploy/scenarios --on sim --report out/chaos/sim
  fabricd chaos suite deploy/scenarios --on local --report out/chaos/local
  fabricd chaos page out/chaos`,
		RunE: func(_ *cobra.Command, args []string) error {
			path, labs, err := chaos.Page(args[0])
			switch {
			case chaos.Refused(err):
				return usageError{err}
			case err != nil:
				return err
			}
			for _, l := range labs {
				fmt.Fprintf(a.stdout, "%-8s %d runs in %.0f s\n", l.Lab, l.Runs, l.Took)
			}
			fmt.Fprintln(a.stdout, path)
			return nil
		},
	}
}
