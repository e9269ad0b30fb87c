package failpoint

import (
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fabricd/fabricd/internal/test/bubble"
)

// An actress notes the calls of her methods.
type actress struct {
	mu      sync.Mutex
	crashes int
	frozen  []time.Duration
	free    []int
	fail    error
}

func (a *actress) Crash() { a.mu.Lock(); defer a.mu.Unlock(); a.crashes++ }

func (a *actress) Freeze(d time.Duration) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.frozen = append(a.frozen, d)
	return a.fail
}

func (a *actress) stops() []time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.frozen)
}

func (a *actress) Starve(free int) (func() error, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.free = append(a.free, free)
	return func() error { a.free = append(a.free, -1); return nil }, a.fail
}

func add(t *testing.T, n *Node, f Fault) uint64 {
	t.Helper()
	id, err := n.Add(f)
	if err != nil {
		t.Fatalf("add %v: %v", f, err)
	}
	return id
}

func report(t *testing.T, n *Node, id uint64) Report {
	t.Helper()
	all := n.List()
	i := slices.IndexFunc(all, func(r Report) bool { return r.ID == id })
	if i < 0 {
		t.Fatalf("fault %d is not in %v", id, all)
	}
	return all[i]
}

func TestNilNodeHasNoFaults(t *testing.T) {
	var n *Node
	if err := n.Hit(HelloSent); err != nil {
		t.Error(err)
	}
	if err := n.TouchDisk(DiskWrite); err != nil {
		t.Error(err)
	}
	if _, err := n.Add(Fault{Kind: Crash}); err == nil {
		t.Error("a nil node takes faults")
	}
	if d := time.Since(n.Now()); d < -time.Second || d > time.Second {
		t.Errorf("its clock is %v off", d)
	}
	if _, err := n.Clear(1); err == nil {
		t.Error("a fault of no node was cleared")
	}
	if n.SlowReceivers() || n.Dead() || n.DiskState() != nil || n.List() != nil || n.Close() != nil {
		t.Error("a nil node has faults")
	}
}

func TestNthAndTimesCountHits(t *testing.T) {
	n := New(nil)
	defer n.Close()
	id := add(t, n, Fault{Kind: Error, Step: "rma.write_copied", Nth: 3, Times: 2})
	var failed []int
	for i := 1; i <= 6; i++ {
		if err := n.Hit(WriteCopied); err != nil {
			var step *StepError
			if !errors.As(err, &step) || step.Step != WriteCopied {
				t.Errorf("error %v, want a StepError of the step", err)
			}
			failed = append(failed, i)
		}
		if n.Hit(WriteAcked) != nil {
			t.Error("another step failed")
		}
	}
	if !slices.Equal(failed, []int{3, 4}) {
		t.Errorf("hits %v failed, want 3 and 4", failed)
	}
	r := report(t, n, id)
	if r.State != Ended || r.Hits != 4 || r.Fired != 2 {
		t.Errorf("report %+v, want ended after 4 hits, fired twice", r)
	}
	if n.points[WriteCopied].Load() != nil {
		t.Error("the step still pays for a fault that has ended")
	}
}

func TestProbabilityFollowsTheSeed(t *testing.T) {
	run := func(seed uint64) (pattern []bool) {
		n := New(nil)
		defer n.Close()
		add(t, n, Fault{Kind: Error, Step: "conn.connect_sent", Times: -1, Probability: 0.3, Seed: seed})
		for range 1000 {
			pattern = append(pattern, n.Hit(ConnectSent) != nil)
		}
		return pattern
	}
	a, b, other := run(7), run(7), run(8)
	if !slices.Equal(a, b) {
		t.Error("one seed gave two patterns")
	}
	if slices.Equal(a, other) {
		t.Error("two seeds gave one pattern")
	}
	hits := 0
	for _, x := range a {
		if x {
			hits++
		}
	}
	if hits < 230 || hits > 370 {
		t.Errorf("%d of 1000 at probability 0.3", hits)
	}
}

