package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/internal/daemon"
	"github.com/fabricd/fabricd/internal/wait"
)

// seenBy is the event that a member reports of one incarnation.
func seenBy(event string, id fabric.NodeID, gen fabric.Generation) daemon.NodeEvent {
	return daemon.NodeEvent{Event: event, Node: &daemon.NodeInfo{ID: id, Generation: gen, Name: "n"}}
}

// TestIncarnationsReportAChangeOnce: every member reports each change, some of them wrongly.
func TestIncarnationsReportAChangeOnce(t *testing.T) {
	l := incarnations{0: {1, true}, 1: {1, true}, 2: {1, true}}
	for _, s := range []struct {
		name  string
		from  fabric.NodeID
		event daemon.NodeEvent
		want  string
	}{
		{"what it began with is known", 0, seenBy(daemon.EventCurrent, 1, 1), ""},
		{"an event without a node is none", 0, daemon.NodeEvent{Event: daemon.EventHost}, ""},
		{"a node is lost", 1, seenBy(daemon.EventRemoved, 2, 1), "lost 2.1"},
		{"another member reports it too", 0, seenBy(daemon.EventRemoved, 2, 1), ""},
		{"the lost one sees the others as lost", 2, seenBy(daemon.EventRemoved, 0, 1), ""},
		{"and the first incarnation of them again", 2, seenBy(daemon.EventAdded, 1, 1), ""},
		{"it is back", 2, seenBy(daemon.EventSelf, 2, 2), "joined 2.2"},
		{"a member sees it", 0, seenBy(daemon.EventAdded, 2, 2), ""},
		{"a late report of its last incarnation", 1, seenBy(daemon.EventRemoved, 2, 1), ""},
		{"what it reports counts again", 2, seenBy(daemon.EventRemoved, 0, 1), "lost 0.1"},
		{"a node that was added by hand", 1, seenBy(daemon.EventAdded, 9, 4), "joined 9.4"},
		{"an update is no change", 1, seenBy(daemon.EventUpdated, 1, 1), ""},
	} {
		got := ""
		if c, isNew := l.apply(s.from, s.event); isNew {
			got = map[bool]string{true: "joined ", false: "lost "}[c.joined] + (&member{id: c.id, gen: c.gen}).incarnation()
		}
		if got != s.want {
			t.Errorf("%s: %q, want %q", s.name, got, s.want)
		}
	}
}

func TestShellWord(t *testing.T) {
	for in, want := range map[string]string{
		"/tmp/fabricd-up-1/host/app.sock": "/tmp/fabricd-up-1/host/app.sock",
		"/home/a b/x":                     "'/home/a b/x'",
		"it's":                            `'it'\''s'`,
		"/tmp/*":                          "'/tmp/*'",
		"$HOME":                           "'$HOME'",
		"":                                "''",
	} {
		if got := shellWord(in); got != want {
			t.Errorf("%q: %s, want %s", in, got, want)
		}
	}
	for arg0, want := range map[string]string{"fabricd": "fabricd", "./bin/fabricd": "'/opt/my bin/fabricd'"} {
		if got := commandName(arg0, "/opt/my bin/fabricd"); got != want {
			t.Errorf("called as %q: %s, want %s", arg0, got, want)
		}
	}
}

