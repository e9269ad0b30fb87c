package pagetest

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric"
)

// TestThePageSaysWhatIsWrong breaks a cluster in ten ways, has a node leave, and reads each from a page in a
// browser.
func TestThePageSaysWhatIsWrong(t *testing.T) {
	if lacks(t, "chromium", "chromium", "chromedriver") {
		return
	}
	c := newCluster(t)
	one := c.node("node-1", "--access", "2060 from nobody-else")
	two := c.node("node-2")
	p := &reader{c: c, b: newBrowser(t, 1280, 1700, false)}
	p.b.open(c.host.page())
	p.says(`Fine\s+This node sees nothing wrong`)
	p.b.await("matrix", func(text string) bool { return strings.Count(text, "quic") == 6 })
	for _, x := range []struct {
		name string
		test func(p *reader, one, two *node)
	}{
		{"a path with loss", lossyPath},
		{"a slow receiver", slowReceiver},
		{"a full backlog", fullBacklog},
		{"blocked UDP", blockedUDP},
		{"an expired token", expiredToken},
		{"refused by a rule", refusedByRule},
		{"a shortage of descriptors", fewDescriptors},
		{"a clock that is off", clockOff},
		{"a node that stands still", stoppedNode},
		{"a banned node", bannedNode},
		{"a node that leaves", leavingNode},
	} {
		if !t.Run(x.name, func(t *testing.T) {
			inner := *p
			inner.c.t, inner.b.t = t, t
			x.test(&inner, one, two)
		}) {
			break
		}
		p.c.t, p.b.t = t, t
	}
}

// TestThePageFitsItsWindow looks at the page in windows of a phone and of a screen, light and
// dark: nothing of it is wider than the window, and its colours follow the system's.
func TestThePageFitsItsWindow(t *testing.T) {
	if lacks(t, "chromium", "chromium", "chromedriver") {
		return
	}
	c := newCluster(t)
	one := c.node("node-1")
	c.fault(c.host, "--to", one.id(), "--plane", "link", "--drop", "20%")
	for _, x := range []struct {
		name  string
		width int
		dark  bool
		back  string // colour behind the page
	}{
		{"wide", 1280, false, "rgb(245, 246, 248)"}, {"wide-dark", 1280, true, "rgb(20, 23, 28)"}, {"phone", 400, false, "rgb(245, 246, 248)"},
	} {
		b := newBrowser(t, x.width, 1700, x.dark)
		b.open(c.host.page())
		p := &reader{c: c, b: b}
		p.says(`loses`)
		var seen struct {
			Width, Inner float64
			Back         string
		}
		b.run(`return {Width: document.documentElement.scrollWidth, Inner: innerWidth, Back: getComputedStyle(document.body).backgroundColor}`, &seen)
		if seen.Width > seen.Inner || seen.Back != x.back {
			t.Errorf("%s: %v wide in a window of %v, on %s; want %s", x.name, seen.Width, seen.Inner, seen.Back, x.back)
		}
		b.picture(x.name)
	}
}

// A reader reads what the page says is wrong.
type reader struct {
	c *cluster
	b *browser
}

// says waits until the page says something, in the words of the pattern.
func (p *reader) says(pattern string) {
	p.c.t.Helper()
	re := regexp.MustCompile(pattern)
	p.b.await("findings-list", re.MatchString)
	p.b.picture(strings.ReplaceAll(filepath.Base(p.c.t.Name()), "_", "-"))
}

// silent waits until the page does not say it any more.
func (p *reader) silent(pattern string) {
	p.c.t.Helper()
	re := regexp.MustCompile(pattern)
	p.b.await("findings-list", func(text string) bool { return !re.MatchString(text) })
}

// attach attaches the test to a node.
func (p *reader) attach(n *node) *fabric.Node {
	p.c.t.Helper()
	a, err := fabric.Attach(p.c.t.Context(), n.socket())
	if err != nil {
		p.c.t.Fatal(err)
	}
	p.c.t.Cleanup(func() { a.Close() })
	return a
}

func lossyPath(p *reader, one, _ *node) {
	end := p.c.fault(p.c.host, "--to", one.id(), "--plane", "link", "--drop", "30%")
	p.says(`Warning\s+the path to node ` + one.id() + ` \(node-1\) loses \d+\.\d % of the packets`)
	p.b.await("trips-why", func(text string) bool {
		return strings.Contains(text, "0 → "+one.id()) && strings.Contains(text, "loses")
	})
	end()
	p.silent("loses")
}

func slowReceiver(p *reader, one, _ *node) {
	t := p.c.t
	listener, err := p.attach(one).Listen(2050)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	accepted := make(chan net.Conn, 1)
	go func() { // ends with the listener
		if conn, err := listener.Accept(); err == nil {
			accepted <- conn
		}
	}()
	conn, err := p.attach(p.c.host).Dial(t.Context(), one.id()+":2050")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	written := make(chan struct{})
	go func() { // ends with the connection
		defer close(written)
		for {
			if _, err := conn.Write(make([]byte, 64<<10)); err != nil {
				return
			}
		}
	}()
	p.says(`Warning\s+connection 0:\d+ to ` + one.id() + `:2050 has waited for \d+\.\d s: the application at ` + one.id() + `:2050 does not read`)
	p.b.await("conns-rows", func(text string) bool { return strings.Contains(text, one.id()+":2050 (node-1) to read, for ") })
	(<-accepted).Close()
	<-written
	p.silent("does not read")
}

