package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

// A footprint counts the resources that a fabricd holds on behalf of applications.
type footprint struct {
	fds                   map[string]int
	mappings              int    // of memfds
	ports, conns, windows string // as JSON
}

func (f footprint) String() string {
	return fmt.Sprintf("descriptors %v, %d mappings, ports %s, conns %s, windows %s", f.fds, f.mappings, f.ports, f.conns, f.windows)
}

func (f footprint) equal(g footprint) bool {
	if strings.Contains(os.Getenv(providersEnv), "tcp") {
		// A link over TCP gets a connection for large transfers when it first
		// needs one, and keeps it: two at most.
		f.fds, g.fds = maps.Clone(f.fds), maps.Clone(g.fds)
		delete(f.fds, "inet")
		delete(g.fds, "inet")
	}
	return maps.Equal(f.fds, g.fds) && f.mappings == g.mappings && f.ports == g.ports && f.conns == g.conns && f.windows == g.windows
}

// footprint looks at n now.
func (n *node) footprint() (f footprint, err error) {
	for name, into := range map[string]*string{"ports": &f.ports, "conns": &f.conns, "windows": &f.windows} {
		text, err := n.admin.Get(context.Background(), name)
		if err != nil {
			return f, err
		}
		*into = string(text)
	}
	if f.fds, err = descriptors(n.pid()); err == nil {
		f.mappings, err = shared(n.pid())
	}
	return f, err
}

// steady returns n's footprint once it stands still: gossip opens a
// connection now and then.
func (n *node) steady() (last footprint) {
	n.l.t.Helper()
	same := 0
	eventually(n.l.t, stepLimit, n.name+" is steady", func() error {
		time.Sleep(10 * time.Millisecond)
		f, err := n.footprint()
		if err != nil || !f.equal(last) {
			last, same = f, 0
			return fmt.Errorf("it changes: %v, %v", f, err)
		}
		if same++; same < 8 {
			return fmt.Errorf("only %d looks show the same", same)
		}
		return nil
	})
	return last
}

// settleLimit is how long after a death something of it may be left: less than
// a connect waits for its accept, which is 10 s.
const settleLimit = 7 * time.Second

// returnsTo waits until n has the footprint that it had before.
func (n *node) returnsTo(before footprint) {
	n.l.t.Helper()
	eventually(n.l.t, settleLimit, n.name+" has what it had before", func() error {
		after, err := n.footprint()
		if err == nil && !after.equal(before) {
			err = fmt.Errorf("\nbefore: %v\nafter:  %v", before, after)
		}
		return err
	})
}

// TestKilledApplicationsLeaveNothingBehind kills applications in the middle of
// whatever they do. A third node, on which none is killed, shows how many
// goroutines a node has that went through nothing.
func TestKilledApplicationsLeaveNothingBehind(t *testing.T) {
	l := newLab(t)
	l.valves = true
	// The collector leaves little besides memory in use: by itself it would let a
	// heap of 8 MiB double, which looks as a leak of 8 KiB for each death would.
	l.env = []string{"GOGC=10", l.ownTemp()}
	names := named(t)
	nodes := l.cluster(2)
	for _, n := range nodes {
		l.anchor(n)
	}
	// One connection for each pair, so that all links are there.
	for i, n := range nodes {
		for _, m := range nodes[i:] {
			l.greet(n, m)
		}
	}
	hit := nodes[:2]
	before := make([]footprint, len(hit))
	memory := make([]int64, len(hit))
	l.massacre(hit, 100, 6) // memory that is allocated once
	for i, n := range hit {
		before[i], memory[i] = n.steady(), resident(t, n.pid())
	}

	count := scale(1000, 1000, 5000)
	began := time.Now()
	deaths := l.massacre(hit, count, 6)
	t.Logf("%d applications killed in %v: %s", count, time.Since(began).Round(time.Millisecond), deaths)

	for i, n := range hit {
		n.returnsTo(before[i])
		// A tenth more, and 4 MiB for stacks and memory that the collector has not given back.
		eventually(t, stepLimit, n.name+" has the memory that it had", func() error {
			after := resident(t, n.pid())
			if after > memory[i]+memory[i]/10+4<<20 {
				return fmt.Errorf("resident %d KiB before, %d KiB after", memory[i]>>10, after>>10)
			}
			t.Logf("%s: %v; resident %d KiB before, %d KiB after", n.name, before[i].fds, memory[i]>>10, after>>10)
			return nil
		})
		text, err := l.fabricd("ports", "--json", "--admin", n.adminSocket())
		if err != nil || strings.TrimSpace(text) != before[i].ports {
			t.Errorf("fabricd ports --json: %s, %v, want %s", text, err, before[i].ports)
		}
		l.greet(n, nodes[2])
		n.returnsTo(before[i])
	}
	l.linked(nodes...)
	nodes[2].steady()
	compareGoroutines(t, nodes[1], nodes[2])
	if left, err := os.ReadDir(l.temp()); err != nil || len(left) > 0 {
		t.Errorf("temporary files: %v, %v, want none", left, err)
	}
	if now := named(t); !slices.Equal(now, names) {
		t.Errorf("files with names: %v, before %v", now, names)
	}
}

