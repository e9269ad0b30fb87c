package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/daemon"
	"github.com/fabricd/fabricd/internal/wait"
)

// askTimeout bounds how long a command waits for fabricd's answer.
const askTimeout = 10 * time.Second

// askFlags are the flags of every command that asks a running fabricd.
type askFlags struct {
	admin   string
	json    bool
	all     bool // it waits for all nodes, for timeout
	timeout time.Duration
}

// addTo gives cmd the flags. Unless it sets Args itself, it has no arguments.
func (f *askFlags) addTo(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.admin, "admin", "", "admin socket of the fabricd to ask (default $FABRIC_ADMIN or "+daemon.Default().Local.AdminSocket+")")
	cmd.Flags().BoolVar(&f.json, "json", false, "print JSON")
	if cmd.Args == nil {
		cmd.Args = noArguments
	}
}

// addTimeout gives cmd the flag of commands that wait for all nodes.
func (f *askFlags) addTimeout(cmd *cobra.Command) {
	f.all = true
	cmd.Flags().DurationVar(&f.timeout, "timeout", 30*time.Second, "how long to wait for all nodes, from 1s to 10m")
}

// client returns a client for the admin socket of the flags, the environment
// or the default, in this order.
func (f *askFlags) client(a *app) *daemon.Client {
	for _, path := range []string{f.admin, a.getenv("FABRIC_ADMIN"), daemon.Default().Local.AdminSocket} {
		if path != "" {
			return daemon.NewClient(path)
		}
	}
	panic("BUG: fabricd: the default admin socket has no path")
}

// allMargin is how much longer than fabricd a command waits for all nodes.
const allMargin = 5 * time.Second

// ask runs fn with a client and a time limit.
func (a *app) ask(cmd *cobra.Command, f *askFlags, fn func(context.Context, *daemon.Client) error) error {
	limit := askTimeout
	if f.all {
		if limit = f.timeout + allMargin; f.timeout < time.Second || f.timeout > 10*time.Minute {
			return usagef("timeout: %v: want a duration from 1s to 10m", f.timeout)
		}
	}
	c := f.client(a)
	defer c.Close()
	ctx, cancel := context.WithTimeout(cmd.Context(), limit)
	defer cancel()
	return fn(ctx, c)
}

// answer asks for a T and prints it: as JSON, or as show does.
func answer[T any](a *app, cmd *cobra.Command, f *askFlags, get func(context.Context, *daemon.Client) (T, error), show func(io.Writer, T) error) error {
	return a.ask(cmd, f, func(ctx context.Context, c *daemon.Client) error {
		v, err := get(ctx, c)
		switch {
		case err != nil:
			return err
		case f.json:
			return json.NewEncoder(a.stdout).Encode(v)
		}
		return show(a.stdout, v)
	})
}

// asking makes cmd a command that asks for a T and shows it.
func asking[T any](a *app, cmd *cobra.Command, f *askFlags, get func(context.Context, *daemon.Client, []string) (T, error), show func(io.Writer, T) error) *cobra.Command {
	f.addTo(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return answer(a, cmd, f, func(ctx context.Context, c *daemon.Client) (T, error) { return get(ctx, c, args) }, show)
	}
	return cmd
}

// typed returns the function that shows the JSON of a T.
func typed[T any](show func(io.Writer, T) error) func(io.Writer, json.RawMessage) error {
	return func(w io.Writer, text json.RawMessage) error {
		var v T
		if err := json.Unmarshal(text, &v); err != nil {
			return err
		}
		return show(w, v)
	}
}

// reader returns a command that prints the answer of one path: as JSON, or as
// show prints it.
func (a *app) reader(use, short, example, path string, show func(io.Writer, json.RawMessage) error) *cobra.Command {
	var f askFlags
	var w watchFlags
	cmd := &cobra.Command{Use: use, Short: short, Example: example}
	f.addTo(cmd)
	if watched[path] != nil {
		w.addTo(cmd)
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := onlyWith(cmd, "watch", "interval"); err != nil {
			return err
		}
		if w.on {
			if err := w.check(); err != nil {
				return err
			}
			c := f.client(a)
			defer c.Close()
			return a.watch(cmd.Context(), c, path, w, f.json, show)
		}
		return a.ask(cmd, &f, func(ctx context.Context, c *daemon.Client) error {
			text, err := c.Get(ctx, path)
			if err != nil {
				return err
			}
			if f.json {
				_, err = fmt.Fprintf(a.stdout, "%s\n", text)
				return err
			}
			return show(a.stdout, text)
		})
	}
	return cmd
}

