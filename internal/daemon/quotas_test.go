package daemon

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fabricd/fabricd/internal/bubble"
)

// TestHalfFollowsTheLimit: a limit that changes under way counts from the next look on.
func TestHalfFollowsTheLimit(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var limit atomic.Int64 // 0: unknown
		limit.Store(64 << 20)
		look := func() (int64, bool) { return limit.Load(), limit.Load() > 0 }
		m := newConnMemory(QuotaConfig{}, look)
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		wg.Go(func() { m.follow(ctx, look) })
		want := func(bytes int64, window int, staged int64) {
			t.Helper()
			synctest.Wait()
			if got := m.bytes.Load(); got != bytes || m.window() != window || m.staged() != staged {
				t.Errorf("%d bytes, %d of a link, %d in pieces; want %d, %d, %d", got, m.window(), m.staged(), bytes, window, staged)
			}
		}
		want(32<<20, 4<<20, 8<<20)
		limit.Store(256 << 20)
		want(32<<20, 4<<20, 8<<20)
		time.Sleep(lookAgain)
		want(128<<20, 16<<20, 16<<20)
		limit.Store(0)
		time.Sleep(lookAgain)
		want(128<<20, 16<<20, 16<<20) // the last one that was known
		cancel()
		wg.Wait()
	})
}

// TestQuotasReachWhoHoldsToThem: all of a user's applications have four times as much
// as one, and a number instead of auto does not follow anything.
func TestQuotasReachWhoHoldsToThem(t *testing.T) {
	c, err := Load("", nil, map[string]string{"role": "host", "conn-memory": "8MiB", "app-endpoints": "10", "app-windows": "3", "app-window-memory": "1MiB"})
	if err != nil {
		t.Fatal(err)
	}
	app, user := c.Local.Quotas.limits()
	if app.Endpoints != 10 || app.Windows != 3 || app.WindowBytes != 1<<20 {
		t.Errorf("an application: %+v", app)
	}
	if user.Endpoints != 40 || user.Windows != 12 || user.WindowBytes != 4<<20 {
		t.Errorf("a user: %+v", user)
	}
	if got := newConnMemory(c.Local.Quotas, nil).bytes.Load(); got != 8<<20 {
		t.Errorf("connections may take %d bytes", got)
	}
}

// deploy/quotas.md says what the settings say.
func TestPageOfQuotasIsTrue(t *testing.T) {
	page, err := os.ReadFile("../../deploy/quotas.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range quotaSettings() {
		allowed := strings.TrimPrefix(strings.NewReplacer(": half of the memory limit; or a size from", ",", "a size from ", "", "a number from ", "").Replace(s.Allowed), " ")
		if want := fmt.Sprintf("| `%s` | %s | %s |", s.Key, s.Value(Default()), allowed); !strings.Contains(string(page), want) {
			t.Errorf("deploy/quotas.md has no row %q", want)
		}
	}
}