// temp is where the processes of a lab with ownTemp put temporary files.
func (l *lab) temp() string { return filepath.Join(l.dir, "temp") }

// ownTemp makes a directory for temporary files, and returns the setting of a process that is to
// use it.
func (l *lab) ownTemp() string {
	l.t.Helper()
	if err := os.Mkdir(l.temp(), 0o700); err != nil {
		l.t.Fatal(err)
	}
	return "TMPDIR=" + l.temp()
}

// named lists the files of fabricd's that have a name where shared memory, locks and
// sockets get one by habit. Directories are those of tests, which may run beside this
// one, and so is the lock of runs of scenarios.
func named(t *testing.T) (all []string) {
	t.Helper()
	for _, dir := range []string{"/dev/shm", "/tmp"} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range entries {
			if strings.Contains(f.Name(), "fabric") && !f.IsDir() && !strings.HasPrefix(f.Name(), "fabricd-chaos-") {
				all = append(all, filepath.Join(dir, f.Name()))
			}
		}
	}
	return all
}

// linked waits until each of the nodes has one link to each of the others, and
// none that ends.
func (l *lab) linked(nodes ...*node) {
	l.t.Helper()
	for _, n := range nodes {
		eventually(l.t, stepLimit, n.name+" has its links", func() error {
			text, err := n.admin.Get(context.Background(), "links")
			if err != nil {
				return err
			}
			var table struct {
				Links []struct {
					Node addr.NodeID `json:"node"`
				} `json:"links"`
			}
			if err := json.Unmarshal(text, &table); err != nil {
				return fmt.Errorf("%w: %w", errGiveUp, err)
			}
			peers := map[addr.NodeID]int{}
			for _, k := range table.Links {
				if k.Node != n.place.ID {
					peers[k.Node]++
				}
			}
			for _, m := range nodes {
				if m != n && peers[m.place.ID] != 1 {
					return fmt.Errorf("%d links to %s, want 1: %s", peers[m.place.ID], m.name, text)
				}
			}
			return nil
		})
	}
}

// anchor attaches an anchor to n that serves until the test ends.
func (l *lab) anchor(n *node) {
	l.t.Helper()
	a := &anchor{node: n.attach()}
	listener, err := a.node.Listen(anchorPort)
	if err != nil {
		l.t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.serve(listener, func(err error) { l.t.Errorf("anchor at %s: %v", n.name, err) })
	}()
	l.t.Cleanup(func() {
		a.node.Close()
		<-done
	})
}

// greet runs a victim, undisturbed, from n to m's anchor.
func (l *lab) greet(n, m *node) {
	l.t.Helper()
	v := &incarnation{ctx: within(l.t, stepLimit), socket: n.socket(), anchor: m.at(anchorPort)}
	for _, s := range victimSteps {
		if err := s.do(v); err != nil {
			l.t.Fatalf("%s to %s: %s: %v", n.name, m.name, s.name, err)
		}
	}
	v.mem.Close()
}

// A toll counts deaths by step.
type toll struct {
	mu sync.Mutex // guards by
	by map[string]int
}

func (c *toll) add(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.by[name]++
}

func (c *toll) String() string {
	var words []string
	for _, name := range slices.Sorted(maps.Keys(c.by)) {
		words = append(words, fmt.Sprintf("%s %d", name, c.by[name]))
	}
	return strings.Join(words, ", ")
}

// massacre starts count victims on the nodes, some at a time, and sees to it
// that each is killed.
func (l *lab) massacre(nodes []*node, count, atOnce int) *toll {
	deaths := &toll{by: map[string]int{}}
	var next atomic.Int64
	var workers sync.WaitGroup
	for range atOnce {
		workers.Go(func() {
			for {
				i := int(next.Add(1))
				if i > count || l.t.Failed() {
					return
				}
				// One source for each victim: workers race for them.
				r := rand.New(rand.NewPCG(seed, uint64(i)))
				name, err := l.victim(nodes, r)
				if err != nil {
					l.t.Errorf("victim %d: %v", i, err)
					return
				}
				deaths.add(name)
			}
		})
	}
	workers.Wait()
	return deaths
}

