package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/internal/faults/failpoint"
)

// breaks adds a fault of n itself.
func (n *node) breaks(args ...string) {
	n.l.t.Helper()
	n.faults(append([]string{"add", "--node"}, args...)...)
}

// nodeFaults returns n's faults, those that are over too.
func (n *node) nodeFaults() []failpoint.Report {
	n.l.t.Helper()
	var list struct {
		Nodes []failpoint.Report `json:"node_faults"`
	}
	if err := json.Unmarshal([]byte(n.faults("list", "--json", "--ended")), &list); err != nil {
		n.l.t.Fatal(err)
	}
	return list.Nodes
}

// did fails the test unless all faults of n have happened.
func (n *node) did() {
	n.l.t.Helper()
	all := n.nodeFaults()
	if len(all) == 0 {
		n.l.t.Errorf("%s: there was no fault", n.name)
	}
	for _, r := range all {
		if r.Fired == 0 || r.Problem != "" {
			n.l.t.Errorf("%s: %+v, want that it happened", n.name, r)
		}
	}
}

// crashed waits until n has ended, and fails the test unless that was SIGKILL.
func (n *node) crashed() time.Time {
	n.l.t.Helper()
	select {
	case <-n.done:
	case <-time.After(stepLimit):
		n.l.t.Fatalf("%s did not crash; its faults: %+v", n.name, n.nodeFaults())
	}
	ws, ok := n.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if !ok || !ws.Signaled() || ws.Signal() != syscall.SIGKILL {
		n.l.t.Errorf("%s ended with %v, want SIGKILL", n.name, n.cmd.ProcessState)
	}
	return n.process.at
}

// TestFaultsOfANodeAreRefusedWithoutTheFlag asks a node for them that was not
// started for faults.
func TestFaultsOfANodeAreRefusedWithoutTheFlag(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	host := l.host()
	for _, args := range [][]string{{"add", "--node", "crash"}, {"list"}, {"clear"}} {
		_, err := l.fabricd(append(append([]string{"faults"}, args...), "--admin", host.adminSocket())...)
		if err == nil || !strings.Contains(err.Error(), "--enable-faults") || strings.Count(err.Error(), "\n") > 1 {
			t.Errorf("faults %v: %v, want one line about --enable-faults", args, err)
		}
	}
	host.agreeAlone()
}

func (n *node) agreeAlone() { n.l.t.Helper(); n.l.agree(n) }

// TestNodesCrashAtStepsOfTheProtocol kills real daemons at a sample of the
// steps; the others are met in bubbles.
func TestNodesCrashAtStepsOfTheProtocol(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	nodes := l.breakable(2)
	for _, c := range []struct {
		step   string
		victim int
		do     func(t *testing.T, nodes []*node)
	}{
		{"link.hello_answered", 2, talk}, // first: there is no link yet
		{"conn.accept_granted", 2, talk},
		{"rma.write_copied", 2, talk},
		{"fence.signal_arrived", 2, talk},
		{"conn.close_sent", 1, talk},
		{"app.attached", 1, talk},
		{"app.died", 2, leaveOne},
		{"app.released", 2, leaveOne},
		{"member.removal_handled", 1, loseOne},
		{"host.removal_persisted", 0, loseOne},
		{"host.grant_persisted", 0, loseAndReturnOne},
		{"state.table_written", 0, loseAndReturnOne},
		{"", 1, func(*testing.T, []*node) {}}, // at once
	} {
		t.Logf("%s at %s", c.step, nodes[c.victim].name)
		crashOnce(t, l, nodes, c.step, c.victim, c.do)
	}
}

// crashOnce arms the crash, does something that comes by the step, and
// starts the nodes that are down.
func crashOnce(t *testing.T, l *lab, nodes []*node, step string, victim int, do func(*testing.T, []*node)) {
	t.Helper()
	v := nodes[victim]
	old := map[*node]fabric.Incarnation{}
	watchers := map[*node]*watcher{}
	processes := map[*node]*process{}
	for _, n := range nodes {
		old[n], processes[n] = n.incarnation(), n.process
		if n != v {
			watchers[n] = n.watch()
		}
	}
	if step == "" {
		v.breaks("crash")
	} else {
		v.breaks("crash", "--step", step)
	}
	do(t, nodes)
	v.crashed()
	for n, w := range watchers {
		if processes[n].running() { // or its own fabricd was lost
			w.removed(stepLimit, old[v])
		}
	}
	for _, n := range nodes {
		if !n.running() {
			n.launch()
		}
	}
	for _, n := range nodes {
		n.joined()
		if n.incarnation().Node != old[n].Node || n.incarnation().Generation < old[n].Generation {
			t.Errorf("%s: %s is %v, was %v", step, n.name, n.incarnation(), old[n])
		}
	}
	l.agree(nodes...)
	for n, w := range watchers {
		if words := w.words(); strings.Count(words, old[v].String()+" removed") > 1 {
			t.Errorf("%s: %s saw %s", step, n.name, words)
		}
	}
	l.reconnect(stepLimit, nodes[1], nodes[2])
	l.reconnect(stepLimit, nodes[0], nodes[1])
}

