package daemon

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// TestHalfFollowsTheLimit: a limit that changes under way counts from the next
// look on, and looks are not made for each connection.
func TestHalfFollowsTheLimit(t *testing.T) {
	now, limit, known, looks := time.Unix(100, 0), int64(64<<20), true, 0
	f := &fraction{now: func() time.Time { return now }, look: func() (int64, bool) {
		looks++
		return limit, known
	}}
	want := func(bytes int64, after int) {
		t.Helper()
		if got := f.get(); got != bytes || looks != after {
			t.Errorf("got %d after %d looks, want %d after %d", got, looks, bytes, after)
		}
	}
	want(32<<20, 1)
	limit = 32 << 20
	want(32<<20, 1)
	now = now.Add(lookAgain)
	want(16<<20, 2)
	now, known = now.Add(lookAgain), false
	want(unknownLimit/2, 3)
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
	if got := c.Local.Quotas.connMemory()(); got != 8<<20 {
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
