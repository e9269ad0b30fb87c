package fabrictest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/fabric/fabrictest"
	"github.com/fabricd/fabricd/internal/test/bubble"
)

// exchange sends one byte there and one back, within a time.
func exchangeBytes(near, far *fabric.Endpoint, within time.Duration) (time.Duration, error) {
	start := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	for _, way := range [][2]*fabric.Endpoint{{near, far}, {far, near}} {
		if _, err := way[0].Send(ctx, []byte{1}); err != nil {
			return 0, err
		}
		if _, err := way[1].Recv(ctx, make([]byte, 1)); err != nil {
			return 0, err
		}
	}
	return time.Since(start), nil
}

// TestFaultsOfLinks has every fault act on connections of applications.
func TestFaultsOfLinks(t *testing.T) {
	networks(t, func(t *testing.T, opts ...fabrictest.Option) {
		c := fabrictest.NewCluster(t, 3, opts...)
		near, far := connect(t, c.Node(1), c.Node(2))
		other, others := connect(t, c.Node(0), c.Node(1))
		for name, begin := range map[string]func() *fabrictest.Fault{
			"drop":      func() *fabrictest.Fault { return c.Link(1, 2).Drop(.3) },
			"corrupt":   func() *fabrictest.Fault { return c.Link(1, 2).Corrupt(.3) },
			"reorder":   func() *fabrictest.Fault { return c.Link(2, 1).Reorder(.5) },
			"delay":     func() *fabrictest.Fault { return c.Link(1, 2).Delay(20*time.Millisecond, 0) },
			"rate":      func() *fabrictest.Fault { return c.Link(fabrictest.Any, 2).Rate(100_000) },
			"messages":  func() *fabrictest.Fault { return c.Link(1, 2).Messages().Delay(20*time.Millisecond, 0) },
			"any":       func() *fabrictest.Fault { return c.Link(fabrictest.Any, 2).Delay(20*time.Millisecond, 0) },
			"flap":      func() *fabrictest.Fault { return c.Link(1, 2).Flap(100*time.Millisecond, time.Second).Cut() },
			"pause":     func() *fabrictest.Fault { return c.Pause(2, 100*time.Millisecond) },
			"as a file": func() *fabrictest.Fault { return c.Faults(`{"plane":"link","from":1,"to":2,"delay":"20ms"}`) },
		} {
			f := begin()
			slowest := time.Duration(0)
			for i := 0; i < 20 || i < 500 && f.Fired() == 0; i++ { // the random fault may take many tries to occur
				took, err := exchangeBytes(near, far, limit)
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				slowest = max(slowest, took)
			}
			if least := 20 * time.Millisecond; slowest < least && name != "reorder" && name != "corrupt" && name != "drop" && name != "rate" {
				t.Errorf("%s: no exchange took longer than %v", name, slowest)
			}
			if f.Fired() == 0 {
				t.Errorf("%s did not fire", name)
			}
			if _, err := exchangeBytes(other, others, time.Second); err != nil {
				t.Errorf("%s: another pair: %v", name, err)
			}
			f.End()
			f.End()
			if took, err := exchangeBytes(near, far, limit); err != nil {
				t.Errorf("after %s: %v, %v", name, took, err)
			}
		}
	})
}