// talk makes the calls of a pair of applications, from member 1 to member 2. They
// may fail, but they return.
func talk(t *testing.T, nodes []*node) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stepLimit)
	defer cancel()
	err := dialogue(ctx, nodes[1], nodes[2])
	if err != nil && ctx.Err() != nil {
		t.Errorf("a call hung: %v", err)
	}
}

// dialogue connects n to m, writes into a window of m's, has a signal stored
// behind that, and closes.
func dialogue(ctx context.Context, n, m *node) error {
	far, err := fabric.Attach(ctx, m.socket())
	if err != nil {
		return err
	}
	defer far.Close()
	near, err := fabric.Attach(ctx, n.socket())
	if err != nil {
		return err
	}
	defer near.Close()
	listener, err := far.Listen(0)
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer listener.Close()
	wg.Go(func() { // its errors are the other end's too
		c, err := listener.AcceptConn(ctx)
		if err != nil {
			return
		}
		defer c.Close()
		mem, _, err := openWindow(ctx, far, c.Endpoint())
		if err != nil {
			return
		}
		defer mem.Close()
		_, _ = io.Copy(io.Discard, c)
	})
	conn, err := near.DialAddr(ctx, listener.Addr().(fabric.Addr))
	if err != nil {
		return err
	}
	defer conn.Close()
	ep := conn.Endpoint()
	off, err := peerWindow(ctx, ep)
	if err != nil {
		return err
	}
	if err := ep.VWriteTo(pattern('w', windowSize), off, fabric.Sync); err != nil {
		return err
	}
	err = ep.FenceSignal(fabric.Signal{By: fabric.InitSelf, Where: fabric.SignalRemote, RemoteOffset: off + wordOffset, RemoteValue: 7})
	if err != nil {
		return err
	}
	mark, err := ep.FenceMark(fabric.InitSelf)
	if err != nil {
		return err
	}
	return ep.FenceWait(ctx, mark)
}

// leaveOne ends an application at member 2.
func leaveOne(t *testing.T, nodes []*node) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stepLimit)
	defer cancel()
	app, err := fabric.Attach(ctx, nodes[2].socket())
	if err != nil {
		t.Fatal(err)
	}
	_ = app.Close() // its fabricd may end first
}

// loseOne kills member 2.
func loseOne(t *testing.T, nodes []*node) {
	t.Helper()
	nodes[2].kill()
}

// loseAndReturnOne kills member 2 and starts it again, which needs the host.
func loseAndReturnOne(t *testing.T, nodes []*node) {
	t.Helper()
	nodes[2].kill()
	nodes[2].launch()
}