func (a *app) statusCommand() *cobra.Command {
	return a.reader("status", "Show this node: its place, addresses, counts and problems", `  fabricd status
  fabricd status --json | jq .id
  fabricd status --json | jq -r '.findings[].text'`, "status", showStatus)
}

func (a *app) tableCommands() []*cobra.Command {
	shorts := map[string]string{
		"ports":   "List the bound ports of this node",
		"conns":   "List the connections of this node's applications",
		"windows": "List the registered windows of this node's applications",
		"links":   "List the links to other nodes",

		"services": "List the services of all nodes",
	}
	var all []*cobra.Command
	for _, name := range daemon.TableNames {
		example := fmt.Sprintf("  fabricd %s\n  fabricd %s --watch\n  fabricd %s --json", name, name, name)
		show := func(w io.Writer, text json.RawMessage) error { return showRows(w, name, text) }
		if name == "conns" {
			show = showConns
		}
		all = append(all, a.reader(name, shorts[name], example, name, show))
	}
	return all
}

func (a *app) healthCommand() *cobra.Command {
	var f askFlags
	cmd := &cobra.Command{
		Use: "health", Short: "Report whether this node can serve applications, by the exit code too",
		Example: `  fabricd health && echo fine
  fabricd health --json`,
	}
	f.addTo(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.ask(cmd, &f, func(ctx context.Context, c *daemon.Client) error {
			h, err := c.Health(ctx)
			if err != nil {
				return err
			}
			if f.json {
				err = json.NewEncoder(a.stdout).Encode(h)
			} else if h.Healthy {
				err = printLine(a.stdout, "healthy: %s", h.Detail)
			}
			if err == nil && !h.Healthy {
				err = fmt.Errorf("not healthy: %s", h.Detail)
			}
			return err
		})
	}
	return cmd
}

func (a *app) pingCommand() *cobra.Command {
	var f askFlags
	var count int
	var timeout, interval time.Duration
	cmd := &cobra.Command{
		Use: "ping NODE", Short: "Measure round trips from this node to another, over their link",
		Example: `  fabricd ping web-1
  fabricd ping 0 --count 3 --json`,
	}
	f.addTo(cmd)
	cmd.Args = oneArgument("the name or ID of one node")
	cmd.ValidArgsFunction = a.complete(&f, 0, liveNodes)
	cmd.Flags().IntVarP(&count, "count", "c", 5, "how many round trips, 1 to 10000")
	cmd.Flags().DurationVar(&timeout, "timeout", 2*time.Second, "how long to wait for each, up to 1m")
	cmd.Flags().DurationVarP(&interval, "interval", "i", 200*time.Millisecond, "time between them")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case !addr.ValidNode(args[0]):
			return usagef("node: %q: want a node's name or ID", args[0])
		case count < 1 || count > 10000:
			return usagef("count: %d: want 1 to 10000", count)
		case timeout <= 0 || timeout > time.Minute:
			return usagef("timeout: %v: want a duration up to 1m", timeout)
		case interval < 0:
			return usagef("interval: %v: want a duration", interval)
		}
		c := f.client(a)
		defer c.Close()
		id, err := c.FindNode(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		return a.ping(cmd.Context(), c, id, count, timeout, interval, f.json)
	}
	return cmd
}

