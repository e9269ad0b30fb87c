package daemon

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/test/bubble"
	"github.com/fabricd/fabricd/membership"
	"github.com/fabricd/fabricd/membership/state"
	"github.com/fabricd/fabricd/membership/trust"
)

func TestANodeThatWaitsForTheHostSaysSoOnceAMinute(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		st, err := state.Prepare(filepath.Join(t.TempDir(), "state"), "lost", state.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer st.Close()
		var log bytes.Buffer
		d := &Daemon{state: st, log: zerolog.New(&log), cfg: Config{Join: []string{"127.0.0.1:1"}}} // where nothing listens
		ctx, cancel := context.WithTimeout(t.Context(), 149500*time.Millisecond)                    // between two tries
		defer cancel()
		if err := d.joinWith(ctx, trust.Token{}); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("the join ends with %v", err)
		}
		if n := strings.Count(log.String(), "waiting for the host"); n != 3 {
			t.Errorf("it said %d times in 150 s that it waits, want 3:\n%s", n, log.String())
		}
	})
}

// TestANameThatAnotherNodeHasIsRefusedAsSuch: the error of the second node of a name
// is about the name, and says whose it is and what to do.
func TestANameThatAnotherNodeHasIsRefusedAsSuch(t *testing.T) {
	_, node := testHost(t)
	startTest(t, node("twin"))
	for _, name := range []string{"twin", "host"} {
		ctx, cancel := context.WithTimeout(t.Context(), testLimit)
		d, err := Start(ctx, node(name), Options{Log: zerolog.Nop(), Version: "test"})
		if err == nil {
			d.Close()
		}
		cancel()
		bad, ok := errors.AsType[*ConfigError](err)
		if !ok || bad.Problems[0].Field != "name" || !strings.Contains(err.Error(), "another name") || !errors.Is(err, membership.ErrName) {
			t.Errorf("a second node %q: %v, want a problem with the setting name", name, err)
		}
	}
}

func TestTheStatusOfANodeThatNeverJoinedSaysSo(t *testing.T) {
	_, node := testHost(t)
	c := node("lost")
	c.Join = []string{"127.0.0.1:1"} // where nothing listens
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if d, err := Start(ctx, c, Options{Log: zerolog.Nop(), Version: "test"}); err == nil {
			d.Close()
		}
	}()
	defer func() { cancel(); <-ended }()
	admin := NewClient(c.Local.AdminSocket)
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		st, err := admin.Status(ctx)
		if err == nil && st.State == phaseJoining && st.ID == addr.NoNode &&
			strings.Contains(st.Detail, "never joined") && strings.Contains(st.Detail, "127.0.0.1:1") {
			return
		}
		if time.Since(began) > testLimit {
			t.Fatalf("status %+v, %v, want that it never joined and where it looks for the host", st, err)
		}
	}
}

// A host that starts while a backup has its directory waits for that, and not for ever.
func TestAHostWaitsForItsLockedDirectory(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "state")
		held, err := state.Prepare(dir, "n", state.Options{})
		if err != nil {
			t.Fatal(err)
		}
		open := func() error {
			st, err := state.Open(dir, state.Options{})
			if err == nil {
				err = st.Close()
			}
			return err
		}
		began := time.Now()
		if err := whileLocked(t.Context(), 3*time.Second, open); !errors.Is(err, state.ErrLocked) || time.Since(began) != 3*time.Second {
			t.Errorf("a directory that stays locked: %v after %v, want ErrLocked after 3 s", err, time.Since(began))
		}
		time.AfterFunc(time.Second, func() { held.Close() })
		began = time.Now()
		if err := whileLocked(t.Context(), 3*time.Second, open); err != nil || time.Since(began) > 1100*time.Millisecond {
			t.Errorf("a directory that is free after a second: %v after %v", err, time.Since(began))
		}
	})
}
