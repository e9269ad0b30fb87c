package main

import (
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/fabricd/fabricd/internal/lab/chaos"
	"github.com/fabricd/fabricd/internal/lab/chaos/workload"
)

// chaosAppCommand is an application of a run. Like chaosCleanupCommand it is a process that a run
// starts, which is not for users and not shown to them.
func (a *app) chaosAppCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use: "app", Hidden: true, Args: cobra.NoArgs,
		Short: "One application of a run", Example: "  fabricd chaos app --config FILE",
	}
	cmd.Flags().StringVar(&file, "config", "", "file of what it does")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := workload.ReadConfig(file)
		if err != nil {
			return usageError{err}
		}
		return workload.Run(cmd.Context(), c)
	}
	return cmd
}

// chaosCleanupCommand cleans up when the runner is killed.
func (a *app) chaosCleanupCommand() *cobra.Command {
	var containers bool
	cmd := &cobra.Command{
		Use: "cleanup RUN", Hidden: true, Args: oneArgument("the name of a run"),
		Short: "Clean up after a run whose process was killed", Example: "  fabricd chaos cleanup NAME",
	}
	cmd.Flags().BoolVar(&containers, "containers", false, "remove containers too")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		// It must outlive the signals that end the runner.
		signal.Ignore(os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
		return chaos.CleanUp(args[0], containers, os.Stdin)
	}
	return cmd
}