// TestFrozenNode makes a node stand still by itself: for a second, which has no
// effect on other nodes, and for five, which is one removal and one return.
func TestFrozenNode(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	nodes := l.breakable(2)
	frozen := nodes[2]
	old := frozen.incarnation()
	var watchers []*watcher
	for _, n := range nodes[:2] {
		watchers = append(watchers, n.watch())
	}
	pair, healthy := l.pair(nodes[0], frozen), l.flow(nodes[0], nodes[1])
	pair.pace(t, 10)

	frozen.breaks("freeze", "--for", "1s")
	began := time.Now()
	time.Sleep(100 * time.Millisecond) // it answered before it froze
	if err := pair.trip(); err != nil {
		t.Errorf("a round trip over the freeze: %v", err)
	}
	if took := time.Since(began); took < 900*time.Millisecond || took > 3*time.Second {
		t.Errorf("the round trip took %v, want the rest of the second", took)
	}
	for end := began.Add(2500 * time.Millisecond); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		pair.pace(t, 1)
	}
	for _, w := range watchers {
		w.saw("")
	}

	// The same at a step of the protocol: it freezes when it has granted a request.
	frozen.breaks("freeze", "--step", "conn.accept_granted", "--for", "1s")
	began = time.Now()
	l.pair(nodes[0], frozen).pace(t, 1)
	if took := time.Since(began); took < 900*time.Millisecond || took > 3*time.Second {
		t.Errorf("a connection over the freeze took %v, want a second", took)
	}
	for end := began.Add(2500 * time.Millisecond); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		pair.pace(t, 1)
	}
	for _, w := range watchers {
		w.saw("")
	}

	frozen.breaks("freeze", "--for", "5s")
	began = time.Now()
	for _, w := range watchers {
		ev := w.removed(10*time.Second, old)
		t.Logf("%s: NODE_REMOVED %v after the freeze: %s", w.name, ev.at.Sub(began).Round(time.Millisecond), ev.Reason)
	}
	next := fabric.Incarnation{Node: old.Node, Generation: old.Generation + 1}
	for _, w := range watchers {
		ev := w.added(stepLimit, next)
		if d := ev.at.Sub(began); d < 4900*time.Millisecond {
			t.Errorf("%s: back %v after the freeze of 5s began", w.name, d)
		}
		w.saw(fmt.Sprintf("%v removed, %v added", old, next))
	}
	frozen.joined()
	frozen.did()
	l.agree(nodes...)
	healthy.end(t)
	l.pair(nodes[1], frozen).pace(t, 3)
}

// TestClocksThatJump sets the clocks of a host and of a member wrong, in opposite
// directions, while others connect, restart and join.
func TestClocksThatJump(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	nodes := l.breakable(2)
	watch := nodes[2].watch()
	healthy := l.flow(nodes[0], nodes[1])
	nodes[0].breaks("clock", "--offset", "24h", "--for", "1m")
	nodes[1].breaks("clock", "--offset", "-24h", "--for", "1m")
	l.pair(nodes[0], nodes[1]).pace(t, 3)
	l.pair(nodes[1], nodes[2]).pace(t, 3) // a new link, with certificates
	late := l.member(nodes[0], "late")
	late.start()
	l.pair(late, nodes[2]).pace(t, 3) // the node with the right clock
	time.Sleep(3 * time.Second)       // longer than any bound of silence
	if words := watch.words(); strings.Contains(words, "removed") {
		t.Errorf("saw %s, want no removal", words)
	}
	tomorrow := time.Now().Add(24 * time.Hour).UTC().Format("2006-01-02")
	if said := nodes[0].said(); !strings.Contains(said, tomorrow) && !strings.Contains(said, time.Now().Add(24*time.Hour).Format("2006-01-02")) {
		t.Errorf("the log of the host has no line of %s:\n%s", tomorrow, tail(nodes[0].log, 5))
	}
	for _, n := range nodes[:2] {
		n.did()
		n.faults("clear")
	}
	l.pair(nodes[1], nodes[0]).pace(t, 3)
	l.agree(nodes[0], nodes[1], nodes[2], late)
	healthy.end(t)
}

// TestFullDisk fills the host's state directory by a fault: operations that need the disk
// are refused with a reason, all others go on, and it is over when the disk is well.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	nodes := l.breakable(1)
	host := nodes[0]
	host.breaks("disk", "--disk", "full", "--for", "1h")
	waits := l.fillsUp(nodes, "no space left on device")
	host.did()
	host.faults("clear")
	l.getsOver(nodes, waits)
}