// TestCutsOfStreams stops messages and operations by themselves.
func TestCutsOfStreams(t *testing.T) {
	networks(t, func(t *testing.T, opts ...fabrictest.Option) {
		c := fabrictest.NewCluster(t, 2, opts...)
		near, far := connect(t, c.Node(0), c.Node(1))
		mem, err := c.Node(1).Alloc(page)
		if err != nil {
			t.Fatal(err)
		}
		defer mem.Close()
		if _, err := far.Register(mem.Bytes(), 0, fabric.ProtRead|fabric.ProtWrite, fabric.MapFixed); err != nil {
			t.Fatal(err)
		}
		write := func(within time.Duration) error {
			ctx, cancel := context.WithTimeout(t.Context(), within)
			defer cancel()
			done := make(chan error, 1)
			go func() { done <- near.VWriteTo(bytes.Repeat([]byte{7}, 100), 0, fabric.Sync) }()
			select {
			case err := <-done:
				return err
			case <-ctx.Done():
				c.Heal()
				return errors.Join(ctx.Err(), <-done)
			}
		}
		if err := write(limit); err != nil {
			t.Fatal(err)
		}
		f := c.Link(0, 1).RMA().Cut()
		if _, err := exchangeBytes(near, far, limit); err != nil {
			t.Errorf("messages while operations are cut: %v", err)
		}
		if err := write(300 * time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a write while operations are cut: %v", err)
		}
		if f.Fired() == 0 {
			t.Error("the cut did not fire")
		}
		c.Link(1, 0).Messages().Cut()
		if _, err := exchangeBytes(near, far, 300*time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("messages while they are cut one way: %v", err)
		}
		if err := write(limit); err != nil {
			t.Errorf("a write while messages are cut: %v", err)
		}
		c.Heal()
		if _, err := near.Recv(t.Context(), make([]byte, 1)); err != nil {
			t.Errorf("after Heal: %v", err)
		}
		c.Link(0, 1).Messages().Reset()
		for err = nil; err == nil; { // a few may still come through
			_, err = exchangeBytes(near, far, limit)
		}
		if !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("a connection whose messages are reset: %v", err)
		}
	})
}

// A window is memory of node 1 that node 0 writes to, beside the messages of the
// same connection.
type window struct{ near, far *fabric.Endpoint }

// openWindow connects node 0 to node 1, which registers a page.
func openWindow(t *testing.T, c *fabrictest.Cluster) window {
	t.Helper()
	near, far := connect(t, c.Node(0), c.Node(1))
	mem, err := c.Node(1).Alloc(page)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mem.Close() })
	if _, err := far.Register(mem.Bytes(), 0, fabric.ProtRead|fabric.ProtWrite, fabric.MapFixed); err != nil {
		t.Fatal(err)
	}
	return window{near, far}
}

// pass writes a hundred bytes to the window, or sends them, and returns how long
// it took until they were there.
func (w window) pass(plane string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	data, start := bytes.Repeat([]byte{7}, 100), time.Now()
	if plane == "rma" {
		err := w.near.VWriteTo(data, 0, fabric.Sync)
		return time.Since(start), err
	}
	if _, err := w.near.Send(ctx, data); err != nil {
		return 0, err
	}
	_, err := w.far.Recv(ctx, make([]byte, len(data)))
	return time.Since(start), err
}

// fastest is the shortest time of a few passes: one of them is not held up by
// whatever else the machine does.
func (w window) fastest(t *testing.T, plane string) time.Duration {
	t.Helper()
	best := limit
	for range 5 {
		took, err := w.pass(plane)
		if err != nil {
			t.Fatalf("%s: %v", plane, err)
		}
		best = min(best, took)
	}
	return best
}

// TestFaultsOfOnePlane breaks the messages, and then the operations, from one node to
// another. The other plane of the same connection works unchanged meanwhile.
func TestFaultsOfOnePlane(t *testing.T) {
	const least = 60 * time.Millisecond // that a fault costs
	slow := map[string]func(l fabrictest.Link) *fabrictest.Fault{
		"delay":  func(l fabrictest.Link) *fabrictest.Fault { return l.Delay(least, 0) },
		"jitter": func(l fabrictest.Link) *fabrictest.Fault { return l.Delay(0, 4*least) },
		"rate":   func(l fabrictest.Link) *fabrictest.Fault { return l.Rate(1000) },
	}
	networks(t, func(t *testing.T, opts ...fabrictest.Option) {
		c := fabrictest.NewCluster(t, 2, opts...)
		w := openWindow(t, c)
		for plane, other := range map[string]string{"messages": "rma", "rma": "messages"} {
			link := c.Link(0, 1).Messages()
			if plane == "rma" {
				link = c.Link(0, 1).RMA()
			}
			for name, begin := range slow {
				f := begin(link)
				slowest := time.Duration(0)
				for range 20 {
					took, err := w.pass(plane)
					if err != nil {
						t.Fatalf("%s of %s: %v", name, plane, err)
					}
					if slowest = max(slowest, took); slowest >= least {
						break
					}
				}
				if slowest < least {
					t.Errorf("%s of %s costs %v, want %v and more", name, plane, slowest, least)
				}
				n := f.Fired()
				if took := w.fastest(t, other); took >= least || f.Fired() != n {
					t.Errorf("%s of %s: %s take %v, and it acted %d times on them", name, plane, other, took, f.Fired()-n)
				}
				if n == 0 {
					t.Errorf("%s of %s did not fire", name, plane)
				}
				f.End()
				if took := w.fastest(t, plane); took >= least {
					t.Errorf("after %s of %s: %v", name, plane, took)
				}
			}
			for name, begin := range map[string]func(fabrictest.Link) *fabrictest.Fault{"cut": fabrictest.Link.Cut, "hold": fabrictest.Link.Hold} {
				f := begin(link.For(time.Hour))
				passed := make(chan error, 1)
				go func() { _, err := w.pass(plane); passed <- err }()
				for range 10 {
					if took := w.fastest(t, other); took >= least {
						t.Errorf("%s of %s: %s take %v", name, plane, other, took)
					}
					time.Sleep(10 * time.Millisecond)
				}
				select {
				case err := <-passed:
					t.Errorf("%s of %s lets them pass: %v", name, plane, err)
				default:
				}
				if f.Fired() == 0 {
					t.Errorf("%s of %s did not fire", name, plane)
				}
				f.End()
				if err := <-passed; err != nil {
					t.Errorf("%s of %s, when it is over: %v", name, plane, err)
				}
			}
		}
	})
}