func fullBacklog(p *reader, one, _ *node) {
	t := p.c.t
	listener, err := p.attach(p.c.host).Listen(2051, fabric.Backlog(2), fabric.Service("db"))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	from := p.attach(one)
	for range 3 {
		go func() { // ends with ctx
			if conn, err := from.Dial(ctx, "0:2051"); err == nil {
				conn.Close()
			}
		}()
	}
	p.says(`Broken\s+db: backlog full, 2 of 2 wait: process ` + fmt.Sprint(os.Getpid()) + ` does not accept; \d+ connects were refused`)
	p.b.await("services-rows", regexp.MustCompile(`db\s+host\s+0:2051\s+this node`).MatchString)
	cancel()
	p.silent("backlog full")
}

func blockedUDP(p *reader, _, two *node) {
	end := p.c.fault(p.c.host, "--to", two.id(), "--plane", "link", "--udp-blocked")
	also := p.c.fault(p.c.host, "--from", two.id(), "--plane", "link", "--udp-blocked")
	p.says(`Warning\s+UDP does not pass to node ` + two.id() + ` \(node-2\): link over TCP \(.+\)`)
	p.b.await("links-rows", func(text string) bool { return strings.Contains(text, "tcp") })
	end()
	_ = also // the first has cleared both
	p.silent("UDP does not pass")
}

func expiredToken(p *reader, _, _ *node) {
	old := filepath.Join(p.c.dir, "old")
	p.c.command("token", "create", "--admin", p.c.host.admin(), "--ttl", "1s", "--token-file", old)
	time.Sleep(1100 * time.Millisecond) // it is the token that has to grow old
	late := p.c.launch("late", "--join", p.c.host.status.Data[0], "--token-file", old)
	p.says(`Warning\s+node late was not let in.*: .*expired`)
	_ = late.cmd.Process.Kill() // it may have ended
}

func refusedByRule(p *reader, one, _ *node) {
	if _, err := p.attach(p.c.host).Dial(p.c.t.Context(), one.id()+":2060"); err == nil {
		p.c.t.Fatal("connected to a port that a rule closes")
	}
	p.b.open(one.page())
	p.says(`Warning\s+a connect by host was refused by an access rule.*: port 2060, rule "2060 from nobody-else`)
	p.b.open(p.c.host.page())
}

func fewDescriptors(p *reader, one, _ *node) {
	held, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", one.cmd.Process.Pid))
	if err != nil {
		p.c.t.Fatal(err)
	}
	out, err := exec.Command("prlimit", "--pid", fmt.Sprint(one.cmd.Process.Pid), fmt.Sprintf("--nofile=%d:", len(held)+4)).CombinedOutput()
	if err != nil {
		p.c.t.Fatalf("prlimit: %v: %s", err, out)
	}
	p.b.open(one.page())
	p.says(`(Broken|Warning)\s+descriptors run short: \d+ of \d+ are in use`)
	p.b.open(p.c.host.page())
}

func clockOff(p *reader, _, two *node) {
	end := p.c.fault(two, "--node", "clock", "--offset", "2h", "--for", "10m")
	p.b.open(two.page())
	p.says(`Warning\s+the clock is off: it jumped 2h0m ahead`)
	end()
	p.silent("the clock is off")
	p.b.open(p.c.host.page())
}

func stoppedNode(p *reader, _, two *node) {
	if err := two.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		p.c.t.Fatal(err)
	}
	p.says(`Broken\s+node ` + two.id() + ` \(node-2\)(: link silent for| has been suspect for| was lost)`)
	p.says(`Broken\s+node ` + two.id() + ` \(node-2\) was lost \d+\.\d s ago: \w+`)
	p.b.await("matrix", func(text string) bool { return strings.Contains(text, "lost") })
	p.b.await("events-rows", func(text string) bool { return strings.Contains(text, "removed") })
	if err := two.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		p.c.t.Fatal(err)
	}
	p.says(`Note\s+node ` + two.id() + ` \(node-2\) was lost .+, and has come back`)
}

func bannedNode(p *reader, _, two *node) {
	p.c.command("nodes", "ban", "node-2", "--reason", "stolen", "--admin", p.c.host.admin())
	p.says(`Note\s+node node-2 is banned since .*: stolen`)
	p.says(`Note\s+node \d+ \(node-2\) was banned by an operator \d+`)
	p.b.await("matrix", func(text string) bool { return strings.Contains(text, "banned") && !strings.Contains(text, "lost") })
	p.b.open(two.page())
	p.says(`Broken\s+this node has not joined: .*banned`)
	p.b.open(p.c.host.page())
}

// leavingNode: a node that leaves in order is neither removed nor lost, and no problem.
func leavingNode(p *reader, one, _ *node) {
	if err := one.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.c.t.Fatal(err)
	}
	p.b.await("nodes-rows", func(text string) bool { return strings.Contains(text, "left") && !strings.Contains(text, "removed") })
	p.b.await("matrix", func(text string) bool { return strings.Contains(text, "left") && !strings.Contains(text, "lost") })
	p.silent(`node-1\) was`)
}