func TestCrashHappensOnceAndKillsTheDisk(t *testing.T) {
	a := &actress{}
	n := New(a)
	defer n.Close()
	add(t, n, Fault{Kind: Crash, Step: "state.file_written"})
	if err := n.Hit(FileBegun); err != nil || n.Dead() {
		t.Fatalf("another step: %v, dead %v", err, n.Dead())
	}
	n.Hit(FileWritten)
	n.Hit(FileWritten)
	if a.crashes != 1 || !n.Dead() {
		t.Errorf("%d crashes, dead %v; want one", a.crashes, n.Dead())
	}
	for _, op := range []DiskOp{DiskWrite, DiskChange, DiskLast} {
		if err := n.TouchDisk(op); !errors.Is(err, ErrCrashed) {
			t.Errorf("disk operation %d after the crash: %v", op, err)
		}
	}
	if _, err := n.Add(Fault{Kind: Crash}); !errors.Is(err, ErrClosed) {
		t.Errorf("a dead node takes a fault: %v", err)
	}
}

func TestFreezeAndCrashAtOnceComeAfterTheAnswer(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		a := &actress{}
		n := New(a)
		id := add(t, n, Fault{Kind: Freeze, For: Duration(3 * time.Second)})
		if len(a.stops()) != 0 {
			t.Error("frozen before Add returned")
		}
		time.Sleep(answerTime + time.Millisecond)
		synctest.Wait()
		if got := a.stops(); !slices.Equal(got, []time.Duration{3 * time.Second}) {
			t.Errorf("frozen for %v, want once 3s", got)
		}
		if r := report(t, n, id); r.State != Ended || r.Fired != 1 {
			t.Errorf("report %+v", r)
		}
		a.fail = errors.New("no")
		id = add(t, n, Fault{Kind: Freeze, For: Duration(time.Second)})
		time.Sleep(answerTime + time.Millisecond)
		synctest.Wait()
		if r := report(t, n, id); r.Problem != "no" {
			t.Errorf("report %+v, want the actor's problem", r)
		}
		add(t, n, Fault{Kind: Crash})
		n.Close() // before it happened
		if a.crashes != 0 {
			t.Error("a crash that was cleared happened")
		}
	})
}

func TestDelayHoldsUpAndIsEndedByClear(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := New(nil)
		defer n.Close()
		began := time.Now()
		add(t, n, Fault{Kind: Delay, Step: "link.hello_sent", For: Duration(2 * time.Second), Times: 2})
		var wg sync.WaitGroup
		wg.Go(func() { n.Hit(HelloSent) })
		time.Sleep(time.Second)
		wg.Go(func() { n.Hit(HelloSent) })
		wg.Wait()
		if d := time.Since(began); d != 3*time.Second {
			t.Errorf("two delays of 2s, the second 1s later, took %v", d)
		}
		id := add(t, n, Fault{Kind: Delay, Step: "link.hello_sent", For: Duration(time.Minute)})
		began = time.Now()
		wg.Go(func() { n.Hit(HelloSent) })
		time.Sleep(time.Second)
		if _, err := n.Clear(id); err != nil {
			t.Error(err)
		}
		wg.Wait()
		if d := time.Since(began); d != time.Second {
			t.Errorf("a cleared delay took %v", d)
		}
	})
}

func TestArmedFaultEndsByItself(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := New(nil)
		defer n.Close()
		id := add(t, n, Fault{Kind: Error, Step: "app.attached", Within: Duration(time.Second)})
		time.Sleep(1001 * time.Millisecond)
		synctest.Wait()
		if r := report(t, n, id); r.State != Ended || r.Fired != 0 {
			t.Errorf("report %+v, want ended unused", r)
		}
		if n.Hit(AppAttached) != nil {
			t.Error("it fired after its time")
		}
	})
}

