package membership

import (
	"context"
	"errors"
	"fmt"
	"net"
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
	"github.com/fabricd/fabricd/internal/faults/failpoint"
	"github.com/fabricd/fabricd/membership/state"
	"github.com/fabricd/fabricd/membership/trust"
	"github.com/fabricd/fabricd/membership/verdict"
)

// A cable is the Actor of node i of a world: to crash is to vanish from the
// network. The test ends the node's goroutines that are left in this process.
type cable struct {
	w *world
	i int
}

func (c cable) Crash()                           { c.w.net.Crash(ip(c.i)) }
func (c cable) Freeze(time.Duration) error       { return errors.New("agents of one process do not freeze") }
func (c cable) Starve(int) (func() error, error) { return nil, errors.New("they share descriptors") }

// faulty has the faults of one node under its agent and its state.
type faulty struct {
	*failpoint.Node
	i int
}

func (w *world) faulty(i int) faulty { return faulty{failpoint.New(cable{w, i}), i} }

func (f faulty) options() state.Options { return state.Options{Faults: f.Node, Now: f.Now} }

func (f faulty) config(c *Config) {
	c.Faults = f.Node
	c.Trust = must(LoadTrust(c.State, f.Now))
}

// hostWith is host with faults.
func (w *world) hostWith(f faulty) *node {
	w.t.Helper()
	st, token, err := Init(filepath.Join(w.dir, "1"), state.InitOptions{Options: f.options(), Name: "n1"}, trust.TokenOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	w.token = token
	return w.start(1, st, f.config)
}

// joinWith is join with faults, for as long as ctx lasts; it returns an error
// instead of failing.
func (w *world) joinWith(ctx context.Context, f faulty) (*node, error) {
	st, err := w.admitted(ctx, f)
	if err != nil {
		return nil, err
	}
	return w.start(f.i, st, f.config), nil
}

// admitted joins with the token, as far as that goes without an agent.
func (w *world) admitted(ctx context.Context, f faulty) (*state.State, error) {
	st, err := state.Prepare(filepath.Join(w.dir, fmt.Sprint(f.i)), fmt.Sprintf("n%d", f.i), f.options())
	if err != nil {
		return nil, err
	}
	c := w.joinConfig(f.i, st, w.token)
	c.Faults = f.Node
	if err := Join(ctx, c); err != nil {
		return nil, errors.Join(err, st.Close())
	}
	return st, nil
}

// againWith is again with faults.
func (w *world) againWith(f faulty) *node {
	w.t.Helper()
	st, err := state.Open(filepath.Join(w.dir, fmt.Sprint(f.i)), f.options())
	if err != nil {
		w.t.Fatal(err)
	}
	return w.start(f.i, st, f.config)
}

// membershipSteps are the steps that nodes without an engine and applications
// have.
func membershipSteps() (all []string) {
	for _, s := range failpoint.Steps() {
		for _, part := range []string{"join.", "host.", "member.", "state."} {
			if strings.HasPrefix(s.Name, part) {
				all = append(all, s.Name)
			}
		}
	}
	return all
}

// whoMeets returns the node at which a step is met: 1 is the host, 3 a member,
// 4 joins meanwhile.
func whoMeets(step string) int {
	switch {
	case strings.HasPrefix(step, "join."), strings.HasPrefix(step, "member.lease_"):
		return 4
	case strings.HasPrefix(step, "member."):
		return 3
	}
	return 1
}

// TestCrashAtEveryStepOfMembership crashes a node at each step while another one
// joins and a third is lost: all nodes are back in the end, no incarnation was ever two
// processes', and no incarnation was added or removed twice.
func TestCrashAtEveryStepOfMembership(t *testing.T) {
	steps := membershipSteps()
	if len(steps) < 20 {
		t.Fatalf("%d steps of membership", len(steps))
	}
	for _, step := range steps {
		t.Run(step, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) { (&ordeal{w: w, step: step, victim: whoMeets(step)}).run() })
		})
	}
}

// An ordeal is one crash at a step, and its surroundings.
type ordeal struct {
	w      *world
	step   string
	victim int
	faults map[int]faulty

	admitted chan admission // one, of node 4
	answered bool           // it was taken out of admitted
	late     *node          // node 4, once it has started
}

type admission struct {
	st  *state.State
	err error
}

