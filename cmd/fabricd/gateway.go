package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fabricd/fabricd/internal/gateway/spec"
)

// A gatewayCommand runs a gateway at a fabricd for as long as it runs itself.
type gatewayCommand struct {
	app   *app
	flags askFlags
	kind  spec.Kind
	idle  time.Duration
	wait  time.Duration
	max   int
	proxy bool
	allow []string
}

// addTo gives cmd the flags of both commands.
func (g *gatewayCommand) addTo(cmd *cobra.Command, args int, want string) {
	g.flags.addTo(cmd)
	cmd.Args = func(_ *cobra.Command, given []string) error {
		if len(given) != args {
			return fmt.Errorf("want %s, got %s", want, plural(len(given), "argument"))
		}
		return nil
	}
	cmd.Flags().DurationVar(&g.idle, "idle", 0, fmt.Sprintf("reset a connection over which nothing has come for so long, from %v; 0: never", spec.MinIdle))
	cmd.Flags().IntVar(&g.max, "max", spec.DefaultMax, fmt.Sprintf("how many connections there may be at a time, 1 to %d", spec.MaxMax))
}

func (a *app) exposeCommand() *cobra.Command {
	g := &gatewayCommand{app: a, kind: spec.Expose}
	cmd := &cobra.Command{
		Use: "expose NAME TARGET", Short: "Serve a TCP or Unix address as a service of the fabric until Ctrl-C",
		Long: `expose has the fabricd of this machine serve TARGET, "host:port" or the path of a Unix
socket, as the service NAME, for as long as the command runs. A number is a port of the
fabric, without a name. For each connection it dials TARGET, and copies both ways: an end of one direction stays one, and a reset, or
the loss of a node, is a reset at the other end.

The line 'NAME=TARGET' of the setting expose does the same without a command
(docs/connect.md).`,
		Example: `  fabricd expose db localhost:5432
  fabricd expose db /run/postgresql/.s.PGSQL.5432 --allow label:app
  fabricd expose web localhost:80 --proxy-protocol --json`,
	}
	g.addTo(cmd, 2, "NAME and TARGET")
	cmd.Flags().StringSliceVar(&g.allow, "allow", nil, "which nodes may connect, as in access rules: names of nodes, label:WORD, host, local; all if empty")
	cmd.Flags().BoolVar(&g.proxy, "proxy-protocol", false, "send the target a PROXY protocol header, version 2, with the node that connects")
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return g.run(cmd.Context(), args[0]+"="+args[1]) }
	return cmd
}

func (a *app) forwardCommand() *cobra.Command {
	g := &gatewayCommand{app: a, kind: spec.Forward}
	cmd := &cobra.Command{
		Use: "forward LISTEN NAME", Short: "Listen on a TCP or Unix address for a service of the fabric until Ctrl-C",
		Long: `forward has the fabricd of this machine listen at LISTEN, "host:port", a port of loopback
or the path of a Unix socket, for as long as the command runs. It leads each connection to
NAME, a service or an address of the fabric, and copies both ways as expose does. While NAME is away a
new connection waits for as long as --wait says, and is then reset.

The line 'LISTEN=NAME' of the setting forward does the same without a command
(docs/connect.md).`,
		Example: `  fabricd forward localhost:15432 db
  fabricd forward 15432 db@web-1 --wait 30s
  fabricd forward /run/db.sock 1:5432`,
	}
	g.addTo(cmd, 2, "LISTEN and NAME")
	cmd.ValidArgsFunction = a.complete(&g.flags, 1, services)
	cmd.Flags().DurationVar(&g.wait, "wait", spec.DefaultWait, "how long a new connection waits for a service that is away")
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return g.run(cmd.Context(), args[0]+"="+args[1]) }
	return cmd
}

// line returns the gateway of the flags and the line's first word, checked as a line is.
func (g *gatewayCommand) line(ends string) (spec.Gateway, error) {
	line := []string{ends, "max", fmt.Sprint(g.max)}
	if g.idle != 0 {
		line = append(line, "idle", g.idle.String())
	}
	if g.kind != spec.Expose {
		line = append(line, "wait", g.wait.String())
	}
	if g.proxy {
		line = append(line, "proxy-protocol")
	}
	if len(g.allow) > 0 {
		line = append(append(line, "from"), g.allow...)
	}
	if strings.ContainsAny(ends, " \t\n") {
		return spec.Gateway{}, usagef("%q: want no spaces", ends)
	}
	parsed, err := spec.Parse(g.kind, strings.Join(line, " "))
	if err != nil {
		return parsed, usageError{err}
	}
	return parsed, nil
}