func TestClockJumpsAndComesBack(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := New(nil)
		defer n.Close()
		for _, offset := range []time.Duration{time.Hour, -24 * time.Hour} {
			id := add(t, n, Fault{Kind: Clock, Offset: Duration(offset), For: Duration(time.Minute)})
			if got := n.Now().Sub(time.Now().Round(0)); got != offset {
				t.Errorf("offset %v, want %v", got, offset)
			}
			if _, err := n.Add(Fault{Kind: Clock, Offset: 1, For: Duration(time.Minute)}); !errors.Is(err, ErrConflict) {
				t.Errorf("a second clock: %v", err)
			}
			time.Sleep(61 * time.Second)
			synctest.Wait()
			if got := time.Until(n.Now()); got != 0 {
				t.Errorf("offset %v after its time", got)
			}
			if r := report(t, n, id); r.State != Ended || r.Hits == 0 {
				t.Errorf("report %+v, want ended and used", r)
			}
		}
	})
}

func TestDiskModes(t *testing.T) {
	for _, c := range []struct {
		mode  string
		want  [3]error // of write, change, last
		state error
	}{
		{DiskFull, [3]error{syscall.ENOSPC, nil, nil}, syscall.ENOSPC},
		{DiskReadOnly, [3]error{syscall.EROFS, syscall.EROFS, nil}, syscall.EROFS},
		{DiskSync, [3]error{nil, nil, syscall.EIO}, nil},
	} {
		n := New(nil)
		id := add(t, n, Fault{Kind: Disk, Disk: c.mode, For: Duration(time.Hour)})
		for op, want := range c.want {
			if got := n.TouchDisk(DiskOp(op)); got != want {
				t.Errorf("%s: operation %d: %v, want %v", c.mode, op, got, want)
			}
		}
		if got := n.DiskState(); got != c.state {
			t.Errorf("%s: state %v, want %v", c.mode, got, c.state)
		}
		if _, err := n.Clear(id); err != nil || n.TouchDisk(DiskWrite) != nil || n.TouchDisk(DiskLast) != nil {
			t.Errorf("%s: not undone: %v", c.mode, err)
		}
		n.Close()
	}
}

func TestSlowDiskAndSlowReceiverTakeTheirTime(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := New(nil)
		defer n.Close()
		add(t, n, Fault{Kind: Disk, Disk: DiskSlow, Delay: Duration(time.Second), For: Duration(time.Hour)})
		took := func(f func()) time.Duration { began := time.Now(); f(); return time.Since(began) }
		if d := took(func() { n.TouchDisk(DiskLast) }); d != time.Second {
			t.Errorf("a slow sync took %v", d)
		}
		add(t, n, Fault{Kind: SlowReceiver, Port: 7, Delay: Duration(time.Second), For: Duration(time.Minute)})
		slow := func(port uint16) time.Duration { d, _ := n.SlowReceiver(port); return d }
		if slow(8) != 0 || slow(7) != time.Second || !n.SlowReceivers() {
			t.Error("the wrong port is slow")
		}
		add(t, n, Fault{Kind: SlowReceiver, Delay: Duration(2 * time.Second), For: Duration(time.Minute)})
		for port, want := range map[uint16]time.Duration{7: time.Second, 8: 2 * time.Second} {
			if d := slow(port); d != want {
				t.Errorf("port %d: a receive takes %v, want %v", port, d, want)
			}
		}
		_, over := n.SlowReceiver(8)
		if _, err := n.Add(Fault{Kind: SlowReceiver, Port: 7, Delay: Duration(time.Second), For: Duration(time.Minute)}); !errors.Is(err, ErrConflict) {
			t.Errorf("a second one on a port: %v", err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if slow(7) != 0 || slow(8) != 0 || n.SlowReceivers() {
			t.Error("slow after their time")
		}
		<-over
	})
}

// TestAFaultThatEndsIsGone: a receiver that the end of a fault wakes is not slow again.
func TestAFaultThatEndsIsGone(t *testing.T) {
	n := New(nil)
	defer n.Close()
	for range 10000 {
		id := add(t, n, Fault{Kind: SlowReceiver, Delay: Duration(time.Minute), For: Duration(time.Minute)})
		_, over := n.SlowReceiver(7)
		slow := make(chan bool)
		go func() { <-over; slow <- n.SlowReceivers() }()
		runtime.Gosched()
		if _, err := n.Clear(id); err != nil {
			t.Fatal(err)
		}
		if <-slow {
			t.Fatal("the fault has ended, and the receiver is slow")
		}
	}
}