// TestFullFileSystem does the same with a real file system.
func TestFullFileSystem(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	// Beside the host's directory, so that nothing else of the lab is on it.
	small := filepath.Join(l.dir, "small")
	if err := os.Mkdir(small, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("small", small, "tmpfs", 0, "size=512k"); err != nil {
		t.Logf("no file system may be mounted here: %v", err)
		return
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(small, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	host := l.prepare("host-node", "--role", "host", "--state-dir", filepath.Join(small, "state"))
	l.token = filepath.Join(l.dir, "join.token")
	if _, err := l.fabricd("init", "--name", host.name, "--state-dir", filepath.Join(small, "state"), "--token-file", l.token); err != nil {
		t.Fatal(err)
	}
	host.start()
	t.Cleanup(func() { host.kill() }) // before the file system goes
	member := l.member(host, "member-1")
	member.start()
	l.agree(host, member)

	hog := filepath.Join(small, "hog")
	if err := os.WriteFile(hog, make([]byte, 1<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("filling: %v", err)
	}
	waits := l.fillsUp([]*node{host, member}, "no space left on device")
	if err := os.Remove(hog); err != nil {
		t.Fatal(err)
	}
	l.getsOver([]*node{host, member}, waits)
}

// fillsUp checks a host whose disk is full, and returns a node that waits
// to join it.
func (l *lab) fillsUp(nodes []*node, reason string) (waits *node) {
	t := l.t
	t.Helper()
	host, member := nodes[0], nodes[1]
	pair := l.pair(member, host)
	eventually(t, 3*time.Second, "the host's health reports it", func() error {
		h, err := host.admin.Health(within(t, time.Second))
		if err == nil && (h.Healthy || !strings.Contains(h.Detail, reason)) {
			err = fmt.Errorf("%+v", h)
		}
		return err
	})
	if _, err := l.fabricd("token", "create", "--admin", host.adminSocket()); err == nil || !strings.Contains(err.Error(), reason) {
		t.Errorf("a token of a host that cannot write: %v, want %q", err, reason)
	}
	waits = l.member(host, "waits")
	waits.launch()
	eventually(t, stepLimit, "the newcomer says what it waits for", func() error {
		st, err := waits.status()
		if err == nil && (st.State != "joining" || !strings.Contains(st.Detail, reason)) {
			err = fmt.Errorf("%s: %s", st.State, st.Detail)
		}
		return err
	})
	watch := member.watch()
	pair.pace((t.(*testing.T)), 100)
	l.pair(host, member).pace(t.(*testing.T), 10)
	watch.saw("")
	if !host.running() || !waits.running() {
		t.Fatal("a process ended")
	}
	return waits
}

// getsOver checks that all is well within 5 s.
func (l *lab) getsOver(nodes []*node, waits *node) {
	t := l.t
	t.Helper()
	began := time.Now()
	eventually(t, 5*time.Second, "the host is healthy", func() error {
		h, err := nodes[0].admin.Health(within(t, time.Second))
		if err == nil && !h.Healthy {
			err = errors.New(h.Detail)
		}
		return err
	})
	waits.joined()
	t.Logf("the newcomer joined %v after the disk was well", time.Since(began).Round(time.Millisecond))
	if d := time.Since(began); d > 5*time.Second {
		t.Errorf("the newcomer joined %v after the disk was well, want 5s at most", d)
	}
	l.agree(append(nodes, waits)...)
	if _, err := l.fabricd("token", "create", "--admin", nodes[0].adminSocket()); err != nil {
		t.Error(err)
	}
}

// TestDescriptorsRunOut leaves a node without a descriptor for a time: it says
// so to each caller that needs one, keeps every session and connection, does not spin,
// and goes on as before.
func TestDescriptorsRunOut(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	nodes := l.breakable(2)
	poor := nodes[2]
	watch := nodes[0].watch()
	pair, healthy := l.pair(nodes[0], poor), l.flow(nodes[0], nodes[1])
	l.pair(nodes[1], poor) // over TCP a new link would need a descriptor too
	app := poor.attach()
	listener, err := app.Listen(0)
	if err != nil {
		t.Fatal(err)
	}
	far, err := nodes[0].attach().Listen(0)
	if err != nil {
		t.Fatal(err)
	}
	local := l.pair(poor, poor)
	mem, err := app.Alloc(windowSize)
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	own := l.pairOf(app, nodes[0])
	if _, err := own.Endpoint().Register(mem.Bytes(), 0, fabric.ProtRead, 0); err != nil {
		t.Fatal(err)
	}

	poor.breaks("descriptors", "--free", "0", "--for", "3s")
	began := time.Now()
	used := cpu(t, poor.pid())
	noMemory := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, syscall.ENOMEM) {
			t.Errorf("%s without a descriptor: %v, want ENOMEM", what, err)
		}
	}
	_, err = app.DialAddr(within(t, 2*time.Second), far.Addr().(fabric.Addr))
	noMemory("connect", err)
	if _, err = own.Endpoint().Register(mem.Bytes(), 0, fabric.ProtRead, 0); err != nil {
		t.Errorf("register of memory that the node has: %v", err)
	}
	for range 8 { // descriptors closed since, that of the command above, are free
		if err = registerNew(app, own.Endpoint()); err != nil {
			break
		}
	}
	noMemory("register", err)
	accepted := make(chan error, 1)
	go func() { // one answer
		_, err := listener.AcceptConn(within(t, 2*time.Second))
		accepted <- err
	}()
	if c, err := nodes[1].attach().DialAddr(within(t, 2*time.Second), listener.Addr().(fabric.Addr)); err == nil {
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, io.EOF) {
			t.Errorf("a connection that nobody could take says %v", err)
		}
		c.Close()
	}
	noMemory("accept", <-accepted)
	if _, err := fabric.Attach(within(t, 300*time.Millisecond), poor.socket()); err == nil {
		t.Error("an application attached without a descriptor")
	}
	pair.pace(t, 50)
	local.pace(t, 50)
	if _, err := own.Write([]byte("still there")); err != nil {
		t.Errorf("an old connection: %v", err)
	}
	time.Sleep(2500*time.Millisecond - time.Since(began))
	share := float64(cpu(t, poor.pid())-used) / float64(time.Since(began))
	t.Logf("%.0f%% of a processor without a descriptor", 100*share)
	if share > 0.2 {
		t.Errorf("it uses %.0f%% of a processor without a descriptor", 100*share)
	}
	time.Sleep(3100*time.Millisecond - time.Since(began))
	ended := time.Now()
	eventually(t, time.Second, "it recovers", func() error {
		more, err := fabric.Attach(within(t, time.Second), poor.socket())
		if err == nil {
			more.Close()
		}
		return err
	})
	if err := registerNew(app, own.Endpoint()); err != nil {
		t.Errorf("register afterwards: %v", err)
	}
	l.pair(poor, nodes[1]).pace(t, 3)
	t.Logf("as before %v after the end", time.Since(ended).Round(time.Millisecond))
	poor.did()
	healthy.end(t)
	watch.saw("")
}

// registerNew opens a window onto memory that the node does not have yet.
func registerNew(app *fabric.Node, ep *fabric.Endpoint) error {
	mem, err := app.Alloc(windowSize)
	if err != nil {
		return err
	}
	defer mem.Close()
	_, err = ep.Register(mem.Bytes(), 0, fabric.ProtRead, 0)
	return err
}

// pairOf connects an application to one at m that reads whatever comes.
func (l *lab) pairOf(app *fabric.Node, m *node) *fabric.Conn {
	l.t.Helper()
	listener, err := m.attach().Listen(0)
	if err != nil {
		l.t.Fatal(err)
	}
	go func() { // ends with the connection or the listener, which end with the test
		if c, err := listener.AcceptConn(within(l.t, stepLimit)); err == nil {
			_, _ = io.Copy(io.Discard, c)
		}
	}()
	conn, err := app.DialAddr(within(l.t, stepLimit), listener.Addr().(fabric.Addr))
	if err != nil {
		l.t.Fatal(err)
	}
	return conn
}

// TestSlowReceiver makes the applications behind one port of a node read slowly:
// their senders wait, no others do, and nothing is lost.
func TestSlowReceiver(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	nodes := l.breakable(1)
	slow, other := nodes[1], nodes[0]
	listener, err := slow.attach().Listen(0)
	if err != nil {
		t.Fatal(err)
	}
	at := listener.Addr().(fabric.Addr)
	sender := other.attach()
	dialed := make(chan error, 1)
	var out *fabric.Conn
	go func() { // one answer
		var err error
		out, err = sender.DialAddr(within(t, stepLimit), at)
		dialed <- err
	}()
	in, err := listener.AcceptConn(within(t, stepLimit))
	if err := errors.Join(err, <-dialed); err != nil {
		t.Fatal(err)
	}
	neighbour := l.pair(other, slow)

	slow.breaks("slow-receiver", "--port", fmt.Sprint(at.Port), "--delay", "400ms", "--for", "1h")
	sent, sum := fill(t, sender, out)
	if limit := int64(4 << 20); sent > limit {
		t.Errorf("a sender gave %d bytes to an application that does not read them, want %d at most", sent, limit)
	}
	if pace := neighbour.pace(t, 50); pace > 50*time.Millisecond {
		t.Errorf("a neighbour's round trip takes %v", pace)
	}
	got := make(chan []byte, 1)
	go func() { // one answer
		b := make([]byte, sent)
		_, err := io.ReadFull(in, b)
		if err != nil {
			t.Errorf("read: %v", err)
		}
		got <- b
	}()
	select {
	case <-got:
		t.Errorf("%d bytes arrived at once", sent)
	case <-time.After(time.Second):
	}
	slow.did()
	slow.faults("clear")
	select {
	case b := <-got:
		have := uint32(0)
		for _, c := range b {
			have = have*31 + uint32(c)
		}
		if have != sum {
			t.Error("the bytes are not those that were sent")
		}
	case <-time.After(stepLimit):
		t.Error("the bytes did not arrive after the end")
	}
}
