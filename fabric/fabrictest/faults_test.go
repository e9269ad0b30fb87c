package fabrictest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/fabric/fabrictest"
	"github.com/fabricd/fabricd/internal/test/bubble"
)

const (
	port  = 2050
	page  = 4096
	limit = 30 * time.Second // of virtual time: whatever fails, fails before
)

// engineParts are the parts of a node that a test cluster has.
var engineParts = []string{"link.", "conn.", "window.", "rma.", "fence.", "node."}

// engineSteps are the steps of the engine.
func engineSteps(t *testing.T) (all []fabrictest.FaultStep) {
	t.Helper()
	for _, s := range fabrictest.FaultSteps() {
		if slices.ContainsFunc(engineParts, func(p string) bool { return strings.HasPrefix(s.Name, p) }) {
			all = append(all, s)
		}
	}
	if len(all) < 25 {
		t.Fatalf("%d steps of the engine", len(all))
	}
	return all
}

// atInitiator are the steps of the node that connects, and owns windows that
// come and go; the others are its peer's, but those of a node loss, which are
// those of the nodes that survive it.
var atInitiator = []string{"link.hello_sent", "conn.connect_sent", "conn.connect_granted", "conn.connect_confirmed",
	"conn.close_sent", "window.known", "window.released"}

// A record takes the node events that an application sees.
type record struct {
	mu  sync.Mutex
	all []string
}

func watchAll(n *fabric.Node) *record {
	r := &record{}
	n.OnEvent(func(ev fabric.Event) {
		r.mu.Lock()
		defer r.mu.Unlock()
		what := "added"
		if ev.Kind == fabric.NodeRemoved {
			what = "removed"
		}
		r.all = append(r.all, fmt.Sprintf("%d.%d %s", ev.Node, ev.Generation, what))
	})
	return r
}

func (r *record) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.all, ", ")
}

// An exercise makes two applications do everything that the engine has a step
// for. The errors are those of the initiator and of its peer.
func exercise(initiator, peer *fabric.Node, to fabric.NodeID) (initiators, peers error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	l, err := peer.Listen(port)
	if err != nil {
		return nil, err
	}
	var wg sync.WaitGroup
	wg.Go(func() { peers = serve(ctx, peer, l) })
	initiators = initiate(ctx, initiator, to)
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	if initiators != nil {
		l.Close() // or the peer waits for a connect that does not come
	}
	wg.Wait()
	return initiators, errors.Join(peers, ignore(l.Close()))
}

func ignore(error) error { return nil }

// serve accepts one connection, opens a window, and follows the initiator to
// the end of its messages.
func serve(ctx context.Context, n *fabric.Node, l *fabric.Listener) error {
	conn, err := l.AcceptConn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	ep := conn.Endpoint()
	mem, err := n.Alloc(page)
	if err != nil {
		return err
	}
	defer mem.Close()
	if _, err := ep.Register(mem.Bytes(), 0, fabric.ProtRead|fabric.ProtWrite, fabric.MapFixed); err != nil {
		return err
	}
	if _, err := conn.Write([]byte("w")); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, conn)
	return err
}

// initiate connects and does everything once.
func initiate(ctx context.Context, n *fabric.Node, to fabric.NodeID) error {
	conn, err := n.DialAddr(ctx, fabric.Addr{Node: to, Port: port})
	if err != nil {
		return err
	}
	defer conn.Close()
	ep := conn.Endpoint()
	if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
		return err
	}
	mem, err := n.Alloc(page)
	if err != nil {
		return err
	}
	defer mem.Close()
	off, err := ep.Register(mem.Bytes(), 0, fabric.ProtRead|fabric.ProtWrite, 0)
	if err != nil {
		return err
	}
	if err := transfer(ctx, ep); err != nil {
		return err
	}
	if err := ep.Unregister(off, page); err != nil {
		return err
	}
	_, err = conn.Write([]byte("bye"))
	return err
}

func transfer(ctx context.Context, ep *fabric.Endpoint) error {
	data, back := bytes.Repeat([]byte("data"), 16), make([]byte, 64)
	if err := ep.VWriteTo(data, 64, fabric.Sync); err != nil {
		return err
	}
	if err := ep.VReadFrom(back, 64, fabric.Sync); err != nil {
		return err
	}
	if !bytes.Equal(data, back) {
		return fmt.Errorf("read %q, wrote %q", back, data)
	}
	if old, err := ep.FetchAdd64(ctx, 0, 5); err != nil || old != 0 {
		return errors.Join(err, when(old != 0, fmt.Errorf("the word was %d", old)))
	}
	m, err := ep.FenceMark(fabric.InitPeer)
	if err != nil {
		return err
	}
	if err := ep.FenceWait(ctx, m); err != nil {
		return err
	}
	err = ep.FenceSignal(fabric.Signal{By: fabric.InitSelf, Where: fabric.SignalRemote, RemoteOffset: 8, RemoteValue: 9})
	if err != nil {
		return err
	}
	if m, err = ep.FenceMark(fabric.InitSelf); err != nil {
		return err
	}
	return ep.FenceWait(ctx, m)
}

