package daemon

import (
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/fabricd/fabricd/internal/ipc"
	"github.com/fabricd/fabricd/internal/shm"
)

// QuotaConfig bounds what others make this node hold; deploy/quotas.md says more.
type QuotaConfig struct {
	// ConnMemory is how much memory the connections of the node may take for bytes
	// that nobody reads, in bytes; 0: half of the memory that the node may have.
	ConnMemory int64
	// Endpoints, Windows and WindowMemory, in bytes, are what one application that
	// attaches may hold; all of one user hold up to four times as much.
	Endpoints, Windows int
	WindowMemory       int64
}

// defaultQuotas are those that nothing was said about.
func defaultQuotas() QuotaConfig {
	l := ipc.SessionLimits()
	return QuotaConfig{Endpoints: int(l.Endpoints), Windows: int(l.Windows), WindowMemory: l.WindowBytes}
}

// The bounds of quotas. Descriptors bound endpoints and windows before these do,
// mostly.
const (
	maxQuota        = 1 << 20
	minConnMemory   = 1 << 20
	minWindowMemory = 4 << 10
	maxMemory       = 1 << 40
)

// autoMemory is how a quota of memory that follows the limit is written.
const autoMemory = "auto"

func quotaSettings() []Setting {
	count := func(key, usage string, field func(*Config) *int) Setting {
		return Setting{key, usage, fmt.Sprintf("a number from 1 to %d", maxQuota),
			func(c *Config, s string) bool {
				n, err := strconv.ParseUint(s, 10, 31)
				*field(c) = int(n)
				return err == nil && n >= 1 && n <= maxQuota
			},
			func(c *Config) string { return strconv.Itoa(*field(c)) }}
	}
	return []Setting{
		{"conn-memory", "memory that connections may take for messages that nobody reads",
			fmt.Sprintf("auto: half of the memory limit; or a size from %s to %s", sizeText(minConnMemory), sizeText(maxMemory)), setConnMemory,
			func(c *Config) string {
				if c.Local.Quotas.ConnMemory == 0 {
					return autoMemory
				}
				return sizeText(c.Local.Quotas.ConnMemory)
			}},
		count("app-endpoints", "endpoints that one application may have open, and all of one user four times as many",
			func(c *Config) *int { return &c.Local.Quotas.Endpoints }),
		count("app-windows", "windows that one application may have, and all of one user four times as many",
			func(c *Config) *int { return &c.Local.Quotas.Windows }),
		{"app-window-memory", "memory of the windows of one application, and of one user's four times as much",
			fmt.Sprintf("a size from %s to %s", sizeText(minWindowMemory), sizeText(maxMemory)), setWindowMemory,
			func(c *Config) string { return sizeText(c.Local.Quotas.WindowMemory) }},
	}
}

func setConnMemory(c *Config, s string) bool {
	if s == autoMemory {
		c.Local.Quotas.ConnMemory = 0
		return true
	}
	n, ok := parseSize(s, maxMemory)
	c.Local.Quotas.ConnMemory = n
	return ok && n >= minConnMemory
}

func setWindowMemory(c *Config, s string) bool {
	n, ok := parseSize(s, maxMemory)
	c.Local.Quotas.WindowMemory = n
	return ok && n >= minWindowMemory
}

// limits returns the quotas of one application, and those of one user's.
func (q QuotaConfig) limits() (app, user ipc.Limits) {
	times := func(n int64) ipc.Limits {
		return ipc.Limits{Endpoints: n * int64(q.Endpoints), Windows: n * int64(q.Windows), WindowBytes: n * q.WindowMemory}
	}
	return times(1), times(4)
}

// A fraction is a part of the memory that this process may have. The limit may change
// under way: it is looked up again when it is asked for and the last look is old.
type fraction struct {
	look func() (int64, bool) // shm.Limit
	now  func() time.Time

	mu    sync.Mutex // guards the fields below
	seen  time.Time
	bytes int64
}

const (
	partOf = 2 // half
	// lookAgain is how old the last look may be.
	lookAgain = time.Second
	// unknownLimit is the memory that a node counts on where the kernel does not say.
	unknownLimit = 4 << 30
)

// get returns it, in bytes.
func (f *fraction) get() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now := f.now(); f.seen.IsZero() || now.Sub(f.seen) >= lookAgain {
		limit, ok := f.look()
		if !ok {
			limit = unknownLimit
		}
		f.seen, f.bytes = now, limit/partOf
	}
	return f.bytes
}

// connMemory returns how much the connections of the node may take, for the engine.
func (q QuotaConfig) connMemory() func() int64 {
	if q.ConnMemory > 0 {
		return func() int64 { return q.ConnMemory }
	}
	return (&fraction{look: shm.Limit, now: time.Now}).get
}
