package stock

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// TestMain is one member if a cluster of the tests has started this program.
func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == Command {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		err := Run(ctx, os.Args[2], os.Args[3], os.Stdout)
		stop()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func program(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return self
}

// Members that are killed and that are stopped are seen to go by all others, and
// what comes in their place is seen too.
func TestLostMembersAreSeenByAll(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c, err := Start(t.Context(), program(t), 3)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for i, strike := range []func(*os.Process) error{
		(*os.Process).Kill,
		func(p *os.Process) error { return p.Signal(syscall.SIGSTOP) },
	} {
		l, err := c.Strike(t.Context(), i, strike) // also the one that the others had joined
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("loss %d: %+v", i, l)
		if len(l.Seen) != 2 || min(l.Seen[0], l.Seen[1]) <= 0 || max(l.Seen[0], l.Seen[1]) > seeLimit {
			t.Errorf("loss %d was seen after %v, want it twice", i, l.Seen)
		}
		if len(c.members) != 3 || c.members[i].name != fmt.Sprintf("member-%d", 4+i) {
			t.Errorf("in place %d is %s", i, c.members[i].name)
		}
	}
}

// One that joins and leaves is seen to do both by all others, which stay.
func TestJoinsAreSeenByAll(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c, err := Start(t.Context(), program(t), 2)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for i := range 2 {
		j, err := c.Join(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(j.Seen) != 2 || min(j.Seen[0], j.Seen[1], j.Met) <= 0 || max(j.Seen[0], j.Seen[1], j.Met) > seeLimit {
			t.Errorf("join %d: %+v, want it seen twice", i, j)
		}
		c.Look()
		if c.Len() != 2 || c.Gone() != 2*(i+1) {
			t.Errorf("after join %d: %d members, which have seen %d go; want 2 and %d", i, c.Len(), c.Gone(), 2*(i+1))
		}
	}
}

func TestStartEndsWithItsContext(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if c, err := Start(ctx, program(t), 2); err == nil {
		c.Close()
		t.Error("a cluster has started after the end of its context")
	}
	if _, err := Start(t.Context(), "/nonexistent", 1); err == nil {
		t.Error("a program that does not exist has started")
	}
}

func TestAMemberThatEndsIsToldSo(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	m, err := startMember(program(t), "x", "127.0.0.1:1") // nobody is there to join
	if err != nil {
		t.Fatal(err)
	}
	defer m.kill()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := m.until(ctx, func() bool { return m.alive["nobody"] }); err == nil || ctx.Err() != nil {
		t.Errorf("%v, want that it has ended", err)
	}
}

func TestLinesAreCounted(t *testing.T) {
	m := &member{alive: map[string]bool{}, changed: map[string]time.Time{}}
	for _, text := range []string{"at 1.2.3.4:5", "+ a", "+ b", "- a", "+ a", "- b", "nonsense", ""} {
		m.take(line{text: text, at: time.Now()})
	}
	if m.address != "1.2.3.4:5" || !m.alive["a"] || m.alive["b"] || m.gone != 2 || len(m.changed) != 2 {
		t.Errorf("%+v", m)
	}
}
