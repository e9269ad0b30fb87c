package guard

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/fabricd/fabricd/internal/test/bubble"
)

// struck runs f, guarded, and returns the arguments of end.
func struck(f func()) (stack string, err error) {
	defer Recover(func(e error, s []byte) { err, stack = e, string(s) })
	f()
	return "", nil
}

func TestAPanicIsCaughtAndCounted(t *testing.T) {
	Catch(t)
	before := Caught()
	if _, err := struck(func() {}); err != nil || Caught() != before {
		t.Errorf("without a panic: %v, %d caught", err, Caught()-before)
	}
	stack, err := struck(func() { panic(errors.New("no such stream")) })
	if err == nil || err.Error() != "internal error: no such stream" || !strings.Contains(stack, "TestAPanicIsCaughtAndCounted") {
		t.Errorf("reported %v, with the stack %s", err, stack)
	}
	if Caught() != before+1 {
		t.Errorf("%d caught, want 1", Caught()-before)
	}
}

func TestAPanicIsSeenInTests(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("the panic was caught")
		}
	}()
	struck(func() { panic("seen") })
}

// TestAPanicThatLeavesALockEndsTheProcess: a goroutine that waits for the mutex would wait for
// ever.
func TestAPanicThatLeavesALockEndsTheProcess(t *testing.T) {
	const child = "GUARD_TEST_CHILD"
	if os.Getenv(child) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestAPanicThatLeavesALockEndsTheProcess$")
		cmd.Env = append(os.Environ(), child+"=1")
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), "lost key: what it struck did not end within") {
			t.Errorf("the process ended with %v: %s", err, out)
		}
		return
	}
	Catch(t)
	bubble.Test(t, func(t *testing.T) { // its clock does the waiting
		var mu sync.Mutex
		left := make(chan struct{})
		defer Recover(func(error, []byte) { <-left; mu.Lock() })
		mu.Lock()
		panic("lost key")
	})
}