func (o *ordeal) run() {
	w := o.w
	o.faults = map[int]faulty{}
	for i := 1; i <= 4; i++ {
		o.faults[i] = w.faulty(i)
	}
	w.hostWith(o.faults[1])
	for i := 2; i <= 3; i++ {
		if _, err := w.joinWith(w.t.Context(), o.faults[i]); err != nil {
			w.t.Fatal(err)
		}
	}
	w.within(5*time.Second, "all see all", func() bool { return mesh(w.all) })
	time.Sleep(2 * time.Second)
	resumes := strings.Contains(o.step, "resume")
	if resumes {
		w.kill(w.node(1))
		o.faults[1] = w.faulty(1)
	}
	o.arm()
	if resumes {
		time.Sleep(500 * time.Millisecond)
		w.againWith(o.faults[1])
	}
	o.joinLate()
	time.Sleep(time.Second)
	w.kill(w.node(2))
	w.within(20*time.Second, "node "+fmt.Sprint(o.victim)+" crashes at "+o.step, func() bool {
		select {
		case a := <-o.admitted:
			o.startLate(a)
		default:
		}
		return o.faults[o.victim].Dead()
	})
	o.recover()
	w.within(60*time.Second, "all see all again", func() bool { return mesh(w.all) })
	time.Sleep(5 * time.Second)
	if len(w.all) != 4 || !mesh(w.all) {
		w.t.Errorf("%d nodes in the end, whole mesh: %v", len(w.all), mesh(w.all))
	}
	o.check()
}

func (o *ordeal) arm() {
	if _, err := o.faults[o.victim].Add(failpoint.Fault{Kind: failpoint.Crash, Step: o.step}); err != nil {
		o.w.t.Fatal(err)
	}
}

// joinLate has node 4 join, however long that takes, unless it crashes.
func (o *ordeal) joinLate() {
	o.admitted = make(chan admission, 1)
	ctx, cancel := context.WithCancel(o.w.t.Context())
	go func() { // until the join has ended
		for !o.faults[4].Dead() && ctx.Err() == nil {
			select {
			case <-time.After(50 * time.Millisecond):
			case <-ctx.Done():
			}
		}
		cancel()
	}()
	go func() { // one answer
		st, err := o.w.admitted(ctx, o.faults[4])
		cancel()
		o.admitted <- admission{st, err}
	}()
}

// startLate starts node 4, which may have crashed while it joined.
func (o *ordeal) startLate(a admission) {
	o.answered = true
	switch {
	case a.err == nil:
		o.late = o.w.start(4, a.st, o.faults[4].config)
	case o.victim != 4:
		o.w.t.Errorf("node 4 joins: %v", a.err)
	}
}

// recover clears away the remains of the crash in this process, and starts the two
// nodes that are down again, without faults.
func (o *ordeal) recover() {
	w := o.w
	if o.victim != 4 {
		w.kill(w.node(o.victim))
		time.Sleep(3 * time.Second)
		w.again(o.victim)
		if !o.answered {
			o.startLate(<-o.admitted)
		}
		w.again(2)
		return
	}
	if !o.answered {
		o.startLate(<-o.admitted)
	}
	if o.late != nil {
		w.kill(o.late)
	}
	time.Sleep(3 * time.Second)
	if _, err := w.joinWith(w.t.Context(), w.faulty(4)); err != nil {
		w.t.Errorf("node 4 joins again: %v", err)
	}
	w.again(2)
}

// check looks through the events of every start of every node.
func (o *ordeal) check() {
	t := o.w.t
	held := map[addr.Incarnation]string{} // by which holder
	for _, n := range o.w.every {
		holder := fmt.Sprintf("%s epoch %d", n.st.Identity().Node, n.a.self.Epoch)
		added, removed := map[addr.Incarnation]int{}, map[addr.Incarnation]int{}
		for _, e := range n.since(time.Time{}) {
			incarnation := e.Node.Incarnation
			switch e.Kind {
			case verdict.EventSelf:
				if other, ok := held[incarnation]; ok && other != holder {
					t.Errorf("incarnation %v is held by %s and by %s", incarnation, other, holder)
				}
				held[incarnation] = holder
			case verdict.EventReset:
				clear(added) // of another incarnation of its own
				clear(removed)
			case verdict.EventAdded:
				if added[incarnation]++; added[incarnation] > 1 || removed[incarnation] > 0 {
					t.Errorf("node %d: %v added %d times, removed %d times before", n.i, incarnation, added[incarnation], removed[incarnation])
				}
			case verdict.EventRemoved:
				if removed[incarnation]++; removed[incarnation] > 1 || added[incarnation] == 0 {
					t.Errorf("node %d: %v removed %d times, added %d times", n.i, incarnation, removed[incarnation], added[incarnation])
				}
			}
		}
	}
}

