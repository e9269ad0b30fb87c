package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fabricd/fabricd/internal/daemon"
)

// unlimited is the value of --uses for any number of nodes.
const unlimited = "unlimited"

// A lifetimeFlag is how long a token may be used.
type lifetimeFlag struct{ text string }

func (f *lifetimeFlag) String() string { return f.text }
func (f *lifetimeFlag) Type() string   { return "lifetime" }

// Set takes a lifetime of the command line.
func (f *lifetimeFlag) Set(s string) error {
	_, err := daemon.ParseLifetime(s)
	f.text = s
	return err
}

// A usesFlag is how many nodes may join with a token; negative: any number.
type usesFlag int

func (f *usesFlag) Type() string { return "uses" }

func (f *usesFlag) String() string {
	if *f < 0 {
		return unlimited
	}
	return strconv.Itoa(int(*f))
}

// Set takes a number of the command line.
func (f *usesFlag) Set(s string) error {
	n, err := strconv.ParseUint(s, 10, 20)
	switch {
	case s == unlimited:
		*f = -1
		return nil
	case err != nil || n == 0:
		return errors.New("no number of nodes")
	}
	*f = usesFlag(n)
	return nil
}

// tokenFlags are the limits of a token.
type tokenFlags struct {
	lifetime lifetimeFlag
	uses     usesFlag
}

// addTo gives cmd the flags, their names behind prefix.
func (f *tokenFlags) addTo(cmd *cobra.Command, prefix string) {
	f.lifetime.text, f.uses = "24h", daemon.DefaultTokenUses
	cmd.Flags().Var(&f.lifetime, prefix+"ttl", "how long the token is good: a duration from 1s to 365d, or never for one that does not expire")
	cmd.Flags().Var(&f.uses, prefix+"uses", "how many nodes may join with it: a number, or unlimited")
}

// limits returns the flags as the daemon's limits.
func (f *tokenFlags) limits() daemon.TokenLimits {
	lifetime, err := daemon.ParseLifetime(f.lifetime.text)
	if err != nil {
		panic("BUG: fabricd: a lifetime that Set has taken: " + err.Error())
	}
	return daemon.TokenLimits{Lifetime: lifetime, Uses: int(f.uses)}
}

// request returns the request for such a token.
func (f *tokenFlags) request(labels []string) daemon.TokenRequest {
	r := daemon.TokenRequest{Lifetime: f.lifetime.text, Labels: labels}
	if f.uses < 0 {
		r.Unlimited = true
	} else {
		r.Uses = int(f.uses)
	}
	return r
}

func (a *app) tokenCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "token", Short: "Make, list and revoke join tokens",
		Long: `A join token lets a node join the cluster: it proves the cluster to the node
and the node to the cluster. It is a secret. It lives a day and for 100 nodes
unless asked for otherwise. A node needs it once: when the token has ended or was
revoked, the nodes that joined with it stay; "fabricd nodes ban" is for those.`,
		Example: `  fabricd token create --ttl 10m --uses 1
  fabricd token list
  fabricd token revoke 2f9c01d5a7b3e486`,
	}
	cmd.AddCommand(a.tokenCreateCommand(), a.tokenListCommand(), a.tokenRevokeCommand())
	return cmd
}

func (a *app) tokenCreateCommand() *cobra.Command {
	var f askFlags
	var limits tokenFlags
	var file string
	var labels []string
	cmd := &cobra.Command{
		Use: "create", Short: "Make a join token; asks the host's fabricd",
		Long: `create prints a new join token, or writes it to a file. The nodes that join with
it carry its labels for good; rules of access to ports can name them.`,
		Example: `  fabricd token create
  fabricd token create --ttl 10m --uses 1 --token-file join.token
  fabricd token create --label db --label rack-1
  fabricd token create --ttl never --uses unlimited`,
	}
	f.addTo(cmd)
	limits.addTo(cmd, "")
	cmd.Flags().StringArrayVar(&labels, "label", nil, "`WORD` that every node that joins with it is labelled with; may be repeated, up to 8 times")
	cmd.Flags().StringVar(&file, "token-file", "", "write the token to this new file, mode 0600, instead of printing it")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := daemon.CheckLabels(labels); err != nil {
			return usageError{err}
		}
		create := func(ctx context.Context, c *daemon.Client) (daemon.Token, error) {
			return c.CreateToken(ctx, limits.request(labels))
		}
		if file != "" {
			return a.ask(cmd, &f, func(ctx context.Context, c *daemon.Client) error {
				return daemon.WriteSecret(file, func() (string, error) {
					token, err := create(ctx, c)
					return token.Token, err
				})
			})
		}
		return answer(a, cmd, &f, create, func(w io.Writer, token daemon.Token) error {
			_, err := fmt.Fprintln(w, token.Token)
			return err
		})
	}
	return cmd
}

func (a *app) tokenListCommand() *cobra.Command {
	return a.reader("list", "List the join tokens, without their secrets; asks the host's fabricd", `  fabricd token list
  fabricd token list --json | jq -r '.tokens[] | select(.usable) | .id'`, "tokens", typed(showTokens))
}

// showTokens prints the list of tokens.
func showTokens(w io.Writer, all daemon.Tokens) error {
	if len(all.Tokens) == 0 {
		return printLine(w, "no tokens: no node can join")
	}
	now := time.Now()
	t := table{{"ID", "FOR", "LABELS", "MADE", "EXPIRES", "USED", "USES LEFT"}}
	for _, k := range all.Tokens {
		expires, left := daemon.Never, unlimited
		if k.Expires != nil {
			expires = in(*k.Expires, now)
		}
		if k.Void {
			expires = "void: the authority was rotated"
		}
		if k.Left != nil {
			left = strconv.Itoa(*k.Left)
		}
		t = append(t, []string{k.ID, k.Label, strings.Join(k.Labels, " "), ago(k.Created, now), expires, strconv.Itoa(k.Uses), left})
	}
	return t.print(w)
}

func (a *app) tokenRevokeCommand() *cobra.Command {
	var f askFlags
	cmd := &cobra.Command{
		Use: "revoke ID", Short: "End a join token; asks the host's fabricd",
		Long: `revoke ends a token, by the ID that "fabricd token list" shows: no node joins with
it any more. The nodes that joined with it stay.`,
		Example: "  fabricd token revoke 2f9c01d5a7b3e486",
	}
	cmd.Args = oneArgument("the ID of a token")
	cmd.ValidArgsFunction = a.complete(&f, 0, tokenIDs)
	return asking(a, cmd, &f, func(ctx context.Context, c *daemon.Client, args []string) (daemon.RevokeRequest, error) {
		return daemon.RevokeRequest{ID: args[0]}, c.RevokeToken(ctx, args[0])
	}, func(w io.Writer, r daemon.RevokeRequest) error {
		return printLine(w, "token %s is revoked: no node joins with it any more", r.ID)
	})
}
