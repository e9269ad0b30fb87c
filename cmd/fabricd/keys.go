package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fabricd/fabricd/internal/daemon"
)

// rotateMargin is how much longer than fabricd the command waits.
const rotateMargin = 5 * time.Second

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
	var f askFlags
	cmd := &cobra.Command{
		Use: "show", Short: "Show which keys this node holds, by their versions, and the end of its certificate",
		Example: `  fabricd keys show
  fabricd keys show --json`,
	}
	f.addTo(cmd, a, true)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.ask(cmd, &f, func(ctx context.Context, c *daemon.Client) error {
			k, err := c.Keys(ctx)
			if err != nil {
				return err
			}
			return a.showKeys(k, f.json)
		})
	}
	return cmd
}

func (a *app) keysRotateCommand() *cobra.Command {
	var f askFlags
	var timeout time.Duration
	cmd := &cobra.Command{
		Use: "rotate", Short: "Change the key that seals gossip; asks the host's fabricd",
		Long: `rotate makes a new key. Every node first holds it, then seals with it, then
forgets the old one; each step waits until all nodes have done it. Nothing else
notices. If a node cannot be reached in time, nothing is lost: the cluster
gossips on, and the next rotate completes what this one began.`,
		Example: `  fabricd keys rotate
  fabricd keys rotate --timeout 2m --json`,
	}
	f.addTo(cmd, a, true)
	addTimeout(cmd, &timeout)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.askAll(cmd, &f, timeout, func(ctx context.Context, c *daemon.Client) error {
			k, err := c.RotateKey(ctx, timeout)
			if err != nil {
				return err
			}
			return a.showKeys(k, f.json)
		})
	}
	return cmd
}

func (a *app) showKeys(k daemon.Keys, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(a.stdout).Encode(k)
	}
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
	}.print(a.stdout)
}
