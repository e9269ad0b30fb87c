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

func (a *app) nodesCommand() *cobra.Command {
	const example = `  fabricd nodes
  fabricd nodes --json | jq '.nodes[] | select(.state == "alive") | .id'`
	cmd := a.reader("nodes", "List the nodes of the cluster; remove, ban and allow them", example, "nodes", typed(showNodes))
	cmd.Long = `nodes lists the nodes that this node sees. At the host, its commands decide who
may be one: "remove" forgets a node, "ban" keeps it out, "allow" lets it in again.`
	cmd.Args, cmd.SuggestionsMinimumDistance = noSuchCommand, 2
	cmd.AddCommand(a.nodesListCommand(), a.nodesEnrolledCommand(), a.nodesRemoveCommand(), a.nodesBanCommand(), a.nodesAllowCommand())
	return cmd
}

// noSuchCommand is the Args of a command that runs by itself and also has subcommands:
// a remaining argument is taken for an unknown subcommand.
func noSuchCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	text := fmt.Sprintf("%s has no command %q", cmd.CommandPath(), args[0])
	if close := cmd.SuggestionsFor(args[0]); len(close) > 0 {
		text += fmt.Sprintf("; did you mean %s?", strings.Join(close, " or "))
	}
	return fmt.Errorf("%s", text)
}

func (a *app) nodesListCommand() *cobra.Command {
	return a.reader("list", "List the nodes of the cluster, as nodes alone does", `  fabricd nodes list
  fabricd nodes list --json`, "nodes", typed(showNodes))
}

func (a *app) nodesEnrolledCommand() *cobra.Command {
	cmd := a.reader("enrolled", "List the identities of the cluster, also those that are away or banned; asks the host's fabricd",
		`  fabricd nodes enrolled
  fabricd nodes enrolled --json | jq -r '.nodes[] | select(.state == "banned") | .name'`, "nodes/enrolled", typed(showEnrolled))
	cmd.Long = `enrolled lists the identities that the host knows. An identity is a key: a node
keeps it while it is away, and over restarts and certificates.`
	return cmd
}

// showEnrolled prints the list of identities.
func showEnrolled(w io.Writer, all daemon.Enrolment) error {
	if len(all.Nodes) == 0 {
		return printLine(w, "no node has joined yet")
	}
	now := time.Now()
	t := table{{"NAME", "STATE", "NODE", "LABELS", "JOINED", "CERTIFICATE", "TOKEN", "UUID", "WHY"}}
	for _, n := range all.Nodes {
		id, why := "", n.Reason
		if n.ID != nil {
			id = fmt.Sprintf("%d.%d", *n.ID, n.Generation)
		}
		if n.NewKey {
			why = strings.TrimPrefix(why+"; may come with a new key", "; ")
		}
		t = append(t, []string{n.Name, n.State, id, strings.Join(n.Labels, " "), ago(n.Since, now), in(n.Until, now), n.Token, n.UUID, why})
	}
	return t.print(w)
}

// An action is a command that removes, bans or allows one node.
type action struct {
	verb, short, long, example string
	flags                      func(*cobra.Command)
	do                         func(ctx context.Context, c *daemon.Client, node string, timeout time.Duration) (daemon.NodeAction, error)
	done, already              string // for people, behind the node's name
}

func (a *app) nodesRemoveCommand() *cobra.Command {
	return a.actionCommand(action{
		verb: "remove", short: "End a node's membership and forget its identity; asks the host's fabricd",
		long: `remove ends the node's connections, links and windows everywhere, and forgets who
it was: it comes back with a token only, as a new node. For one that must not come
back there is "fabricd nodes ban".`,
		example: `  fabricd nodes remove web-1
  fabricd nodes remove 3 --json`,
		do: func(ctx context.Context, c *daemon.Client, node string, timeout time.Duration) (daemon.NodeAction, error) {
			return c.RemoveNode(ctx, node, timeout)
		},
		done: "is removed",
	})
}

func (a *app) nodesBanCommand() *cobra.Command {
	var reason string
	return a.actionCommand(action{
		verb: "ban", short: "End a node's membership and keep it out; asks the host's fabricd",
		long: `ban ends the node's connections, links and windows everywhere, within a second
where the network lets it, keeps its identity out until "fabricd nodes allow", and
changes the key that seals gossip, which the node knows. A node that is banned
already stays so. Who holds a token could join as another node: see "fabricd
token list" and "fabricd token revoke".`,
		example: `  fabricd nodes ban web-1 --reason stolen
  fabricd nodes ban 3`,
		flags: func(cmd *cobra.Command) {
			cmd.Flags().StringVar(&reason, "reason", "", "why, for people: kept with the ban, and in the audit log")
		},
		do: func(ctx context.Context, c *daemon.Client, node string, timeout time.Duration) (daemon.NodeAction, error) {
			return c.BanNode(ctx, node, reason, timeout)
		},
		done: "is banned", already: "was banned already",
	})
}

func (a *app) nodesAllowCommand() *cobra.Command {
	var newKey bool
	return a.actionCommand(action{
		verb: "allow", short: "Lift a ban, or let a node come with another key; asks the host's fabricd",
		long: `allow lifts a ban: the node comes back by itself, as the same identity. With
--new-key the next node that joins with a token and this name gets the identity,
whatever its key: for a machine whose state directory was lost.`,
		example: `  fabricd nodes allow web-1
  fabricd nodes allow web-1 --new-key`,
		flags: func(cmd *cobra.Command) {
			cmd.Flags().BoolVar(&newKey, "new-key", false, "the identity may come with another key, once")
		},
		do: func(ctx context.Context, c *daemon.Client, node string, timeout time.Duration) (daemon.NodeAction, error) {
			return c.AllowNode(ctx, node, newKey, timeout)
		},
		done: "is allowed", already: "was allowed already",
	})
}

// actionCommand makes a command of an action.
func (a *app) actionCommand(x action) *cobra.Command {
	var f askFlags
	cmd := &cobra.Command{Use: x.verb + " NAME|ID", Short: x.short, Long: x.long, Example: x.example}
	f.addTimeout(cmd)
	if x.flags != nil {
		x.flags(cmd)
	}
	cmd.Args = oneArgument("the name, ID or UUID of one node")
	cmd.ValidArgsFunction = a.complete(&f, 0, knownNodes)
	return asking(a, cmd, &f, func(ctx context.Context, c *daemon.Client, args []string) (daemon.NodeAction, error) {
		return x.do(ctx, c, args[0], f.timeout)
	}, func(w io.Writer, done daemon.NodeAction) error {
		if !done.Changed {
			return printLine(w, "%s %s", done.Node.Name, x.already)
		}
		return printLine(w, "%s %s, everywhere after %s", done.Node.Name, x.done, duration(time.Duration(done.TookMS*float64(time.Millisecond))))
	})
}