func when(cond bool, err error) error {
	if cond {
		return err
	}
	return nil
}

// victimOf returns the node at which a step is met while node 1 connects to
// node 2: 0 for those of a node loss.
func victimOf(step string) int {
	switch {
	case strings.HasPrefix(step, "node."):
		return 0
	case slices.Contains(atInitiator, step):
		return 1
	}
	return 2
}

func arm(t *testing.T, c *fabrictest.Cluster, i int, f fabrictest.NodeFault) {
	t.Helper()
	if _, err := c.NodeFault(i, f); err != nil {
		t.Fatal(err)
	}
}

// clean reports an exercise that did not go well.
func clean(t *testing.T, what string, c *fabrictest.Cluster, i, j int) {
	t.Helper()
	if a, b := exercise(c.Node(i), c.Node(j), fabric.NodeID(j)); a != nil || b != nil {
		t.Errorf("%s: %v; its peer: %v", what, a, b)
	}
}

func TestEveryStepOfTheEngineIsHit(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := fabrictest.NewCluster(t, 3)
		steps := engineSteps(t)
		for _, s := range steps {
			for i := range 3 {
				arm(t, c, i, fabrictest.NodeFault{Kind: "delay", Step: s.Name, For: time.Millisecond, Times: -1})
			}
		}
		clean(t, "with delays everywhere", c, 1, 2)
		c.Kill(1)
		hits := map[string]uint64{}
		for _, i := range []int{0, 2} {
			all, err := c.NodeFaults(i)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range all {
				hits[r.Fault.Step] += r.Fired
			}
		}
		for _, s := range steps {
			if hits[s.Name] == 0 && !slices.Contains(atInitiator, s.Name) { // its reports ended with node 1
				t.Errorf("%s was never hit", s.Name)
			}
		}
	})
}

// TestCrashAtEveryStepOfTheEngine kills a node at each step while two nodes do
// everything: nothing hangs, every survivor sees the removal once, the
// survivors work on, and so does the node's next incarnation.
func TestCrashAtEveryStepOfTheEngine(t *testing.T) {
	for _, step := range engineSteps(t) {
		t.Run(step.Name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) { crashAt(t, step.Name, time.Second) })
		})
	}
}

// TestCrashAtEveryStepOverSockets is the same over each provider, in real time.
func TestCrashAtEveryStepOverSockets(t *testing.T) {
	for name, over := range map[string]fabrictest.Option{"quic": fabrictest.QUIC(), "tcp": fabrictest.TCP()} {
		for _, step := range engineSteps(t) {
			t.Run(name+"/"+step.Name, func(t *testing.T) {
				t.Parallel()
				crashAt(t, step.Name, 20*time.Millisecond, over)
			})
		}
	}
}

// crashAt kills a node at a step. Once it is gone, nothing unexpected may come for
// so long.
func crashAt(t *testing.T, step string, quiet time.Duration, opts ...fabrictest.Option) {
	c := fabrictest.NewCluster(t, 4, opts...)
	victim := victimOf(step)
	records := map[int]*record{}
	for i := range 4 {
		records[i] = watchAll(c.Node(i))
	}
	arm(t, c, victim, fabrictest.NodeFault{Kind: "crash", Step: step})
	began := time.Now()
	var want string
	if victim == 0 { // of a loss
		clean(t, "before the loss", c, 1, 2)
		c.Kill(3)
		want = "3.1 removed, "
	} else {
		killed := crashes(c, victim)
		a, b := exercise(c.Node(1), c.Node(2), 2)
		if took := time.Since(<-killed); took > lossLimit {
			t.Errorf("the calls ended %v after the crash, want %v at most", took, lossLimit)
		}
		survivor := map[int]error{1: b, 2: a}[victim]
		late := step == "conn.close_sent" || step == "conn.close_answered" || step == "conn.connect_confirmed"
		checkLoss(t, survivor, late)
	}
	if took := time.Since(began); took >= limit {
		t.Errorf("it hung for %v", took)
	}
	for ; ; time.Sleep(10 * time.Millisecond) {
		if _, err := c.NodeFaults(victim); err != nil {
			break
		}
		if time.Since(began) >= limit {
			t.Fatalf("node %d did not crash at %s", victim, step)
		}
	}
	time.Sleep(quiet)
	want += fmt.Sprintf("%d.1 removed", victim)
	for i := range 4 {
		if i == victim || victim == 0 && i == 3 {
			continue
		}
		if got := records[i].String(); got != want {
			t.Errorf("node %d saw %q, want %q", i, got, want)
		}
	}
	if victim != 0 {
		clean(t, "survivors", c, 0, 3)
	}
	c.Restart(victim)
	if victim == 0 {
		c.Restart(3)
	}
	clean(t, "the next incarnation", c, 1, 2)
	clean(t, "the next incarnation as the initiator", c, 2, 1)
}