// TestEveryStepOfMembershipIsHit counts the steps of a cluster's ordinary incarnation.
func TestEveryStepOfMembershipIsHit(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var all []faulty
		watched := func(i int) faulty { // with faults that count the hits of their steps, and never happen
			f := w.faulty(i)
			for _, step := range membershipSteps() {
				must(f.Add(failpoint.Fault{Kind: failpoint.Delay, Step: step, For: failpoint.Duration(time.Second), Nth: failpoint.MaxCount}))
			}
			all = append(all, f)
			return f
		}
		w.hostWith(watched(1))
		for i := 2; i <= 4; i++ {
			if _, err := w.joinWith(t.Context(), watched(i)); err != nil {
				t.Fatal(err)
			}
		}
		w.within(5*time.Second, "all see all", func() bool { return mesh(w.all) })
		w.kill(w.node(4))
		time.Sleep(2 * time.Second)
		w.kill(w.node(1))
		w.againWith(watched(1))
		w.within(10*time.Second, "all see all", func() bool { return mesh(w.all) })
		hits := map[string]uint64{}
		for _, f := range all {
			for _, r := range f.List() {
				hits[r.Fault.Step] += r.Hits
			}
		}
		for _, step := range membershipSteps() {
			if hits[step] == 0 {
				t.Errorf("%s was never hit", step)
			}
		}
	})
}

// waiting returns how many writes the disk of n has not taken.
func waiting(n *node) int {
	return n.a.Queues().DiskWrites
}

// TestADiskThatTakesNothingIsOutlived fills every disk, of the host and of a
// node, while another one wants to join.
func TestADiskThatTakesNothingIsOutlived(t *testing.T) {
	for _, mode := range []string{failpoint.DiskFull, failpoint.DiskReadOnly, failpoint.DiskSync} {
		t.Run(mode, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				f1, f2 := w.faulty(1), w.faulty(2)
				w.hostWith(f1)
				must(w.joinWith(t.Context(), f2))
				w.join(3)
				w.within(5*time.Second, "all see all", func() bool { return mesh(w.all) })
				time.Sleep(6 * time.Second) // the members are written down
				began := time.Now()
				for _, f := range []faulty{f1, f2} {
					must(f.Add(failpoint.Fault{Kind: failpoint.Disk, Disk: mode, For: failpoint.Duration(10 * time.Second)}))
				}
				f4 := w.faulty(4)
				joined := make(chan admission, 1)
				go func() { // one answer
					st, err := w.admitted(t.Context(), f4)
					joined <- admission{st, err}
				}()
				time.Sleep(3 * time.Second)
				w.kill(w.node(3)) // a removal happens all the same
				w.within(2*time.Second, "the loss is known", func() bool { return len(removals(w.node(2).since(began))) == 1 })
				if w.node(1).st.Trouble() == nil {
					t.Error("the host does not know that its disk takes nothing")
				}
				w.within(3*time.Second, "a write waits for the disk", func() bool { return waiting(w.node(1)) > 0 })
				select {
				case a := <-joined:
					t.Fatalf("a node joined a host that cannot write: %v", a.err)
				default:
				}
				if f := w.node(1).a.Err(); f != nil {
					t.Errorf("the host ended: %v", f)
				}
				time.Sleep(time.Until(began.Add(10 * time.Second)))
				a := <-joined
				w.start(4, must(a.st, a.err), f4.config)
				took := w.within(5*time.Second, "node 4 is there", func() bool { return mesh(w.all) })
				t.Logf("whole %v after the disk was well", took)
				if got := removals(w.node(2).since(began)); !slices.Equal(got, []string{"removed 2.1 crashed"}) {
					t.Errorf("removals %v, want that of node 3 alone", got)
				}
				w.within(3*time.Second, "the trouble is over", func() bool { return w.node(1).st.Maintain() == nil && waiting(w.node(1)) == 0 })
				w.kill(w.node(1)) // the decisions made meanwhile are on disk
				if got := must(w.again(1).st.Leases().All(), nil); len(got) < 3 {
					t.Errorf("leases %+v after all", got)
				}
				w.within(20*time.Second, "all see all", func() bool { return mesh(w.all) })
			})
		})
	}
}