// run runs the gateway until ctx ends.
func (g *gatewayCommand) run(ctx context.Context, ends string) error {
	line, err := g.line(ends)
	if err != nil {
		return err
	}
	c := g.flags.client(g.app)
	defer c.Close()
	err = c.RunGateway(ctx, line, func(ev spec.Event) error { return g.print(line, ev) })
	switch {
	case ctx.Err() != nil:
		return nil
	case errors.Is(err, io.EOF):
		return errors.New("fabricd has ended, and the gateway with it")
	}
	return err
}

// print prints an event: as JSON, or for people.
func (g *gatewayCommand) print(line spec.Gateway, ev spec.Event) error {
	if g.flags.json {
		return json.NewEncoder(g.app.stdout).Encode(ev)
	}
	if ev.Lost > 0 {
		if err := printLine(g.app.stdout, "%s were not printed: they came too fast", plural(ev.Lost, "event")); err != nil {
			return err
		}
	}
	return printLine(g.app.stdout, "%s", eventText(line, ev))
}

// eventText formats an event in one line.
func eventText(line spec.Gateway, ev spec.Event) string {
	switch ev.Event {
	case spec.Started:
		if line.Kind == spec.Expose {
			return fmt.Sprintf("%s is served by node %s, target %s; Ctrl-C ends it", line.Listen, ev.Node, line.To)
		}
		return fmt.Sprintf("%s leads to %s by way of node %s; Ctrl-C ends it", ev.At, line.To, ev.Node)
	case spec.Waiting:
		return "does not listen now, and tries again: " + ev.Detail
	case spec.Barred:
		return fmt.Sprintf("%s is not served for now: %s", line.Listen, ev.Detail)
	case spec.Opened:
		return fmt.Sprintf("%d opened: from %s", ev.Conn.ID, connText(ev.Conn))
	case spec.Closed:
		text := fmt.Sprintf("%d closed after %s: %s sent, %s received", ev.Conn.ID,
			duration(ev.Time.Sub(ev.Conn.Since)), size(uint64(ev.Conn.Sent)), size(uint64(ev.Conn.Back)))
		return withDetail(text, ev.Detail)
	case spec.Refused:
		return fmt.Sprintf("refused: from %s: %s", ev.Conn.Client, ev.Detail)
	}
	return ev.Event
}

// connText names the client of a connection and its target.
func connText(c *spec.Conn) string {
	if c.Node == "" || strings.HasPrefix(c.Client, c.Node) {
		return c.Client
	}
	return fmt.Sprintf("%s to %s at %s", c.Client, c.To, c.Node)
}

func (a *app) gatewaysCommand() *cobra.Command {
	return a.reader("gateways", "List what this node exposes and forwards, and the connections that go through it", `  fabricd gateways
  fabricd gateways --watch
  fabricd gateways --json | jq '.gateways[].connections'`, "gateways", typed(showGateways))
}

// showGateways prints the gateways, and below them their connections.
func showGateways(w io.Writer, body struct{ Gateways []spec.Status }) error {
	if len(body.Gateways) == 0 {
		return printLine(w, "no gateways: fabricd expose and fabricd forward start them")
	}
	all := table{{"KIND", "LISTEN", "TO", "FROM", "STATE", "OPEN", "TOTAL", "REFUSED", "RESET", "SENT", "RECEIVED", "LAST FAILURE"}}
	conns := table{{"GATEWAY", "CONNECTION", "CLIENT", "TO", "NODE", "SINCE", "SENT", "RECEIVED"}}
	for _, g := range body.Gateways {
		all = append(all, []string{string(g.Kind), g.Listen, g.To, g.Source, withDetail(g.State, g.Detail),
			fmt.Sprint(g.Open), fmt.Sprint(g.Total), fmt.Sprint(g.Refused), fmt.Sprint(g.Reset), size(uint64(g.Sent)), size(uint64(g.Back)), g.Failure})
		for _, c := range g.Conns {
			conns = append(conns, []string{string(g.Kind) + " " + g.Listen, fmt.Sprint(c.ID), c.Client, c.To, c.Node,
				ago(c.Since, time.Now()), size(uint64(c.Sent)), size(uint64(c.Back))})
		}
	}
	if err := all.print(w); err != nil || len(conns) == 1 {
		return err
	}
	if _, err := fmt.Fprintln(w); err != nil {
		return err
	}
	return conns.print(w)
}
