package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/daemon"
)

// A connPaths is the transport that a connection uses, and the reason.
type connPaths struct {
	Local    string           `json:"local"`
	Remote   string           `json:"remote"`
	Provider string           `json:"provider"`
	Messages part             `json:"messages"`
	Socket   *daemon.PathInfo `json:"socket,omitempty"` // the connection's path
	RMA      part             `json:"rma"`
	// RMASocket is the path of this end's RMA operations.
	RMASocket *daemon.PathInfo `json:"rma_socket,omitempty"`

	Link *daemon.LinkInfo `json:"link"` // null for a peer on this node

	// Findings are the problems that the node sees with the peer's node.
	Findings []daemon.Finding `json:"findings"`
}

// A portPreview is the predicted outcome of a connect.
type portPreview struct {
	daemon.Preview
	Findings []daemon.Finding `json:"findings"` // about its node
}

// findingsAbout returns the problems that the node sees with another one.
func findingsAbout(st daemon.Status, node addr.NodeID) []daemon.Finding {
	about := []daemon.Finding{}
	for _, f := range st.Findings {
		if f.Node == node {
			about = append(about, f)
		}
	}
	return about
}

// findingText formats a problem in a line.
func findingText(f daemon.Finding) string { return f.Severity + ": " + f.Text }

// A part is one of the paths.
type part struct {
	Path string `json:"path"`
	Why  string `json:"why"`
}

// pathText formats a path in a line.
func pathText(r *daemon.PathInfo) string {
	security := "TLS 1.3 between the applications"
	if !r.TLS {
		security = "plaintext"
	}
	if r.Unlocked {
		security += ", not locked to its peer"
	}
	return fmt.Sprintf("%s to %s, %s, made %s, %s sent, %s received, round trip %s", r.Local, r.Remote, security,
		ago(r.Since, time.Now()), size(r.SentBytes), size(r.ReceivedBytes), duration(time.Duration(r.RoundTripUS)*time.Microsecond))
}

// String returns the path, and the reason for it if that is not obvious.
func (p part) String() string {
	if p.Why == "" {
		return pathName(p.Path)
	}
	return pathName(p.Path) + ": " + p.Why
}

// pathName returns the name that people read for a connection's path in JSON.
func pathName(path string) string {
	switch path {
	case "channel":
		return "shared-memory path"
	case "call":
		return "in-process"
	}
	return path
}

func (a *app) whyCommand() *cobra.Command {
	var f askFlags
	cmd := &cobra.Command{
		Use: "why [CONN | NODE PORT]", Short: "Report which path a connection has and why not a faster one, or what a connect would meet",
		Long: `Report which paths a connection takes, and why not a faster one: messages between two
applications of this node through memory that they share (shared-memory path; "channel"
in JSON) or through the node (socket), RMA between them on the windows themselves
(direct) or through the node; messages to another node through a socket between the two
applications (path) or through a provider's link, RMA through the link. A gateway is an
application in fabricd's own process: without a path its end calls the node (in-process;
"call" in JSON), whose link or memory carries its bytes. CONN is an address of the
connection in 'fabricd conns', NODE:PORT, local or remote; without it all are reported.
Of a link each provider of this node is reported: whether the link has it, why, its place
among them, and what it is estimated to cost for short messages, operations on a page and
transfers of 1 MiB. Last come the problems that this node sees with the peer's node, if
there are any.

With NODE, a name or an ID, and PORT it says what a connect to that port by an
application of this node would meet, and does not connect: whether the access rules
of that node and the list of the listener allow it, what decides, whether anything
listens, and how many requests wait to be accepted. --uid is the user that runs the
application.`,
		Example: `  fabricd why
  fabricd why 0:2050
  fabricd why web-1:2050
  fabricd why web-1 2050
  fabricd why 3 2050 --uid 1000 --json
  fabricd why 0:2050 --json | jq -r '.ways[].messages.path'`,
	}
	f.addTo(cmd)
	uid := cmd.Flags().Uint32("uid", uint32(os.Getuid()), "with NODE PORT: the user that runs the application")
	cmd.Flags().Lookup("uid").DefValue = "yours"
	cmd.Args = arguments(0, 2, "a connection, NODE and PORT, or nothing")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 2 {
			return a.whyPort(cmd, &f, args[0], args[1], *uid)
		}
		var at addr.Target
		if len(args) == 1 {
			var err error
			if at, err = addr.ParseTarget(args[0]); err != nil || at.Service != "" {
				return usageError{fmt.Errorf("connection %q: want its local or remote address, NODE:PORT", args[0])}
			}
		}
		return a.ask(cmd, &f, func(ctx context.Context, c *daemon.Client) error {
			at, err := addressOf(ctx, c, at)
			if err != nil {
				return err
			}
			paths, err := pathsOf(ctx, c, at)
			if err != nil {
				return err
			}
			return printPaths(a.stdout, paths, f.json)
		})
	}
	return cmd
}

