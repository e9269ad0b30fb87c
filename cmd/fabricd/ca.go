package main

import (
	"context"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/fabricd/fabricd/internal/daemon"
)

func (a *app) caCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "ca", Short: "Show or rotate the authority that issues the nodes' certificates",
		Long: `The host of a cluster has a certificate authority, whose certificates every node
trusts, unless the cluster's certificates come from an operator's own CA.`,
		Example: `  fabricd ca show
  fabricd ca rotate`,
	}
	cmd.AddCommand(a.caShowCommand(), a.caRotateCommand())
	return cmd
}

func (a *app) caShowCommand() *cobra.Command {
	return a.reader("show", "Show which authorities this node trusts; two: a rotation is under way", `  fabricd ca show
  fabricd ca show --json`, "ca", typed(showAuthorities))
}

// showAuthorities prints the roots that a node trusts.
func showAuthorities(w io.Writer, all daemon.Authorities) error {
	t := table{{"SUBJECT", "OF", "SINCE", "UNTIL", "KEY"}}
	for _, r := range all.Roots {
		t = append(t, []string{r.Subject, all.Trust, r.Since.Format(time.RFC3339), r.Until.Format(time.RFC3339), r.Key})
	}
	return t.print(w)
}

func (a *app) caRotateCommand() *cobra.Command {
	var f askFlags
	cmd := &cobra.Command{
		Use: "rotate", Short: "Replace the cluster's certificate authority; asks the host's fabricd",
		Long: `rotate makes a new authority. Every node first trusts both, then has a certificate
of the new one, then forgets the old one; no connection ends. Tokens that were made
before are void afterwards, and a node that was away must join again. If not all
nodes follow in time, both authorities stay valid, and the next rotate completes
what this one began.`,
		Example: `  fabricd ca rotate
  fabricd ca rotate --timeout 2m --json`,
	}
	f.addTimeout(cmd)
	return asking(a, cmd, &f, func(ctx context.Context, c *daemon.Client, _ []string) (daemon.Authorities, error) {
		return c.RotateCA(ctx, f.timeout)
	}, showAuthorities)
}