// TestASlowDiskHoldsUpOnlyWhatIsWritten makes every file of the host and of a
// node take most of a second, while a node joins and another one is lost.
func TestASlowDiskHoldsUpOnlyWhatIsWritten(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		f1, f2 := w.faulty(1), w.faulty(2)
		w.hostWith(f1)
		must(w.joinWith(t.Context(), f2))
		w.join(3)
		w.within(5*time.Second, "all see all", func() bool { return mesh(w.all) })
		time.Sleep(6 * time.Second)
		began := time.Now()
		for _, f := range []faulty{f1, f2} {
			must(f.Add(failpoint.Fault{Kind: failpoint.Disk, Disk: failpoint.DiskSlow,
				Delay: failpoint.Duration(200 * time.Millisecond), For: failpoint.Duration(time.Minute)}))
		}
		w.join(4)
		w.within(10*time.Second, "node 4 is there", func() bool { return mesh(w.all) })
		if took := time.Since(began); took < 800*time.Millisecond || took > 15*time.Second {
			t.Errorf("a node joined after %v, want it held up, but not for long", took)
		}
		w.kill(w.node(3))
		took := w.within(5*time.Second, "the loss is known", func() bool { return len(removals(w.node(2).since(began))) == 1 })
		t.Logf("a loss was known after %v", took)
		time.Sleep(time.Minute)
		for _, i := range []int{1, 2, 4} {
			if got := removals(w.node(i).since(began)); !slices.Equal(got, []string{"removed 2.1 crashed"}) {
				t.Errorf("node %d: removals %v, want that of node 3 alone", i, got)
			}
		}
		if r := f1.List(); len(r) != 1 || r[0].Hits == 0 {
			t.Errorf("the host's disk: %+v, want that it was slow", r)
		}
	})
}

// TestAClockThatJumpsRemovesNobody lets the clocks of two nodes jump, one ahead
// and one back, for longer than every bound, and makes a third one join. They jump
// by less than a certificate is valid.
func TestAClockThatJumpsRemovesNobody(t *testing.T) {
	for _, jump := range []time.Duration{time.Hour, -time.Hour, 23 * time.Hour, -23 * time.Hour} {
		t.Run(jump.String(), func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				f1, f2 := w.faulty(1), w.faulty(2)
				w.hostWith(f1)
				must(w.joinWith(t.Context(), f2))
				w.join(3)
				w.within(5*time.Second, "all see all", func() bool { return mesh(w.all) })
				time.Sleep(2 * time.Second)
				began := time.Now()
				for f, offset := range map[faulty]time.Duration{f1: jump, f2: -jump} {
					must(f.Add(failpoint.Fault{Kind: failpoint.Clock, Offset: failpoint.Duration(offset), For: failpoint.Duration(time.Minute)}))
				}
				time.Sleep(20 * time.Second)
				w.kill(w.node(3)) // and comes back: new links, to both clocks
				time.Sleep(time.Second)
				w.again(3)
				w.within(5*time.Second, "node 3 is back", func() bool { return mesh(w.all) })
				time.Sleep(60 * time.Second)
				for i := 1; i <= 2; i++ {
					if got := removals(w.node(i).since(began)); !slices.Equal(got, []string{"removed 2.1 crashed"}) {
						t.Errorf("node %d: removals %v, want node 3's alone", i, got)
					}
				}
				for _, f := range []faulty{f1, f2} {
					if r := f.List(); len(r) != 1 || r[0].Hits == 0 || r[0].State != failpoint.Ended {
						t.Errorf("clock of node %d: %+v, want used and ended", f.i, r)
					}
				}
			})
		})
	}
}

// TestNoDescriptorsAreNoEvidence breaks the connections of a node while the
// host cannot dial: the host's lack of descriptors is no evidence about the node.
func TestNoDescriptorsAreNoEvidence(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var short atomic.Bool
		w.host(func(c *Config) {
			dial := c.Dial
			c.Dial = func(ctx context.Context, to string) (net.Conn, error) {
				if short.Load() {
					return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("socket", syscall.EMFILE)}
				}
				return dial(ctx, to)
			}
		})
		var mu sync.Mutex // guards open
		var open []net.Conn
		w.join(2, func(c *Config) {
			dial := c.Dial
			c.Dial = func(ctx context.Context, to string) (net.Conn, error) {
				conn, err := dial(ctx, to)
				if err == nil && to == dataAddr(1) {
					mu.Lock()
					open = append(open, conn)
					mu.Unlock()
				}
				return conn, err
			}
		})
		w.join(3)
		w.within(5*time.Second, "all see all", func() bool { return mesh(w.all) })
		time.Sleep(2 * time.Second)
		began := time.Now()
		short.Store(true)
		mu.Lock()
		for _, conn := range open {
			conn.Close()
		}
		mu.Unlock()
		time.Sleep(5 * time.Second)
		if !mesh(w.all) {
			t.Error("not all see all after the connections broke")
		}
		for _, n := range w.all {
			if got := removals(n.since(began)); len(got) != 0 {
				t.Errorf("node %d: %v, want no removal", n.i, got)
			}
		}
	})
}