// lossLimit bounds how long after a crash the calls of a survivor end.
const lossLimit = time.Second

// crashes returns a channel that yields the time at which node i, which has one fault, a
// crash, was last seen alive, polled every millisecond. A node that has ended has no faults.
func crashes(c *fabrictest.Cluster, i int) <-chan time.Time {
	killed := make(chan time.Time, 1)
	go func() { // as long as the node lives
		for last, began := time.Now(), time.Now(); ; time.Sleep(time.Millisecond) {
			now := time.Now()
			all, err := c.NodeFaults(i)
			if err != nil || len(all) == 0 || all[0].Fired > 0 || now.Sub(began) > limit {
				killed <- last
				return
			}
			last = now
		}
	}()
	return killed
}

// checkLoss checks the error of a survivor's calls towards a peer that crashed. With
// late, the crash may come after all calls have succeeded.
func checkLoss(t *testing.T, err error, late bool) {
	t.Helper()
	for _, lost := range []error{syscall.ECONNRESET, syscall.ENODEV, syscall.ECONNREFUSED, syscall.EINTR, syscall.EBADF, io.EOF} {
		if errors.Is(err, lost) {
			return
		}
	}
	if err != nil || !late {
		t.Errorf("the survivor's call: %v, want that the peer is lost", err)
	}
}

// mayBeSilent reports whether a failed step may go unreported: the requested
// operation has happened nevertheless.
func mayBeSilent(step string) bool {
	switch step {
	case "conn.connect_sent": // the request is written: its grant may be faster than the failure
		return true
	case "rma.write_acked": // the operation that waited for the write has its answer
		return true
	}
	return strings.HasPrefix(step, "link.") // the link is dialed again within the call
}

// TestAnErrorAtEveryStepThatCanFail lets each of them fail once: the call, or
// the connection, ends with an error; no node does, and the next attempt works.
func TestAnErrorAtEveryStepThatCanFail(t *testing.T) {
	for _, step := range engineSteps(t) {
		if step.Fails == "" {
			continue
		}
		t.Run(step.Name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				c := fabrictest.NewCluster(t, 3, fabrictest.ConnectTimeout(3*time.Second))
				seen := watchAll(c.Node(0))
				victim := victimOf(step.Name)
				arm(t, c, victim, fabrictest.NodeFault{Kind: "error", Step: step.Name})
				began := time.Now()
				a, b := exercise(c.Node(1), c.Node(2), 2)
				if took := time.Since(began); took >= limit {
					t.Errorf("it hung for %v: %v; %v", took, a, b)
				}
				if errors.Join(a, b) == nil && !mayBeSilent(step.Name) {
					t.Errorf("no peer was notified that %s failed", step.Name)
				}
				all, err := c.NodeFaults(victim)
				if err != nil || len(all) != 1 || all[0].Fired != 1 {
					t.Errorf("faults %+v, %v; want one that fired once", all, err)
				}
				clean(t, "afterwards", c, 1, 2)
				if got := seen.String(); got != "" {
					t.Errorf("node 0 saw %q, want nothing", got)
				}
			})
		})
	}
}

func TestAFreezeOfASecondAtEveryStepChangesNothing(t *testing.T) {
	for _, step := range engineSteps(t) {
		if strings.HasPrefix(step.Name, "node.") {
			continue
		}
		t.Run(step.Name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				c := fabrictest.NewCluster(t, 3)
				seen := watchAll(c.Node(0))
				victim := victimOf(step.Name)
				arm(t, c, victim, fabrictest.NodeFault{Kind: "freeze", Step: step.Name, For: time.Second})
				began := time.Now()
				clean(t, "with a freeze", c, 1, 2)
				if took := time.Since(began); took < time.Second || took > 5*time.Second {
					t.Errorf("it took %v, want a little over 1s", took)
				}
				if got := seen.String(); got != "" {
					t.Errorf("node 0 saw %q, want nothing", got)
				}
			})
		})
	}
}

