package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/fabricd/fabricd/internal/daemon"
)

func (a *app) tokenCommand() *cobra.Command {
	var f askFlags
	var ttl time.Duration
	var uses int
	var file string
	create := &cobra.Command{
		Use: "create", Short: "Make a join token; asks the host's fabricd",
		Example: `  fabricd token create
  fabricd token create --ttl 10m --uses 1 --token-file join.token`,
	}
	f.addTo(create, a, true)
	create.Flags().DurationVar(&ttl, "ttl", 0, "how long the token is good, from 1s to a year; 0: for ever")
	create.Flags().IntVar(&uses, "uses", 0, "how many nodes may join with it; 0: any number")
	create.Flags().StringVar(&file, "token-file", "", "write the token to this new file, mode 0600, instead of printing it")
	create.RunE = func(cmd *cobra.Command, _ []string) error {
		if ttl < 0 || uses < 0 {
			return usagef("ttl and uses: want 0 or more")
		}
		return a.ask(cmd, &f, func(ctx context.Context, c *daemon.Client) error {
			req := daemon.TokenRequest{Uses: uses}
			if ttl > 0 {
				req.Lifetime = ttl.String()
			}
			token, err := c.CreateToken(ctx, req)
			switch {
			case err != nil:
				return err
			case file != "":
				return daemon.WriteSecret(file, token.Token+"\n")
			case f.json:
				return json.NewEncoder(a.stdout).Encode(token)
			}
			_, err = fmt.Fprintln(a.stdout, token.Token)
			return err
		})
	}
	cmd := &cobra.Command{
		Use: "token", Short: "Make join tokens",
		Long:    "A join token lets a node join the cluster: it proves the cluster to the node\nand the node to the cluster. It is a secret.",
		Example: "  fabricd token create --ttl 10m --uses 1",
	}
	cmd.AddCommand(create)
	return cmd
}
