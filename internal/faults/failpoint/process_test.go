package failpoint

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// roleEnv makes this binary a process that something is done to.
const roleEnv = "FAILPOINT_ROLE"

func TestMain(m *testing.M) {
	switch role := os.Getenv(roleEnv); role {
	case "":
		os.Exit(m.Run())
	case "ticker":
		ticker()
	case "crash":
		fmt.Println("ready")
		(&Process{}).Crash()
		fmt.Println("still here")
	default:
		fmt.Fprintln(os.Stderr, "unknown role", role)
		os.Exit(2)
	}
}

// ticker says how long it was between two ticks of two goroutines, while a
// third one makes the process stand still for 600 ms, twice.
func ticker() {
	ticks := make(chan time.Time, 4096)
	for range 2 {
		go func() {
			for t := range time.Tick(2 * time.Millisecond) {
				ticks <- t
				ticks <- time.Now()
			}
		}()
	}
	busy := make(chan struct{})
	go func() { // one that never blocks
		for x := 0; ; x++ {
			select {
			case <-busy:
				return
			default:
			}
		}
	}()
	frozen := make(chan time.Duration, 2)
	go func() {
		p := &Process{}
		for range 2 {
			time.Sleep(100 * time.Millisecond)
			began := time.Now()
			if err := p.Freeze(600 * time.Millisecond); err != nil {
				fmt.Println("error", err)
			}
			frozen <- time.Since(began)
		}
		time.Sleep(100 * time.Millisecond)
		close(busy)
		close(frozen)
	}()
	var seen []time.Time
	for stop := false; !stop; {
		select {
		case t := <-ticks:
			seen = append(seen, t)
		case d, ok := <-frozen:
			stop = !ok
			if ok {
				fmt.Println("frozen", d.Milliseconds())
			}
		}
	}
	slices.SortFunc(seen, time.Time.Compare)
	for i := 1; i < len(seen); i++ {
		if gap := seen[i].Sub(seen[i-1]); gap > 300*time.Millisecond {
			fmt.Println("gap", gap.Milliseconds())
		}
	}
	fmt.Println("end", len(seen))
}

func role(t *testing.T, name string, prefix ...string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	argv := append(prefix, exe)
	cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), roleEnv+"="+name)
	return cmd
}

// checkFreeze checks the output of a ticker.
func checkFreeze(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var frozen, gaps int
	for in := bufio.NewScanner(strings.NewReader(string(out))); in.Scan(); {
		word, n, _ := strings.Cut(in.Text(), " ")
		ms, err := strconv.Atoi(n)
		switch {
		case err != nil:
			t.Errorf("it says %q", in.Text())
		case word == "frozen" && ms >= 600 && ms < 5000:
			frozen++
		case word == "gap" && ms >= 590:
			gaps++
		case word == "end" && ms > 20:
		default:
			t.Errorf("it says %q", in.Text())
		}
	}
	if frozen != 2 || gaps != 2 {
		t.Errorf("stood still %d times, %d gaps between ticks; want 2 and 2:\n%s", frozen, gaps, out)
	}
}

func TestFreezeStopsEveryGoroutineAndEndsByItself(t *testing.T) {
	checkFreeze(t, role(t, "ticker"))
}

// asInit runs the following command as the first process of a container.
var asInit = []string{"unshare", "--pid", "--fork", "--kill-child"}

// canUnshare reports whether this user may make a PID namespace.
func canUnshare(t *testing.T) bool {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), asInit[0], append(slices.Clone(asInit[1:]), "true")...).CombinedOutput()
	if err != nil {
		t.Logf("not as the first process of a namespace: %v %s", err, out)
	}
	return err == nil
}

// TestFirstProcessOfAContainer freezes and ends a process to which the kernel
// sends neither SIGSTOP nor SIGKILL of its own.
func TestFirstProcessOfAContainer(t *testing.T) {
	if !canUnshare(t) {
		return
	}
	checkFreeze(t, role(t, "ticker", asInit...))
	out, err := role(t, "crash", asInit...).CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 137 || string(out) != "ready\n" {
		t.Errorf("crash: %v, said %q; want exit code 137", err, out)
	}
}

func TestCrashIsASIGKILL(t *testing.T) {
	out, err := role(t, "crash").CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || string(out) != "ready\n" {
		t.Fatalf("%v, said %q", err, out)
	}
	if ws := exit.Sys().(syscall.WaitStatus); !ws.Signaled() || ws.Signal() != syscall.SIGKILL {
		t.Errorf("it ended with %v, want SIGKILL", exit)
	}
}

func TestStarveLeavesExactlySoMany(t *testing.T) {
	for _, free := range []int{0, 1, 5} {
		restore, err := (&Process{}).Starve(free)
		if err != nil {
			t.Fatal(err)
		}
		var open []*os.File
		for {
			f, err := os.Open("/dev/null")
			if err != nil {
				if !errors.Is(err, syscall.EMFILE) {
					t.Errorf("open: %v, want EMFILE", err)
				}
				break
			}
			open = append(open, f)
		}
		if err := restore(); err != nil {
			t.Error(err)
		}
		if len(open) != free {
			t.Errorf("%d descriptors could be opened, want %d", len(open), free)
		}
		for _, f := range open {
			f.Close()
		}
		f, err := os.Open("/dev/null")
		if err != nil {
			t.Errorf("after the end: %v", err)
		}
		f.Close()
	}
}

func TestFirstBeyondCountsHoles(t *testing.T) {
	open := []int{0, 1, 2, 5, 6, 9}
	for free, want := range map[int]uint64{0: 3, 1: 4, 2: 7, 3: 8, 4: 10, 5: 11} {
		if got := firstBeyond(open, free); got != want {
			t.Errorf("%d free: limit %d, want %d", free, got, want)
		}
	}
}
