package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fabricd/fabricd/internal/daemon"
)

func (a *app) keysCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "keys", Short: "Show or rotate the keys that seal gossip",
		Long: `All gossip of a cluster is sealed with one key, which the host hands out. Links
and control connections have certificates instead, which renew themselves; see
the setting certificate-validity.`,
		Example: `  fabricd keys show
  fabricd keys rotate`,
	}
	cmd.AddCommand(a.keysShowCommand(), a.keysRotateCommand())
	return cmd
}

func (a *app) keysShowCommand() *cobra.Command {
	return a.reader("show", "Show which keys this node holds, by their versions, and the end of its certificate", `  fabricd keys show
  fabricd keys show --json`, "keys", typed(showKeys))
}

func (a *app) keysRotateCommand() *cobra.Command {
	var f askFlags
	cmd := &cobra.Command{
		Use: "rotate", Short: "Change the key that seals gossip; asks the host's fabricd",
		Long: `rotate makes a new key. Every node first holds it, then seals with it, then
forgets the old one; each step waits until all nodes have done it. Nothing else
notices. If a node cannot be reached in time, nothing is lost: the cluster
gossips on, and the next rotate completes what this one began.`,
		Example: `  fabricd keys rotate
  fabricd keys rotate --timeout 2m --json`,
	}
	f.addTimeout(cmd)
	return asking(a, cmd, &f, func(ctx context.Context, c *daemon.Client, _ []string) (daemon.Keys, error) {
		return c.RotateKey(ctx, f.timeout)
	}, showKeys)
}

// showKeys prints the keys that a node holds.
func showKeys(w io.Writer, k daemon.Keys) error {
	var versions []string
	for i, v := range k.Versions {
		text := fmt.Sprintf("version %d", v)
		if i == 0 && len(k.Versions) > 1 {
			text += " (seals)"
		}
		versions = append(versions, text)
	}
	return table{
		{"gossip key", strings.Join(versions, ", ")},
		{"certificate", "until " + k.Certificate.Format(time.RFC3339)},
	}.print(w)
}