// addressOf returns the address that at names, empty for none.
func addressOf(ctx context.Context, c *daemon.Client, at addr.Target) (string, error) {
	if at == (addr.Target{}) {
		return "", nil
	}
	id, err := c.FindNode(ctx, at.Node)
	return addr.Addr{Node: id, Port: at.Port}.String(), err
}

// whyPort prints how a connect to a port of a node would end.
func (a *app) whyPort(cmd *cobra.Command, f *askFlags, node, port string, uid uint32) error {
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return usagef("port: %q: want a number from 1 to 65535", port)
	}
	return answer(a, cmd, f, func(ctx context.Context, c *daemon.Client) (portPreview, error) {
		p, err := c.Preview(ctx, node, addr.Port(n), uid)
		if err != nil {
			return portPreview{}, err
		}
		st, err := c.Status(ctx)
		return portPreview{p, findingsAbout(st, p.Node)}, err
	}, printPreview)
}

// printPreview prints how a connect would end.
func printPreview(w io.Writer, p portPreview) error {
	verdict, rule := "would be refused", "refuses it: "
	if p.Connects {
		verdict = "would wait to be accepted"
	}
	if p.Allowed {
		rule = "allows it: "
	}
	listener := "none"
	if p.Listening {
		listener = fmt.Sprintf("%d of at most %d requests wait", p.Waiting, p.Backlog)
	}
	return printLines(w, append([]string{
		fmt.Sprintf("a connect by user %d of this node to %d:%d (%s) %s", p.UID, p.Node, p.Port, p.Name, verdict),
		"  access    " + rule + p.By,
		"  listener  " + listener,
	}, problemLines(p.Findings)...))
}

// problemLines are the lines about findings.
func problemLines(all []daemon.Finding) (lines []string) {
	for _, f := range all {
		lines = append(lines, "  problem   "+findingText(f))
	}
	return lines
}

func printLines(w io.Writer, lines []string) error {
	for _, line := range lines {
		if err := printLine(w, "%s", line); err != nil {
			return err
		}
	}
	return nil
}

// pathsOf asks the node for the paths of the connections at an address, or of all.
func pathsOf(ctx context.Context, c *daemon.Client, at string) ([]connPaths, error) {
	conns, links, err := c.Traffic(ctx)
	if err != nil {
		return nil, err
	}
	st, err := c.Status(ctx)
	if err != nil {
		return nil, err
	}
	paths := []connPaths{}
	for _, x := range conns {
		if at == "" || x.Local == at || x.Remote == at {
			peer, err := addr.Parse(x.Remote)
			if err != nil {
				return nil, err
			}
			paths = append(paths, connPaths{Local: x.Local, Remote: x.Remote, Provider: x.Provider,
				Messages: part{x.Path, x.Why}, Socket: x.Socket, RMA: part{x.RMA, x.RMAWhy}, RMASocket: x.RMASocket, Link: linkOf(links, x.Incarnation),
				Findings: findingsAbout(st, peer.Node)})
		}
	}
	if len(paths) == 0 && at != "" {
		return nil, fmt.Errorf("no connection at %s: 'fabricd conns' lists them", at)
	}
	return paths, nil
}

// linkOf returns the link to an incarnation, nil if there is none.
func linkOf(links []daemon.LinkInfo, incarnation string) *daemon.LinkInfo {
	for i, l := range links {
		if (addr.Incarnation{Node: l.Node, Generation: l.Generation}).String() == incarnation {
			return &links[i]
		}
	}
	return nil
}

// printPaths prints paths: one object as JSON if one was asked for.
func printPaths(w io.Writer, paths []connPaths, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(w).Encode(map[string][]connPaths{"ways": paths})
	}
	if len(paths) == 0 {
		_, err := fmt.Fprintln(w, empty["conns"])
		return err
	}
	for _, x := range paths {
		if err := printPath(w, x); err != nil {
			return err
		}
	}
	return nil
}

// printPath prints one, a line for each part of it.
func printPath(w io.Writer, x connPaths) error {
	lines := []string{
		x.Local + " to " + x.Remote,
		"  messages  " + x.Messages.String(),
		"  rma       " + x.RMA.String(),
	}
	if x.Socket != nil {
		lines = append(lines, "  path      "+pathText(x.Socket))
	}
	if x.RMASocket != nil {
		lines = append(lines, "  rma path  "+pathText(x.RMASocket))
	}
	return printLines(w, slices.Concat(lines, linkLines(x), problemLines(x.Findings)))
}

// linkLines name the link of a connection, and the other providers that were considered.
func linkLines(x connPaths) []string {
	if x.Link == nil {
		return []string{"  link      none: the peer is on this node"}
	}
	lines := []string{fmt.Sprintf("  link      %s to %s", x.Provider, x.Link.Remote)}
	for _, c := range x.Link.Considered {
		verdict := "not used"
		if c.Chosen {
			verdict = "used"
		}
		lines = append(lines, fmt.Sprintf("            %s %s: %s", c.Provider, verdict, c.Reason))
	}
	return lines
}
