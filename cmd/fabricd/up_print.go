package main

import (
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"github.com/fabricd/fabricd/fabric"
)

// An upLine is one line of `fabricd up --json`. Event is
//
//	node     one of the nodes that the cluster began with
//	ready    all nodes are members
//	joined   an incarnation of a node has joined
//	lost     an incarnation of a node has left or was lost
//	ended    a node's process has ended by itself
//	started  a node's process was started again
//	failed   it could not be started again
//	stopped  the cluster was stopped in order
type upLine struct {
	Event      string            `json:"event"`
	Time       time.Time         `json:"time"`
	Name       string            `json:"name,omitempty"`
	ID         *fabric.NodeID    `json:"id,omitempty"`
	Generation fabric.Generation `json:"generation,omitempty"`
	PID        int               `json:"pid,omitempty"`
	Socket     string            `json:"socket,omitempty"`
	Admin      string            `json:"admin,omitempty"`
	Data       string            `json:"data,omitempty"`
	Page       string            `json:"page,omitempty"`
	Log        string            `json:"log,omitempty"`
	Nodes      int               `json:"nodes,omitempty"`
	Dir        string            `json:"dir,omitempty"`
	Reason     string            `json:"reason,omitempty"`
}

// An upPrinter prints the output of `fabricd up`, for people or as JSON.
type upPrinter struct {
	out  io.Writer
	json bool
}

// line prints l, and for people its event and text.
func (p upPrinter) line(l upLine, text string) error {
	if l.Time.IsZero() {
		l.Time = time.Now()
	}
	if p.json {
		return json.NewEncoder(p.out).Encode(l)
	}
	return printLine(p.out, "%s  %-8s %s", l.Time.Format("15:04:05.000"), l.Event, text)
}

// ready prints the nodes of a complete cluster, and commands to try on it.
func (p upPrinter) ready(u *upCluster) error {
	if !p.json {
		_, err := io.WriteString(p.out, welcome(u))
		return err
	}
	for _, m := range u.members {
		err := p.line(upLine{Event: "node", Name: m.name, ID: &m.id, Generation: m.gen, PID: m.proc.pid(),
			Socket: m.socket(), Admin: m.adminSocket(), Data: m.dataAddr, Page: m.page(), Log: m.proc.log}, "")
		if err != nil {
			return err
		}
	}
	return p.line(upLine{Event: "ready", Nodes: len(u.members), Dir: u.crew.dir}, "")
}

// welcome returns the text for people when the cluster is complete.
func welcome(u *upCluster) string {
	var b strings.Builder
	dir := u.crew.dir
	fmt.Fprintf(&b, "%s on this machine. Their logs: %s/NAME.log\n", plural(len(u.members), "node"), dir)
	for _, m := range u.members {
		fmt.Fprintf(&b, "\n%s: node %d, pid %d, data %s\n", m.name, m.id, m.proc.pid(), m.dataAddr)
		fmt.Fprintf(&b, "  export FABRIC_SOCKET=%s\n", shellWord(m.socket()))
		fmt.Fprintf(&b, "  --admin %s\n", shellWord(m.adminSocket()))
		fmt.Fprintf(&b, "  %s\n", m.page())
	}
	first, last := u.members[0], u.members[len(u.members)-1]
	t := [][2]string{{"nodes --admin " + shellWord(first.adminSocket()), "the nodes, as the host sees them"}}
	if last != first {
		t = append(t, [2]string{fmt.Sprintf("ping %d --admin %s", last.id, shellWord(first.adminSocket())), "round trips to " + last.name})
	}
	t = append(t, [2]string{"status --admin " + shellWord(last.adminSocket()), last.name + " itself"})
	b.WriteString("\nIn another terminal:\n")
	for _, line := range t {
		fmt.Fprintf(&b, "  # %s\n  %s %s\n", line[1], u.self, line[0])
	}
	if last != first {
		fmt.Fprintf(&b, "  # a failure: the others lose %s at once\n  kill -9 %d\n", last.name, last.proc.pid())
	}
	b.WriteString("An application uses the node of its FABRIC_SOCKET: export one of those above.\n\n")
	if u.kept {
		fmt.Fprintf(&b, "Ctrl-C stops all nodes; %s up --dir %s continues this cluster.\n", u.self, shellWord(dir))
	} else {
		b.WriteString("Ctrl-C stops all nodes and removes their files.\n")
	}
	return b.String()
}

// change prints that an incarnation has joined or is lost.
func (p upPrinter) change(c incarnationChange) error {
	event := "lost"
	if c.joined {
		event = "joined"
	}
	text := fmt.Sprintf("%s: node %d generation %d", c.name, c.id, c.gen)
	if c.reason != "" {
		text += ": " + c.reason
	}
	return p.line(upLine{Event: event, Time: c.at, Name: c.name, ID: &c.id, Generation: c.gen, Reason: c.reason}, text)
}

// ended prints that m's process has ended by itself and the consequence; left is how
// many others run.
func (p upPrinter) ended(m *member, restart bool, left int) error {
	how := "exit code 0"
	if m.proc.err != nil {
		how = m.proc.err.Error()
	}
	return p.line(upLine{Event: "ended", Name: m.name, PID: m.proc.pid(), Log: m.proc.log, Reason: how},
		fmt.Sprintf("%s: pid %d: %s; %s", m.name, m.proc.pid(), how, whatNext(restart, left)))
}

// whatNext describes the reaction to the end of a process while left others run.
func whatNext(restart bool, left int) string {
	switch {
	case restart:
		return fmt.Sprintf("it starts again in %v", upRestart)
	case left == 0:
		return "no other runs"
	case left == 1:
		return "1 other goes on"
	}
	return fmt.Sprintf("%d others go on", left)
}

// started prints that m's process was started again.
func (p upPrinter) started(m *member) error {
	return p.line(upLine{Event: "started", Name: m.name, PID: m.proc.pid()}, fmt.Sprintf("%s: pid %d", m.name, m.proc.pid()))
}

// failedAgain prints that m's process could not be started again.
func (p upPrinter) failedAgain(m *member, err error) error {
	return p.line(upLine{Event: "failed", Name: m.name, Reason: err.Error()}, fmt.Sprintf("%s: %v", m.name, err))
}

// stopping prints, for people only, that the nodes are asked to end.
func (p upPrinter) stopping() {
	if !p.json {
		fmt.Fprintln(p.out, "\nStopping; another Ctrl-C kills what still runs.") // the exit code reports how it ended
	}
}

// stopped prints that all has ended.
func (p upPrinter) stopped(d *upDir) {
	text := "all nodes; their files are removed"
	if !d.temp {
		text = "all nodes; their files stay in " + d.path
	}
	_ = p.line(upLine{Event: "stopped", Dir: d.path}, text) // as in stopping
}

// shellWord returns s as one word of a shell's command line.
func shellWord(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-+:,@%=", r)
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// commandName returns how another terminal calls this program, which was called as
// arg0: by a path that does not depend on its directory, if by a path at all.
func commandName(arg0, exe string) string {
	if !strings.Contains(arg0, "/") {
		return filepath.Base(arg0)
	}
	return shellWord(exe)
}