// TestUpDirIsForOneCluster: a directory is used by one process, stays if a person has
// named it, and is not made when its path is too long for sockets.
func TestUpDirIsForOneCluster(t *testing.T) {
	tmp, err := os.MkdirTemp("", "fdt")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(tmp) })
	path := filepath.Join(tmp, "c")
	d, err := openUpDir(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := openUpDir(path); err == nil || !strings.Contains(err.Error(), "a cluster runs in "+path+" already") {
		t.Errorf("a second one: %v", err)
	}
	if err := d.close(); err != nil {
		t.Error(err)
	}
	if d, err = openUpDir(path); err != nil {
		t.Fatalf("after the first: %v", err)
	}
	d.close()
	long := filepath.Join(tmp, strings.Repeat("l", 90))
	if _, err := openUpDir(long); err == nil || !strings.Contains(err.Error(), "too long") {
		t.Errorf("a long path: %v", err)
	}
	if _, err := os.Stat(long); err == nil {
		t.Error("the long path was made")
	}
	t.Setenv("TMPDIR", tmp)
	foreign := filepath.Join(tmp, "foreign")
	if err := errors.Join(os.Mkdir(foreign, 0o700), os.WriteFile(filepath.Join(foreign, "page.md"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := openUpDir(foreign); err == nil || !strings.Contains(err.Error(), "holds other files") {
		t.Errorf("the directory of others: %v", err)
	}
	if all, err := os.ReadDir(foreign); len(all) != 1 || err != nil {
		t.Errorf("the directory of others holds %v, %v", all, err)
	}
	if d, err = openUpDir(""); err != nil {
		t.Fatal(err)
	}
	if err := d.close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(d.path); err == nil || filepath.Dir(d.path) != tmp {
		t.Errorf("the temporary directory %s is left: %v", d.path, err)
	}
}

func TestLogEchoPrintsWholeLines(t *testing.T) {
	var out bytes.Buffer
	var mu sync.Mutex
	one, two := &logEcho{mu: &mu, out: &out, name: "host"}, &logEcho{mu: &mu, out: &out, name: "node-1"}
	for _, w := range []struct {
		to   func([]byte) (int, error)
		text string
	}{{one.Write, "first"}, {two.Write, "a\nb\nc"}, {one.Write, " line\n"}, {two.Write, "\x1b[2J\n"}} {
		if n, err := w.to([]byte(w.text)); n != len(w.text) || err != nil {
			t.Errorf("%q: %d, %v", w.text, n, err)
		}
	}
	if strings.Contains(out.String(), "\x1b") {
		t.Errorf("a log speaks to the terminal: %q", out.String())
	}
	lines := strings.Split(out.String(), "\n")
	if want := []string{"node-1   a", "node-1   b", "host     first line"}; len(lines) != 5 || strings.Join(lines[:3], "|") != strings.Join(want, "|") {
		t.Errorf("got %q, want %q first", lines, want)
	}
}

// TestUpPrintsWhatHappens covers the lines for people; the test with processes
// reads the JSON ones.
func TestUpPrintsWhatHappens(t *testing.T) {
	var out bytes.Buffer
	p := upPrinter{out: &out}
	at := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	if err := p.change(incarnationChange{at: at, id: 2, gen: 1, name: "node-2", reason: "crashed"}); err != nil {
		t.Fatal(err)
	}
	if err := p.change(incarnationChange{at: at, id: 2, gen: 2, name: "node-2", joined: true}); err != nil {
		t.Fatal(err)
	}
	want := "03:04:05.000  lost     node-2: node 2 generation 1: crashed\n03:04:05.000  joined   node-2: node 2 generation 2\n"
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
	for n, want := range map[int]string{0: "no other runs", 1: "1 other goes on", 2: "2 others go on"} {
		if got := whatNext(false, n); got != want {
			t.Errorf("%d left: %q, want %q", n, got, want)
		}
	}
	if got := whatNext(true, 0); got != "it starts again in 2s" {
		t.Errorf("with --restart: %q", got)
	}
}

func TestKeepPorts(t *testing.T) {
	m := &member{dataAddr: "127.0.0.1:4001", gossipAddr: "127.0.0.1:4002", data: "0", gossip: "0", crew: &crew{}}
	if err := m.keepPorts(); err != nil || m.data != "4001" || m.gossip != "4002" {
		t.Errorf("data %s, gossip %s, %v", m.data, m.gossip, err)
	}
	if line := strings.Join(m.args(), " "); !strings.Contains(line, "--data-port 4001 --gossip-port 4002") {
		t.Errorf("the next start: %s", line)
	}
	m.gossipAddr = ""
	if m.keepPorts() == nil {
		t.Error("no gossip address is no error")
	}
}

// TestUpEndsAtTheSecondSignal: the first signal asks for an end in order, also when a
// terminal and a parent both send it, and a later one for an end at once.
func TestUpEndsAtTheSecondSignal(t *testing.T) {
	got := make(chan os.Signal, 1) // so that a signal never ends this process
	signal.Notify(got, syscall.SIGTERM)
	defer signal.Stop(got)
	send := func() {
		if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		<-got
	}
	until, hurry, release := upSignals(t.Context())
	defer release()
	began := time.Now()
	send()
	<-until.Done()
	for hurry.Err() == nil {
		send()
		wait.For(hurry.Done(), 10*time.Millisecond)
	}
	if took := time.Since(began); took < upSameSignal {
		t.Errorf("at once after %v, want %v at least", took, upSameSignal)
	}
}

// TestUpKillsWhatDoesNotEnd uses a child that ignores SIGTERM.
func TestUpKillsWhatDoesNotEnd(t *testing.T) {
	runtime.LockOSThread() // as up does
	defer runtime.UnlockOSThread()
	c := &crew{exe: "/bin/sh", dir: t.TempDir()}
	defer c.stop()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	p, _, err := c.start("stubborn", w, "-c", "trap '' TERM; echo ignoring; exec sleep 60")
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	u := &upCluster{crew: c, over: make(chan struct{}), members: []*member{{name: "stubborn", proc: p, admin: daemon.NewClient("none")}}}
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if late := leave(short, u.members); len(late) != 1 || late[0] != "stubborn" || !p.running() {
		t.Errorf("late: %q, running: %v", late, p.running())
	}
	if err := u.stop(t.Context(), short); err == nil || !strings.Contains(err.Error(), "interrupted twice") {
		t.Errorf("an end at once: %v", err)
	}
	if p.running() {
		t.Error("the child runs on")
	}
}

// TestUpSaysWhyThereIsNoCluster: the error has the reason of init, which may have no log.
func TestUpSaysWhyThereIsNoCluster(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "host"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "host", "state"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	up, _ := self(t, "up", "--dir", dir, "--nodes", "1")
	out, err := up.CombinedOutput()
	if want := "fabricd init: exit status 2: fabricd: state-dir: "; err == nil || !strings.Contains(string(out), want) {
		t.Errorf("%v, and no %q in\n%s", err, want, out)
	}
}
