package daemon

import (
	"sync/atomic"
	"time"

	"github.com/fabricd/fabricd/internal/attach/server"
)

// QuotaConfig bounds the resources that others make this node hold; see docs/quotas.md.
type QuotaConfig struct {
	// ConnMemory is how much memory the connections of the node may take for unread bytes, in
	// bytes; 0: half of the memory that the node may have.
	ConnMemory int64
	// Endpoints, Windows and WindowMemory, in bytes, bound one application that attaches; all of
	// one user hold up to four times as much.
	Endpoints, Windows int
	WindowMemory       int64
	// UserDescriptors are how many descriptors of this process all applications of one user may
	// hold, beside paths; 0: three quarters of those that other users leave.
	UserDescriptors int
}

// defaultQuotas are those that nothing was said about.
func defaultQuotas() QuotaConfig {
	l := server.SessionLimits()
	return QuotaConfig{Endpoints: int(l.Endpoints), Windows: int(l.Windows), WindowMemory: l.WindowBytes}
}

// The bounds of quotas. Descriptors bound endpoints and windows before these do,
// mostly.
const (
	maxQuota        = 1 << 20
	minConnMemory   = 1 << 20
	minWindowMemory = 4 << 10
	minDescriptors  = 16
	maxMemory       = 1 << 40
)

func quotaSettings() []Setting {
	return []Setting{
		bytesOf("conn-memory", "memory that connections may take for unread messages",
			"half of the memory limit", minConnMemory, maxMemory, func(c *Config) *int64 { return &c.Local.Quotas.ConnMemory }),
		number("app-endpoints", "endpoints that one application may have open, and all of one user four times as many",
			"", 1, maxQuota, func(c *Config) *int { return &c.Local.Quotas.Endpoints }),
		number("app-windows", "windows that one application may have, and all of one user four times as many",
			"", 1, maxQuota, func(c *Config) *int { return &c.Local.Quotas.Windows }),
		bytesOf("app-window-memory", "memory of the windows of one application, and of one user's four times as much",
			"", minWindowMemory, maxMemory, func(c *Config) *int64 { return &c.Local.Quotas.WindowMemory }),
		number("user-descriptors", "descriptors of fabricd that all applications of one user may hold, beside those of paths",
			"three quarters of what other users leave", minDescriptors, maxQuota, func(c *Config) *int { return &c.Local.Quotas.UserDescriptors }),
	}
}

// limits returns the quotas of one application, and those of one user's.
func (q QuotaConfig) limits() (app, user server.Limits) {
	times := func(n int64) server.Limits {
		return server.Limits{Endpoints: n * int64(q.Endpoints), Windows: n * int64(q.Windows), WindowBytes: n * q.WindowMemory}
	}
	app, user = times(1), times(4)
	user.Descriptors = int64(q.UserDescriptors)
	return app, user
}

// connMemory is how much memory connections may take, in bytes: half of this
// process's limit, if the setting has none. That may change under way, so it is
// looked up again when it is asked for and the last look is old: a node with nothing to
// do does not wake for it.
type connMemory struct {
	look  func() (int64, bool) // shm.Limit; nil: the setting says, and Go has the limit of the start
	found func(limit int64)    // gets the limit that look has found; nil: not used

	bytes   atomic.Int64
	seen    atomic.Int64 // when it was looked up, in nanoseconds since born
	born    time.Time
	looking atomic.Bool // a goroutine looks: others take the last value
}

const (
	partOf = 2 // half
	// lookAgain is how old the last look may be.
	lookAgain = 2 * time.Second
	// unknownLimit is the memory that a node counts on where the kernel reports none.
	unknownLimit = 4 << 30
)

func newConnMemory(q QuotaConfig, look func() (int64, bool), found func(int64)) *connMemory {
	m := &connMemory{look: look, found: found, born: time.Now()}
	m.take()
	if q.ConnMemory > 0 {
		m.look = nil
		m.bytes.Store(q.ConnMemory)
	}
	return m
}

// get returns it.
func (m *connMemory) get() int64 {
	if m.look != nil && int64(time.Since(m.born))-m.seen.Load() >= int64(lookAgain) && m.looking.CompareAndSwap(false, true) {
		m.take()
		m.looking.Store(false)
	}
	return m.bytes.Load()
}

func (m *connMemory) take() {
	limit, ok := m.look()
	m.seen.Store(int64(time.Since(m.born)))
	switch {
	case ok:
		m.bytes.Store(limit / partOf)
		if m.found != nil {
			m.found(limit)
		}
	case m.bytes.Load() == 0: // else the last one holds: descriptors may be short, say
		m.bytes.Store(unknownLimit / partOf)
	}
}

// window is how many unread bytes one link may hold. Providers get its value at the start.
func (m *connMemory) window() int {
	return int(min(max(m.get()/8, 4<<20), 64<<20))
}

// stagingQuota is how many bytes the node holds for transfers from and to plain memory of
// applications.
func (m *connMemory) stagingQuota() int64 { return max(m.get()/8, minStagingQuota) }

// minStagingQuota has room for the pieces of a few applications, of at most 1 MiB each.
const minStagingQuota = 8 << 20