// victim starts one victim and returns the step at which it was killed, or "from outside".
func (l *lab) victim(nodes []*node, r *rand.Rand) (string, error) {
	home, away := nodes[r.IntN(len(nodes))], nodes[r.IntN(len(nodes))]
	doomed, after := doom(r)
	cmd := command("victim", home.socket(), away.at(anchorPort).String(), fmt.Sprint(doomed), after.String())
	cmd.Env = append(cmd.Env, "TMPDIR="+l.temp())
	p, err := spawn(cmd, l.dir+"/victims.log")
	if err != nil {
		return "", err
	}
	name := "from outside"
	if doomed < len(victimSteps) {
		name = victimSteps[doomed].name
	} else {
		time.Sleep(time.Duration(r.Int64N(int64(60 * time.Millisecond))))
		_ = p.cmd.Process.Kill() // it ended if it failed, which is found below
	}
	select {
	case <-p.done:
	case <-time.After(stepLimit):
		_ = p.cmd.Process.Signal(syscall.SIGQUIT) // it says where it is
		<-p.done
		return "", fmt.Errorf("it did not reach its end (%s); the victims said: %s", name, p.said())
	}
	if s := p.cmd.ProcessState.Sys().(syscall.WaitStatus); s.Signal() != syscall.SIGKILL {
		return "", fmt.Errorf("it ended with %v; the victims said: %s", p.err, p.said())
	}
	return name, nil
}

// goroutines counts n's goroutines, as of dump, by the function that they run.
func goroutines(t *testing.T, n *node) map[string]int {
	t.Helper()
	_, dump, ok := strings.Cut(n.said(), dumpBegins)
	if !ok {
		t.Fatalf("%s ended without a dump: %s", n.name, tail(n.log, 5))
	}
	counts := map[string]int{}
	for block := range strings.SplitSeq(dump, "\n\n") {
		if name := entryOf(block); name != "" {
			counts[name]++
		}
	}
	return counts
}

// entryOf returns the function that a goroutine of a dump runs, wrappers
// aside; "" if block is no goroutine.
func entryOf(block string) string {
	lines := strings.Split(strings.TrimSpace(block), "\n")
	if !strings.HasPrefix(lines[0], "goroutine ") {
		return ""
	}
	name := ""
	for _, line := range lines[1:] { // the innermost first
		if strings.HasPrefix(line, "created by ") {
			break
		}
		frame := line[:max(0, strings.LastIndexByte(line, '('))]
		if frame != "" && frame[0] != '\t' && !slices.Contains(wrappers, frame) {
			name = frame
		}
	}
	return name
}

// wrappers are functions that run another function in a goroutine.
var wrappers = []string{"runtime.goexit", "sync.(*WaitGroup).Go.func1", "github.com/fabricd/fabricd/internal/engine.(*group).run.func1",
	"github.com/fabricd/fabricd/internal/engine.(*link).spawn.func1"}

// passing are goroutines of ours that come and go without any application, so
// that one look may meet them on one node and not on the other.
var passing = []string{
	// It sends the heartbeat that a late one of the peer sets off.
	"github.com/fabricd/fabricd/internal/engine.(*link).tick.func1",
	// A link that is dialed, by here or by the peer, at whatever moment.
	"github.com/fabricd/fabricd/internal/engine.(*Node).linkTo.func",
	"github.com/fabricd/fabricd/internal/engine.(*Node).acceptLinks.func",
	// A node that checks whether another one lives opens a control connection to it:
	// membership has no goroutine for an application.
	"github.com/fabricd/fabricd/membership",
	// A stream over TCP that is being written, or has just ended.
	"github.com/fabricd/fabricd/internal/transport/stream.(*session).spawn.func1",
}

const control = "github.com/fabricd/fabricd/internal/engine.(*link).start.func2" // each link's one

func passes(name string) bool {
	return slices.ContainsFunc(passing, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

// compareGoroutines ends both nodes and fails t if hit has other goroutines of
// ours than spared.
func compareGoroutines(t *testing.T, hit, spared *node) {
	t.Helper()
	const ours = "github.com/fabricd/fabricd/"
	dump(t, hit, spared)
	got, want := goroutines(t, hit), goroutines(t, spared)
	total, totalWant := 0, 0
	for name := range merged(got, want) {
		total, totalWant = total+got[name], totalWant+want[name]
		if got[name] != want[name] {
			t.Logf("%d goroutines in %s, %d on the node that nothing was killed on", got[name], name, want[name])
		}
		if strings.HasPrefix(name, ours) && got[name] > want[name] && !passes(name) {
			t.Errorf("%d goroutines in %s, want %d as on the node that nothing was killed on", got[name], name, want[name])
		}
	}
	if got[control] != want[control] || got[control] < 2 {
		t.Errorf("%d goroutines in %s, want one for each of at least two links, as on the other node, which has %d", got[control], control, want[control])
	}
	t.Logf("%d goroutines, %d on the node that nothing was killed on", total, totalWant)
	if total > totalWant+8 { // the libraries' come and go
		t.Errorf("%d goroutines, want %d as on the other node", total, totalWant)
	}
	if totalWant < 10 {
		t.Errorf("the dump of %s has only %d goroutines: it was not read right", spared.name, totalWant)
	}
}

func merged(a, b map[string]int) map[string]int {
	m := maps.Clone(a)
	maps.Copy(m, b)
	return m
}