// TestResetOfOnePlane ends the connections that use it, and no link: with messages
// those that have sent some, with operations all, because each has a stream of them.
func TestResetOfOnePlane(t *testing.T) {
	networks(t, func(t *testing.T, opts ...fabrictest.Option) {
		for plane, other := range map[string]string{"messages": "rma", "rma": "messages"} {
			c := fabrictest.NewCluster(t, 2, opts...)
			both, only := openWindow(t, c), openWindow(t, c)
			for _, p := range []string{plane, other} {
				if _, err := both.pass(p); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := only.pass(other); err != nil {
				t.Fatal(err)
			}
			f := c.Faults(fmt.Sprintf(`{"plane":%q,"from":0,"to":1,"reset":true}`, plane))
			for _, ep := range []*fabric.Endpoint{both.near, both.far} {
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				if _, err := ep.Recv(ctx, make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("reset of %s: an end of a connection that uses it: %v", plane, err)
				}
				cancel()
			}
			if f.Fired() == 0 {
				t.Errorf("reset of %s did not fire", plane)
			}
			_, err := only.pass(other)
			for plane == "rma" && err == nil { // a few may still come through
				_, err = only.pass(other)
			}
			if plane == "messages" && err != nil || plane == "rma" && !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("reset of %s: a connection with %s only: %v", plane, other, err)
			}
			f.End()
			again := openWindow(t, c)
			for _, p := range []string{plane, other} {
				if _, err := again.pass(p); err != nil {
					t.Errorf("%s after a reset of %s: %v", p, plane, err)
				}
			}
			c.Close()
		}
	})
}

// TestOneWayCutEndsTheLinkOnBothSides and leaves others alone.
func TestOneWayCutEndsTheLinkOnBothSides(t *testing.T) {
	networks(t, func(t *testing.T, opts ...fabrictest.Option) {
		c := fabrictest.NewCluster(t, 3, opts...)
		near, far := connect(t, c.Node(1), c.Node(2))
		other, others := connect(t, c.Node(0), c.Node(1))
		f := c.Link(1, 2).Cut()
		ends := make(chan error, 2)
		for _, ep := range []*fabric.Endpoint{near, far} {
			go func() { _, err := ep.Recv(t.Context(), make([]byte, 1)); ends <- err }()
		}
		start := time.Now()
		for range 2 {
			if err := <-ends; !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("an end of the link that is cut: %v", err)
			}
		}
		t.Logf("both ends saw ECONNRESET after %v", time.Since(start).Round(time.Millisecond))
		if took, err := exchangeBytes(other, others, limit); err != nil {
			t.Errorf("another pair: %v, %v", took, err)
		}
		if f.Fired() == 0 {
			t.Error("the cut did not fire")
		}
		c.Heal()
		near, far = connect(t, c.Node(1), c.Node(2))
		if _, err := exchangeBytes(near, far, limit); err != nil {
			t.Errorf("after Heal: %v", err)
		}
	})
}

