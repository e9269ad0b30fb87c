package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/fabricd/fabricd/internal/daemon"
)

func (a *app) logLevelCommand() *cobra.Command {
	var f askFlags
	var keep time.Duration
	cmd := &cobra.Command{
		Use: "log-level [LEVEL]", Short: "Show or change what the fabricd that runs logs: trace, debug, info, warn or error",
		Long: `log-level changes what this node logs, without a restart: until it is changed again
or fabricd ends, or with --for for a time. The setting log-level stays what it is.`,
		Example: `  fabricd log-level
  fabricd log-level debug --for 5m
  fabricd log-level info --json`,
		ValidArgs: []string{"trace", "debug", "info", "warn", "error"},
	}
	cmd.Flags().DurationVar(&keep, "for", 0, "go back to the setting after this time, 1s to 24h; else stay")
	cmd.Args = func(_ *cobra.Command, args []string) error {
		if len(args) > 1 {
			return fmt.Errorf("want one level, got %s", plural(len(args), "argument"))
		}
		return nil
	}
	return asking(a, cmd, &f, func(ctx context.Context, c *daemon.Client, args []string) (daemon.LogState, error) {
		forTime := cmd.Flags().Changed("for")
		switch {
		case forTime && len(args) == 0:
			return daemon.LogState{}, usagef("for: want a level before it")
		case forTime && keep == 0:
			return daemon.LogState{}, usagef("for: 0s: want 1s to 24h")
		case len(args) == 0:
			return c.LogState(ctx)
		}
		r := daemon.LogRequest{Level: args[0]}
		if keep != 0 {
			r.For = keep.String()
		}
		return c.SetLogLevel(ctx, r)
	}, func(w io.Writer, st daemon.LogState) error { return printLine(w, "%s", logText(st)) })
}

// logText describes the log level of a node.
func logText(st daemon.LogState) string {
	switch {
	case st.Level == st.Configured:
		return "log level " + st.Level + ", as in the settings"
	case st.Until.IsZero():
		return fmt.Sprintf("log level %s; the settings have %s", st.Level, st.Configured)
	}
	return fmt.Sprintf("log level %s until %s, then %s again", st.Level, st.Until.Format(time.RFC3339), st.Configured)
}
