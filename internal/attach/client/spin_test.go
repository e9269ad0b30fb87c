package client

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
)

// The application's setting determines polling; without one, a machine of few processors does not
// poll.
func TestWatchingNeedsProcessors(t *testing.T) {
	for _, c := range []struct {
		tuning
		processors, want int
	}{
		{tuning{spin: -1}, 1, 0},
		{tuning{spin: -1}, 2, 0},
		{tuning{spin: -1}, smallMachine - 1, 0},
		{tuning{spin: -1}, smallMachine, spinSteps},
		{tuning{spin: -1}, 256, spinSteps},
		{tuning{spin: 0}, 256, 0},
		{tuning{spin: 7}, 1, 7},
		{tuning{spin: maxSpin}, 1, maxSpin},
		{tuning{low: true, spin: -1}, 1, lowSteps},
		{tuning{low: true, spin: -1}, 256, lowSteps},
		{tuning{low: true, spin: 7}, 1, 7},
	} {
		if got := c.maxPolls(c.processors); got != c.want {
			t.Errorf("%+v on %d processors: %d looks, want %d", c.tuning, c.processors, got, c.want)
		}
	}
	for _, low := range []bool{false, true} { // and none is none from the first wait on
		s := tuning{low: low, spin: 0}.spinner()
		if s.watch(func() bool { t.Error("it looks"); return true }, func() bool { return false }) {
			t.Error("nothing was looked at, and something seen")
		}
	}
}

// A watch with low latency yields to others, and not before an answer would have come.
func TestLowLatencyYieldsWhenNoAnswerComes(t *testing.T) {
	for _, c := range []struct {
		steps, answer, end int // looks: at most, until it sees something, until it is over
		alone              int // looks before it yields; 0: aloneSteps
		saw, turn          bool
		looks              int
		given              []int // after which looks
	}{
		{steps: lowSteps, answer: 1, saw: true, looks: 1},
		{steps: lowSteps, answer: aloneSteps, saw: true, looks: aloneSteps},
		{steps: lowSteps, answer: aloneSteps + 1, saw: true, turn: true, looks: aloneSteps + 1, given: []int{aloneSteps}},
		{steps: lowSteps, answer: aloneSteps + shareSteps + 1, saw: true, turn: true, looks: aloneSteps + shareSteps + 1, given: []int{aloneSteps, aloneSteps + shareSteps}},
		{steps: lowSteps, answer: aloneSteps + 2, saw: true, looks: aloneSteps + 2, given: []int{aloneSteps}},
		{steps: lowSteps, end: 64, looks: 64},
		{steps: lowSteps, end: aloneSteps + 1, looks: aloneSteps + shareSteps, given: []int{aloneSteps}},
		{steps: aloneSteps, looks: aloneSteps},
		{steps: aloneSteps + 10, looks: aloneSteps + 10, given: []int{aloneSteps}},
		{steps: 7, looks: 7},
		{steps: 0},
		{steps: lowSteps, alone: shareSteps, answer: shareSteps, saw: true, looks: shareSteps},
		{steps: lowSteps, alone: shareSteps, answer: 2*shareSteps + 1, saw: true, turn: true, looks: 2*shareSteps + 1, given: []int{shareSteps, 2 * shareSteps}},
	} {
		looks, given := 0, []int(nil)
		saw, turn := busyPoll(c.steps, cmp.Or(c.alone, aloneSteps), func() bool { looks++; return looks == c.answer }, func() bool { return c.end > 0 && looks >= c.end },
			func() bool { given = append(given, looks); return true })
		if saw != c.saw || turn != c.turn || looks != c.looks || !slices.Equal(given, c.given) {
			t.Errorf("%+v: saw %v (in a turn of another goroutine: %v) after %d looks, and yielded after %v", c, saw, turn, looks, given)
		}
	}
}