// ping prints count round trips and, for people, a summary. It fails if one was
// lost. An interrupt ends it as if the count were reached.
func (a *app) ping(ctx context.Context, c *daemon.Client, id addr.NodeID, count int, timeout, interval time.Duration, asJSON bool) error {
	var took []time.Duration
	var last error
	sent := 0
	for i := range count {
		if i > 0 && !wait.For(ctx.Done(), interval) {
			break
		}
		rtt, err := c.Ping(ctx, id, timeout)
		if ctx.Err() != nil {
			break
		}
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, os.ErrPermission) {
			return err // no fabricd answers on the admin socket
		}
		sent++
		if err != nil {
			last = err
			if !asJSON {
				_ = printLine(a.stderr, "fabricd: %v", err) // the exit code reports it too
			}
			continue
		}
		took = append(took, rtt)
		if err := a.pong(id, rtt, asJSON); err != nil {
			return err
		}
	}
	if !asJSON && len(took) > 1 {
		fmt.Fprintln(a.stdout, pingSummary(sent, took))
	}
	if lost := sent - len(took); lost > 0 {
		if asJSON {
			return fmt.Errorf("%d of %d without an answer: %w", lost, sent, last)
		}
		return fmt.Errorf("%d of %d without an answer", lost, sent)
	}
	if sent == 0 {
		return ctx.Err()
	}
	return nil
}

// pong prints one round trip.
func (a *app) pong(id addr.NodeID, rtt time.Duration, asJSON bool) (err error) {
	if asJSON {
		return json.NewEncoder(a.stdout).Encode(daemon.Pong{Node: id, RTTns: rtt.Nanoseconds()})
	}
	_, err = fmt.Fprintf(a.stdout, "node %d: %s\n", id, duration(rtt))
	return err
}

// pingSummary formats the counts and times of sent pings, of which took were answered.
func pingSummary(sent int, took []time.Duration) string {
	var sum time.Duration
	for _, d := range took {
		sum += d
	}
	return fmt.Sprintf("%d of %d answered; fastest %s, mean %s, slowest %s", len(took), sent,
		duration(slices.Min(took)), duration(sum/time.Duration(len(took))), duration(slices.Max(took)))
}

func (a *app) eventsCommand() *cobra.Command {
	var f askFlags
	var since time.Duration
	var once bool
	cmd := &cobra.Command{
		Use: "events", Short: "Show the nodes and then what happens to them, until interrupted",
		Long: `events shows the nodes that are there and then what happens to them. With --since
it begins with what has happened before, and reports links, paths and connections
too: a node keeps the last 1024 events of nodes, as many of links, of connections with
their paths, and of attempts that failed. Failures and links that are alike within a
minute are one event, with how often. --once prints what is kept and ends.`,
		Example: `  fabricd events
  fabricd events --once
  fabricd events --since 10m --once
  fabricd events --json | jq -c 'select(.event == "removed")'`,
	}
	f.addTo(cmd)
	cmd.Flags().DurationVar(&since, "since", 0, "begin with what has happened in this time, of links and connections too")
	cmd.Flags().BoolVar(&once, "once", false, "print what has happened, all that is kept or with --since a part, and end")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if past := cmd.Flags().Changed("since"); past && since <= 0 {
			return usagef("since: want a duration, like 10m")
		} else if once && !past {
			since = daemon.MaxSince
		}
		c := f.client(a)
		defer c.Close()
		show := func(e daemon.NodeEvent) error {
			if f.json {
				return json.NewEncoder(a.stdout).Encode(e)
			}
			return printLine(a.stdout, "%s", eventLine(e))
		}
		var err error
		if since > 0 {
			err = c.RecordedEvents(cmd.Context(), since, once, show)
		} else {
			err = c.Events(cmd.Context(), show)
		}
		switch {
		case once && errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, context.Canceled):
			return nil // interrupted, as one ends it
		case errors.Is(err, io.EOF):
			return errors.New("fabricd ended")
		}
		return err
	}
	return cmd
}

// eventLine returns an event for people.
func eventLine(e daemon.NodeEvent) string {
	parts := []string{e.Time.Format("15:04:05.000"), fmt.Sprintf("%-8s", e.Event)}
	if e.Peer != "" {
		parts = append(parts, "node "+e.Peer)
	}
	if e.Node != nil {
		parts = append(parts, fmt.Sprintf("node %d generation %d %q", e.Node.ID, e.Node.Generation, e.Node.Name))
	}
	for _, extra := range []string{e.Reason, e.Detail} {
		if extra != "" {
			parts = append(parts, extra)
		}
	}
	if e.Count > 1 {
		parts = append(parts, fmt.Sprintf("%d times", e.Count))
	}
	return strings.Join(parts, "  ")
}
