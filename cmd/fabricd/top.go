package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/fabricd/fabricd/internal/daemon"
	"github.com/fabricd/fabricd/internal/wait"
)

// topRows is how many connections the screen shows.
const topRows = 20

// A topConn is a connection as top shows it.
type topConn struct {
	ID       uint64  `json:"id"`
	Local    string  `json:"local"`
	Remote   string  `json:"remote"`
	Peer     string  `json:"peer"` // node.generation
	PID      int32   `json:"pid"`
	State    string  `json:"state"`
	Path     string  `json:"path"`
	Sent     float64 `json:"sent_per_second"` // bytes, of messages and RMA as far as this node or the kernel counts them
	Received float64 `json:"received_per_second"`
	Waiting  int     `json:"waiting_bytes"` // that its application has not read
	Why      string  `json:"why"`

	sent, received uint64
}

func (c topConn) rate() float64 { return c.Sent + c.Received }

// A topLink is a link as top shows it.
type topLink struct {
	Node     int     `json:"node"`
	Name     string  `json:"name"`
	Provider string  `json:"provider"`
	Conns    int     `json:"conns"`
	Sent     float64 `json:"sent_per_second"`
	Received float64 `json:"received_per_second"`
	SilentMS int64   `json:"silent_ms"`

	sent, received uint64
}

// A topView is one screen; rates of the next screen are computed against it.
type topView struct {
	Time   time.Time `json:"time"`
	Name   string    `json:"name"`
	State  string    `json:"state"`
	Nodes  int       `json:"nodes"`
	Conns  []topConn `json:"conns"`
	Links  []topLink `json:"links"`
	detail string
}

func (a *app) topCommand() *cobra.Command {
	var f askFlags
	var w watchFlags
	var once bool
	cmd := &cobra.Command{
		Use: "top", Short: "Show the connections and links of this node by what moves, until interrupted",
		Long: `top shows the connections of this node's applications, those first that move most
bytes, with what waits for an application that does not read, and the links to other
nodes. Between two applications of one node the bytes that do not pass fabricd are not
counted.`,
		Example: `  fabricd top
  fabricd top --once
  fabricd top --once --json | jq '.conns[0]'`,
	}
	f.addTo(cmd)
	w.addInterval(cmd)
	cmd.Flags().BoolVar(&once, "once", false, "show it once, behind the first interval")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := w.check(); err != nil {
			return err
		}
		c := f.client(a)
		defer c.Close()
		return a.top(cmd.Context(), c, w.every, once, f.json)
	}
	return cmd
}

func (a *app) top(ctx context.Context, c *daemon.Client, every time.Duration, once, asJSON bool) error {
	last, err := lookTop(ctx, c)
	if err != nil {
		return err
	}
	if !wait.For(ctx.Done(), every) {
		return nil
	}
	s := screen{out: a.stdout}
	show := func() error {
		view, err := lookTop(ctx, c)
		if err != nil {
			return err
		}
		view.since(last)
		last = view
		switch {
		case asJSON:
			return json.NewEncoder(a.stdout).Encode(view)
		case once:
			return view.draw(a.stdout)
		}
		return s.redraw(view.draw)
	}
	if once {
		return show()
	}
	return repeat(ctx, every, show)
}

// lookTop asks the node for the data of one screen.
func lookTop(ctx context.Context, c *daemon.Client) (*topView, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	st, err := c.Status(ctx)
	if err != nil {
		return nil, err
	}
	conns, links, err := c.Traffic(ctx)
	if err != nil {
		return nil, err
	}
	v := &topView{Time: time.Now(), Name: st.Name, State: st.State, Nodes: st.Counts.Nodes, detail: st.Detail, Conns: []topConn{}, Links: []topLink{}}
	for _, x := range conns {
		t := topConn{ID: x.ID, Local: x.Local, Remote: x.Remote, Peer: x.Incarnation, PID: x.PID, State: x.State, Path: x.Path,
			Waiting: x.Unread, Why: x.Why, sent: x.Sent, received: x.Received}
		if x.Socket != nil {
			t.sent, t.received = t.sent+x.Socket.SentBytes, t.received+x.Socket.ReceivedBytes
		}
		if x.RMASocket != nil {
			t.sent, t.received = t.sent+x.RMASocket.SentBytes, t.received+x.RMASocket.ReceivedBytes
		}
		v.Conns = append(v.Conns, t)
	}
	for _, x := range links {
		v.Links = append(v.Links, topLink{Node: int(x.Node), Name: x.Name, Provider: x.Provider, Conns: x.Conns, SilentMS: x.SilentMS,
			sent: x.SentBytes, received: x.ReceivedBytes})
	}
	return v, nil
}

// since computes rates from the counts of two screens, and sorts the busiest to the top.
func (v *topView) since(last *topView) {
	took := v.Time.Sub(last.Time).Seconds()
	for i := range v.Conns {
		c := &v.Conns[i]
		for _, o := range last.Conns {
			if o.ID == c.ID && o.Local == c.Local && o.Remote == c.Remote && o.Peer == c.Peer {
				c.Sent, c.Received = rate(o.sent, c.sent, took), rate(o.received, c.received, took)
			}
		}
	}
	for i := range v.Links {
		l := &v.Links[i]
		for _, o := range last.Links {
			if o.Node == l.Node && o.Provider == l.Provider {
				l.Sent, l.Received = rate(o.sent, l.sent, took), rate(o.received, l.received, took)
			}
		}
	}
	slices.SortStableFunc(v.Conns, func(a, b topConn) int {
		return cmp.Or(cmp.Compare(b.rate(), a.rate()), cmp.Compare(b.Waiting, a.Waiting))
	})
}

// rate returns a count's growth in a second; 0 for one that began anew.
func rate(before, after uint64, seconds float64) float64 {
	if after < before || seconds <= 0 {
		return 0
	}
	return float64(after-before) / seconds
}

// draw prints the screen.
func (v *topView) draw(w io.Writer) error {
	if err := printLine(w, "%s  %s, %s; %s, %s  %s", v.Name, v.State, plural(v.Nodes, "node"),
		plural(len(v.Conns), "connection"), plural(len(v.Links), "link"), v.Time.Format("15:04:05")); err != nil {
		return err
	}
	if v.detail != "" {
		if err := printLine(w, "%s", v.detail); err != nil {
			return err
		}
	}
	conns := table{{"SENT/S", "RECEIVED/S", "WAITING", "LOCAL", "REMOTE", "PEER", "PID", "STATE", "PATH", "WHY"}}
	for _, c := range v.Conns[:min(len(v.Conns), topRows)] {
		conns = append(conns, []string{size(uint64(c.Sent)), size(uint64(c.Received)), size(uint64(c.Waiting)), c.Local, c.Remote, c.Peer,
			strconv.Itoa(int(c.PID)), c.State, pathName(c.Path), c.Why})
	}
	links := table{{"SENT/S", "RECEIVED/S", "NODE", "NAME", "PROVIDER", "CONNS", "SILENT"}}
	for _, l := range v.Links {
		links = append(links, []string{size(uint64(l.Sent)), size(uint64(l.Received)), strconv.Itoa(l.Node), l.Name, l.Provider,
			strconv.Itoa(l.Conns), duration(time.Duration(l.SilentMS) * time.Millisecond)})
	}
	for _, t := range []table{conns, links} {
		if len(t) == 1 {
			continue
		}
		if _, err := fmt.Fprintln(w); err != nil {
			return err
		}
		if err := t.print(w); err != nil {
			return err
		}
	}
	return nil
}