func TestPartitionsOfGroups(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := fabrictest.NewCluster(t, 4)
		reach := func(from, to int) bool {
			l, err := c.Node(to).Listen(0)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			go func() {
				if conn, err := l.AcceptConn(ctx); err == nil {
					conn.Close()
				}
			}()
			conn, err := c.Node(from).DialAddr(ctx, l.Addr().(fabric.Addr))
			if err != nil {
				return false
			}
			conn.Close()
			return true
		}
		for _, tt := range []struct {
			d    fabrictest.Direction
			want string // the pairs that cannot reach each other
		}{
			{fabrictest.Symmetric, "01 02 03 12 13"},
			{fabrictest.Asymmetric, "01 02 03 12 13"},
			{fabrictest.Partial, "01 12 13"},
		} {
			c.PartitionGroups(tt.d, []int{0}, []int{1}, []int{2, 3})
			var cut []string
			for i := range 4 {
				for j := i + 1; j < 4; j++ {
					if there, back := reach(i, j), reach(j, i); !there && !back {
						cut = append(cut, fmt.Sprintf("%d%d", i, j))
					} else if there != back {
						t.Errorf("%s: %d reaches %d: %v, back: %v", tt.d, i, j, there, back)
					}
				}
			}
			if got := strings.Join(cut, " "); got != tt.want {
				t.Errorf("%s cuts %s, want %s", tt.d, got, tt.want)
			}
			c.Heal()
			if !reach(0, 3) || !reach(2, 1) {
				t.Errorf("%s: not healed", tt.d)
			}
		}
	})
}

// TestPartitionsOfPackets has a byte on its way in both directions of every pair
// when groups are separated: packets pass where the direction of the partition lets
// them, though no node answers them.
func TestPartitionsOfPackets(t *testing.T) {
	for d, want := range map[fabrictest.Direction]string{
		fabrictest.Symmetric:  "23 32",
		fabrictest.Asymmetric: "10 20 21 23 30 31 32",
		fabrictest.Partial:    "02 03 20 23 30 32",
	} {
		t.Run(string(d), func(t *testing.T) {
			t.Parallel()
			c := fabrictest.NewCluster(t, 4, fabrictest.QUIC())
			var ends [4][4]*fabric.Endpoint // of the connection to each other node
			for i := range 4 {
				for j := i + 1; j < 4; j++ {
					ends[i][j], ends[j][i] = connect(t, c.Node(i), c.Node(j))
					if _, err := exchangeBytes(ends[i][j], ends[j][i], limit); err != nil {
						t.Fatal(err)
					}
				}
			}
			f := c.PartitionGroups(d, []int{0}, []int{1}, []int{2, 3})
			var ways [][2]int
			for i := range 4 {
				for j := range 4 {
					if i == j {
						continue
					}
					if _, err := ends[i][j].Send(t.Context(), []byte{1}); err != nil {
						t.Fatal(err)
					}
					ways = append(ways, [2]int{i, j})
				}
			}
			var got []string
			for _, w := range ways {
				way := fmt.Sprintf("%d%d", w[0], w[1])
				within := 50 * time.Millisecond // for a byte that cannot pass
				if strings.Contains(want, way) {
					within = limit
				}
				ctx, cancel := context.WithTimeout(t.Context(), within)
				if _, err := ends[w[1]][w[0]].Recv(ctx, make([]byte, 1)); err == nil {
					got = append(got, way)
				}
				cancel()
			}
			if got := strings.Join(got, " "); got != want {
				t.Errorf("bytes passed %s, want %s", got, want)
			}
			if f.Fired() == 0 {
				t.Error("the partition did not fire")
			}
			c.Heal()
			for i := range 4 {
				for j := range i {
					near, far := connect(t, c.Node(i), c.Node(j))
					if _, err := exchangeBytes(near, far, limit); err != nil {
						t.Errorf("%d and %d after Heal: %v", i, j, err)
					}
				}
			}
		})
	}
}

// TestShortPauseLosesNothing pauses a node for less than the bound of silence.
func TestShortPauseLosesNothing(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := fabrictest.NewCluster(t, 2)
		near, far := connect(t, c.Node(0), c.Node(1))
		f := c.Pause(1, time.Second)
		took, err := exchangeBytes(near, far, limit)
		if err != nil || took < time.Second || took > 1100*time.Millisecond {
			t.Errorf("an exchange in a pause of 1s: %v, %v", took, err)
		}
		if f.Fired() == 0 {
			t.Error("the pause did not fire")
		}
		time.Sleep(10 * time.Second)
		if took, err := exchangeBytes(near, far, limit); err != nil || took > 10*time.Millisecond {
			t.Errorf("long after the pause: %v, %v", took, err)
		}
	})
}