func TestDescriptorsAreGivenBack(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		a := &actress{}
		n := New(a)
		defer n.Close()
		add(t, n, Fault{Kind: Descriptors, Free: 3, For: Duration(time.Second)})
		time.Sleep(1001 * time.Millisecond)
		synctest.Wait()
		if !slices.Equal(a.free, []int{3, -1}) {
			t.Errorf("starved and restored %v, want 3, then restored", a.free)
		}
	})
}

func TestFaultsAreBoundedAndOldOnesForgotten(t *testing.T) {
	n := New(nil)
	defer n.Close()
	for range MaxFaults {
		add(t, n, Fault{Kind: Error, Step: "conn.connect_sent"})
	}
	if _, err := n.Add(Fault{Kind: Error, Step: "conn.connect_sent"}); !errors.Is(err, ErrTooMany) {
		t.Errorf("one too many: %v", err)
	}
	n.Hit(ConnectSent) // all of them fire, and end
	add(t, n, Fault{Kind: Error, Step: "conn.connect_sent"})
	if len(n.List()) != MaxFaults {
		t.Errorf("%d faults, want %d", len(n.List()), MaxFaults)
	}
	if k, err := n.ClearAll(); k != 1 || err != nil {
		t.Errorf("cleared %d, want the one that had not ended: %v", k, err)
	}
	if k, err := n.ClearAll(); k != 0 || err != nil {
		t.Errorf("cleared %d again: %v", k, err)
	}
	all := n.List()
	if i := slices.IndexFunc(all, func(r Report) bool { return r.State != Ended }); len(all) != MaxFaults || i >= 0 {
		t.Errorf("%d faults are listed, and number %d has not ended", len(all), i)
	}
	for s := range n.points {
		if n.points[s].Load() != nil {
			t.Errorf("step %v still pays", Step(s))
		}
	}
}

// TestFaultsThatNeverHappenCountHits: so a test sees that a step is met.
func TestFaultsThatNeverHappenCountHits(t *testing.T) {
	n := New(nil)
	defer n.Close()
	for _, s := range []Step{HelloSent, CloseSent} {
		add(t, n, Fault{Kind: Delay, Step: s.String(), For: Duration(time.Second), Nth: MaxCount})
	}
	n.Hit(HelloSent)
	n.Hit(HelloSent)
	if all := n.List(); all[0].Hits != 2 || all[0].Fired != 0 || all[1].Hits != 0 {
		t.Errorf("%+v", all)
	}
	if _, err := n.ClearAll(); err != nil || n.points[HelloSent].Load() != nil {
		t.Errorf("the step still pays; %v", err)
	}
}

func TestEveryStepHasANameAndAMeaning(t *testing.T) {
	seen := map[string]bool{}
	for i, s := range Steps() {
		part, moment, ok := strings.Cut(s.Name, ".")
		if !ok || part == "" || moment == "" || s.Name != strings.ToLower(s.Name) || seen[s.Name] {
			t.Errorf("step %d: name %q", i+1, s.Name)
		}
		if len(s.Meaning) < 20 || strings.Contains(s.Meaning, "\n") {
			t.Errorf("step %s: meaning %q", s.Name, s.Meaning)
		}
		if got, ok := FindStep(s.Name); !ok || got != s || s.Step.String() != s.Name || int(s.Step) != i+1 {
			t.Errorf("step %s is found as %+v", s.Name, got)
		}
		seen[s.Name] = true
	}
	if len(seen) != int(stepCount)-1 {
		t.Errorf("%d steps, want %d", len(seen), stepCount-1)
	}
}

func BenchmarkHit(b *testing.B) {
	idle := New(nil)
	elsewhere := New(nil)
	if _, err := elsewhere.Add(Fault{Kind: Error, Step: "conn.connect_sent"}); err != nil {
		b.Fatal(err)
	}
	for _, c := range []struct {
		name string
		n    *Node
	}{{"nil", nil}, {"off", idle}, {"armed elsewhere", elsewhere}} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := c.n.Hit(WriteCopied); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