func TestHealDoesNotEndAFreeze(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := fabrictest.NewCluster(t, 2)
		near, far := connect(t, c.Node(0), c.Node(1))
		began := time.Now()
		arm(t, c, 1, fabrictest.NodeFault{Kind: "freeze", For: 2 * time.Second})
		time.Sleep(time.Second) // it begins a moment after the call
		c.Partition(1)
		c.Heal()
		if _, err := near.Send(t.Context(), []byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := far.Recv(t.Context(), make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took < 2*time.Second || took > 3*time.Second {
			t.Errorf("a frozen node got a message after %v, want a little over 2s", took)
		}
	})
}

// TestListenerThatClosesInAGrantFreesItsPort has a connector stop between the
// grant and its confirmation: the endpoint of the grant keeps no port.
func TestListenerThatClosesInAGrantFreesItsPort(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := fabrictest.NewCluster(t, 3)
		arm(t, c, 1, fabrictest.NodeFault{Kind: "freeze", Step: "conn.connect_granted", For: time.Second})
		l, err := c.Node(2).Listen(port)
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
				t.Errorf("accept on a listener that closes: %v", err)
			}
		})
		wg.Go(func() {
			conn, err := c.Node(1).DialAddr(t.Context(), fabric.Addr{Node: 2, Port: port})
			if err == nil { // the grant was there before the listener's end
				defer conn.Close()
				_, err = conn.Read(make([]byte, 1))
			}
			checkLoss(t, err, false)
		})
		time.Sleep(100 * time.Millisecond)
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if l, err = c.Node(2).Listen(port); err != nil {
			t.Fatalf("the port is not free: %v", err)
		}
		wg.Wait()
		l.Close()
		clean(t, "afterwards", c, 1, 2)
	})
}

func TestSlowReceiverHoldsUpItsOwnConnectionOnly(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := fabrictest.NewCluster(t, 2)
		slow, fast := pair(t, c, 2050), pair(t, c, 2051)
		arm(t, c, 0, fabrictest.NodeFault{Kind: "slow-receiver", Port: 2050, Delay: time.Second,
			For: 20 * time.Second})
		began := time.Now()
		receive := func(p [2]*fabric.Conn) time.Duration {
			for range 5 {
				if _, err := p[1].Write([]byte("x")); err != nil {
					t.Fatal(err)
				}
				if _, err := p[0].Read(make([]byte, 1)); err != nil {
					t.Fatal(err)
				}
			}
			return time.Since(began)
		}
		if took := receive(fast); took != 0 {
			t.Errorf("a healthy receiver took %v", took)
		}
		if took := receive(slow); took != 4*time.Second {
			t.Errorf("five slow receives took %v, want 1s between each two", took)
		}
		if _, err := slow[1].Write([]byte("y")); err != nil {
			t.Fatal(err)
		}
		if n, err := slow[0].Endpoint().TryRecv(make([]byte, 1)); n != 0 || err != nil {
			t.Errorf("TryRecv before its time: %d, %v", n, err)
		}
		items := []fabric.PollItem{{Endpoint: slow[0].Endpoint(), Events: fabric.PollIn}}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := c.Node(0).Poll(ctx, items); err != nil || items[0].Revents&fabric.PollIn == 0 || time.Since(began) != 5*time.Second {
			t.Errorf("poll: %v, %v after %v; want readable after 5s", err, items[0].Revents, time.Since(began))
		}
		if _, err := slow[0].Read(make([]byte, 1)); err != nil {
			t.Error(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() { // waits in its slowness, and must not when the peer is lost
			if _, err := slow[0].Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("read of a lost peer: %v", err)
			}
		})
		synctest.Wait()
		lost := time.Now()
		c.Kill(1)
		wg.Wait()
		if d := time.Since(lost); d != 0 {
			t.Errorf("a slow receiver learned of the loss after %v", d)
		}
	})
}

// pair connects node 1 to a port of node 0 and returns the two ends, node 0's
// first.
func pair(t *testing.T, c *fabrictest.Cluster, port fabric.Port) (ends [2]*fabric.Conn) {
	t.Helper()
	l, err := c.Node(0).Listen(port)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		conn, err := c.Node(1).DialAddr(t.Context(), fabric.Addr{Node: 0, Port: port})
		if err != nil {
			t.Error(err)
		}
		ends[1] = conn
	})
	if ends[0], err = l.AcceptConn(t.Context()); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	return ends
}