// A failures is a testing.TB that only takes notes.
type failures struct {
	testing.TB
	said []string
}

func (f *failures) Helper()        {}
func (f *failures) Cleanup(func()) {}
func (f *failures) Errorf(format string, args ...any) {
	f.said = append(f.said, fmt.Sprintf(format, args...))
}
func (f *failures) Fatalf(format string, args ...any) {
	f.Errorf(format, args...)
	panic(f.said)
}

func TestExpectRemoved(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		notes := &failures{TB: t}
		c := fabrictest.NewCluster(notes, 4)
		defer c.Close()
		c.Kill(3)
		c.ExpectRemoved(3, time.Second)
		c.Restart(3)
		c.ExpectRemoved(3, 0) // still its last removal, seen by all
		c.Evict(1)
		c.ExpectRemoved(1, time.Second)
		c.Kill(2)
		c.ExpectRemoved(2, time.Second) // by node 1 too, now in its next incarnation
		if len(notes.said) > 0 {
			t.Errorf("removals that all saw: %q", notes.said)
		}
		start := time.Now()
		c.ExpectRemoved(0, 3*time.Second)
		if len(notes.said) != 1 || !strings.Contains(notes.said[0], "node 0 was not removed") || time.Since(start) != 3*time.Second {
			t.Errorf("a node that lives: %q after %v", notes.said, time.Since(start))
		}
		go func() {
			time.Sleep(time.Second)
			c.Kill(0)
		}()
		c.ExpectRemoved(0, 3*time.Second)
		if len(notes.said) != 1 {
			t.Errorf("a removal during the wait: %q", notes.said)
		}
	})
}

func TestFaultsThatCannotBeAreRefused(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		for name, begin := range map[string]func(c *fabrictest.Cluster){
			"drop":      func(c *fabrictest.Cluster) { c.Link(0, 1).Drop(1.5) },
			"node":      func(c *fabrictest.Cluster) { c.Link(0, 7).Cut() },
			"messages":  func(c *fabrictest.Cluster) { c.Link(0, 1).Messages().Drop(.1) },
			"partition": func(c *fabrictest.Cluster) { c.PartitionGroups(fabrictest.Symmetric, []int{0, 1}) },
			"text":      func(c *fabrictest.Cluster) { c.Faults(`{"plane":"link"}`) },
			"pause":     func(c *fabrictest.Cluster) { c.Pause(1, 0) },
		} {
			notes := &failures{TB: t}
			c := fabrictest.NewCluster(notes, 2)
			func() {
				defer func() { _ = recover() }()
				begin(c)
			}()
			if len(notes.said) != 1 || strings.Contains(notes.said[0], "\n") {
				t.Errorf("%s: %q", name, notes.said)
			}
			c.Close()
		}
	})
}

func Example() {
	c := fabrictest.Start(3)
	defer c.Close()
	l, err := c.Node(0).Listen(2050)
	if err != nil {
		fmt.Println(err)
		return
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			io.Copy(conn, conn)
			conn.Close()
		}
	}()
	conn, err := c.Node(1).DialAddr(context.Background(), fabric.Addr{Node: 0, Port: 2050})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()

	// A bad link costs time and nothing else.
	bad := c.Link(1, 0).Delay(10*time.Millisecond, 0)
	start := time.Now()
	fmt.Fprint(conn, "hello")
	answer := make([]byte, 5)
	io.ReadFull(conn, answer)
	fmt.Printf("%s, late: %v, fired: %v\n", answer, time.Since(start) >= 10*time.Millisecond, bad.Fired() > 0)
	c.Heal()

	// A lost node costs its connections, and every other node is notified of it once.
	c.Kill(0)
	c.ExpectRemoved(0, time.Second)
	_, err = conn.Read(answer)
	fmt.Println(errors.Is(err, syscall.ECONNRESET))
	// Output:
	// hello, late: true, fired: true
	// true
}
