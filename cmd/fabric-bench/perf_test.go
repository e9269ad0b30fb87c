package main

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Where the kernel lets us count, all threads count, also those that begin
// later; elsewhere a run says why it does not.
func TestSystemCallsAreCounted(t *testing.T) {
	c, err := newCallCounter()
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return // without tracefs or the right to it; TestARunThatDoesNotCountSaysWhy
	}
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	before, err := c.count()
	if err != nil {
		t.Fatal(err)
	}
	const goroutines, each = 32, 1000
	f, err := os.Open("/dev/zero")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var all sync.WaitGroup
	for range goroutines {
		all.Go(func() {
			for range each {
				if _, err := f.Read(make([]byte, 1)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	after, err := c.count()
	if got := after - before; err != nil || got < goroutines*each || got > 2*goroutines*each {
		t.Errorf("%d calls, %v; want the %d that were made and a few", got, err, goroutines*each)
	}
}

// Root needs no mounted tracefs to count, and leaves no mount.
func TestTheTracepointIsReadFromAMountOfItsOwn(t *testing.T) {
	mounts := func() string {
		text, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	const name = "events/raw_syscalls/sys_enter/id"
	before := strings.Count(mounts(), " - tracefs ")
	text, err := readTracefs(name)
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV) || errors.Is(err, errors.ErrUnsupported) {
		return // without the right to mount, or a kernel without tracepoints
	}
	if err != nil {
		t.Fatal(err)
	}
	if n, err := strconv.Atoi(strings.TrimSpace(string(text))); err != nil || n < 1 {
		t.Errorf("%q, want a number", text)
	}
	if after := strings.Count(mounts(), " - tracefs "); after != before {
		t.Errorf("%d mounts of tracefs, and %d before", after, before)
	}
	if mounted, err := os.ReadFile("/sys/kernel/tracing/" + name); err == nil && string(mounted) != string(text) {
		t.Errorf("%q, want %q", text, mounted)
	}
}

// A thread that sleeps gives its processor up, and the numbers of a process are
// those of all its threads.
func TestContextSwitchesAreCounted(t *testing.T) {
	const text = "Name:\tx\nvoluntary_ctxt_switches:\t150\nnonvoluntary_ctxt_switches:\t7\n"
	if n, err := parseSwitches(text); n != 157 || err != nil {
		t.Errorf("%d, %v; want 157", n, err)
	}
	for _, bad := range []string{"", "voluntary_ctxt_switches:\t1\n", strings.Replace(text, "150", "x", 1)} {
		if n, err := parseSwitches(bad); err == nil {
			t.Errorf("%q: %d without an error", bad, n)
		}
	}
	cmd := exec.CommandContext(t.Context(), "sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var n int64
	var err error
	for deadline := time.Now().Add(10 * time.Second); n < 1 && err == nil && time.Now().Before(deadline); {
		n, err = switchesOf(cmd.Process.Pid) // nothing tells when it sleeps
	}
	cmd.Process.Kill()
	_ = cmd.Wait() // it was killed
	if n < 1 || err != nil {
		t.Errorf("a process that sleeps: %d, %v; want at least 1", n, err)
	}
	if _, err := switchesOf(cmd.Process.Pid); err == nil {
		t.Error("a process that is gone has context switches")
	}
}

func TestARunThatDoesNotCountSaysWhy(t *testing.T) {
	temporaries(t)
	d := document(t, "run", "msg_lat", "--provider", "mem", "--size", "64", "--iters", "20", "--reps", "1")
	if counted := d.Results[0].Syscalls.measured(); counted == (len(d.Notes) == 1) {
		t.Errorf("counted %v, notes %q", counted, d.Notes)
	}
}
