package daemon

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/internal/test/bubble"
)

// TestHalfFollowsTheLimit: a limit that changes under way counts from the next look on,
// which somebody has to want, and what cannot be looked up stays.
func TestHalfFollowsTheLimit(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		limit, known, looks, set := int64(64<<20), true, 0, int64(0)
		m := newConnMemory(QuotaConfig{}, func() (int64, bool) {
			looks++
			return limit, known
		}, func(limit int64) { set = limit })
		want := func(bytes int64, window int, staged int64, after int) {
			t.Helper()
			if got := m.get(); got != bytes || m.window() != window || m.stagingQuota() != staged || looks != after {
				t.Errorf("%d bytes, %d of a link, %d in pieces, after %d looks; want %d, %d, %d, %d", got, m.window(), m.stagingQuota(), looks, bytes, window, staged, after)
			}
		}
		want(32<<20, 4<<20, 8<<20, 1)
		limit = 256 << 20
		want(32<<20, 4<<20, 8<<20, 1)
		time.Sleep(lookAgain)
		want(128<<20, 16<<20, 16<<20, 2)
		if set != limit {
			t.Errorf("set %d, want %d", set, limit)
		}
		known = false
		time.Sleep(lookAgain)
		want(128<<20, 16<<20, 16<<20, 3)
	})
	m := newConnMemory(QuotaConfig{}, func() (int64, bool) { return 0, false }, nil)
	if got := m.get(); got != unknownLimit/2 {
		t.Errorf("%d bytes where nothing is known", got)
	}
}

// TestQuotasReachUsersThatHoldToThem: all of a user's applications have four times as much
// as one, and a number instead of auto does not follow anything.
func TestQuotasReachUsersThatHoldToThem(t *testing.T) {
	c, err := Load("", nil, map[string]string{"role": "host", "conn-memory": "8MiB", "app-endpoints": "10", "app-windows": "3", "app-window-memory": "1MiB", "user-descriptors": "100"})
	if err != nil {
		t.Fatal(err)
	}
	app, user := c.Local.Quotas.limits()
	if app.Endpoints != 10 || app.Windows != 3 || app.WindowBytes != 1<<20 {
		t.Errorf("an application: %+v", app)
	}
	if user.Descriptors != 100 || app.Descriptors != 0 {
		t.Errorf("descriptors: an application %d, a user %d", app.Descriptors, user.Descriptors)
	}
	if user.Endpoints != 40 || user.Windows != 12 || user.WindowBytes != 4<<20 {
		t.Errorf("a user: %+v", user)
	}
	if got := newConnMemory(c.Local.Quotas, shm.Limit, nil).get(); got != 8<<20 {
		t.Errorf("connections may take %d bytes", got)
	}
}

// docs/quotas.md says what the settings are.
func TestPageOfQuotasIsTrue(t *testing.T) {
	page, err := os.ReadFile("../../docs/quotas.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range quotaSettings() {
		allowed := strings.TrimPrefix(strings.NewReplacer(": half of the memory limit; or a size from", ",", ": three quarters of what other users leave; or a number from", ",", "a size from ", "", "a number from ", "").Replace(s.Allowed), " ")
		if want := fmt.Sprintf("| `%s` | %s | %s |", s.Key, s.Value(Default()), allowed); !strings.Contains(string(page), want) {
			t.Errorf("docs/quotas.md has no row %q", want)
		}
	}
}