// A sender that runs alternately on the same processor gets it soon, as long as both are on it.
func TestLowLatencySharesAProcessor(t *testing.T) {
	s := spinner{low: true, most: lowSteps, alone: aloneSteps}
	for i, c := range []struct {
		answer int  // polls until it sees the event; 0: after another thread ran
		long   bool // the thread to which it yields runs long
		looks  int
	}{
		{answer: 5, looks: 5},
		{long: true, looks: aloneSteps + 1}, // the kernel puts them together
		{long: true, looks: shareSteps + 1},
		{long: true, looks: shareSteps + 1},
		{answer: 5, looks: 5}, // it parts them
		{long: true, looks: aloneSteps + 1},
		{answer: shareSteps + 2, looks: shareSteps + 2},
		{answer: aloneSteps + 1, looks: aloneSteps + 1}, // a short run of another thread does not count
		{answer: aloneSteps + 1, looks: aloneSteps + 1},
	} {
		looks, had := 0, false
		saw := s.busyPoll(func() bool { looks++; return had || looks == c.answer }, func() bool { return false },
			func() bool { had = c.long; return c.long })
		if !saw || looks != c.looks {
			t.Errorf("watch %d: saw %v after %d looks, want it after %d", i, saw, looks, c.looks)
		}
	}
	looks := 0
	s.busyPoll(func() bool { looks++; return false }, func() bool { return looks > 10*aloneSteps }, func() bool { return true })
	if s.shared {
		t.Error("long turns in which nobody answers: they share")
	}
}

// The sender for which a low-latency call waits may run on the only processor.
func TestLowLatencyLetsOthersRun(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	s := tuning{low: true, spin: -1}.spinner()
	var said atomic.Bool
	var other sync.WaitGroup
	other.Go(func() { said.Store(true) })
	looks := 0
	saw := s.watch(func() bool { looks++; return said.Load() }, func() bool { return false })
	other.Wait()
	// The goroutines of the test binary may come first.
	if most := 100 * shareSteps; !saw || looks > most {
		t.Errorf("saw %v after %d looks, want it within %d", saw, looks, most)
	}
}

// A process counts its processors: those of the machine, of its environment, or of its control
// group's quota.
func TestProcessorsOfAProcess(t *testing.T) {
	want := func(procs int) int { return tuning{spin: -1}.maxPolls(min(procs, runtime.NumCPU())) }
	for _, procs := range []int{1, 2, smallMachine - 1, smallMachine, 64} {
		k := startProgram(t, os.Args[0], nil, "ATTACH_TEST_SPIN=1", fmt.Sprint("GOMAXPROCS=", procs))
		if got := k.number(t, "processors"); got != int64(procs) {
			t.Fatalf("GOMAXPROCS=%d: %d", procs, got)
		}
		if got := k.number(t, "looks"); got != int64(want(procs)) {
			t.Errorf("GOMAXPROCS=%d on %d processors: %d looks, want %d", procs, runtime.NumCPU(), got, want(procs))
		}
	}
	dir := quotaGroup(t, "150000") // of 100000 in each period: one processor and a half
	if dir == "" {
		return
	}
	script := filepath.Join(t.TempDir(), "inside")
	text := fmt.Sprintf("#!/bin/sh\necho 0 >%s/cgroup.procs || exit\nunset GOMAXPROCS\nexec %s\n", dir, os.Args[0])
	if err := os.WriteFile(script, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	k := startProgram(t, script, nil, "ATTACH_TEST_SPIN=1")
	defer k.kill() // before the group
	if got := k.number(t, "processors"); got > 2 {
		t.Errorf("with a quota of one processor and a half: %d, want 2", got)
	}
	if got := k.number(t, "looks"); got != 0 {
		t.Errorf("with a quota of one processor and a half: %d looks, want none", got)
	}
}

// quotaGroup makes a control group with a quota of processor time in each 100 ms, removed when the
// test ends; "" without the permission.
func quotaGroup(t *testing.T, quota string) (dir string) {
	t.Helper()
	tree, file, text := "/sys/fs/cgroup", "cpu.max", quota+" 100000"
	if _, err := os.Stat(filepath.Join(tree, "cgroup.controllers")); err != nil {
		tree, file, text = "/sys/fs/cgroup/cpu", "cpu.cfs_quota_us", quota
	}
	dir = filepath.Join(tree, fmt.Sprintf("fabricd-attach-quota-%d", os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Logf("not tested: this machine lets nobody make control groups in %s: %v", tree, err)
		return ""
	}
	t.Cleanup(func() {
		eventually(t, "the group has no process and can be removed", func() bool {
			err := os.Remove(dir)
			return err == nil || errors.Is(err, fs.ErrNotExist)
		})
	})
	if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0); err != nil {
		t.Logf("not tested: control groups here have no quotas: %v", err)
		return ""
	}
	return dir
}
