package chaos

import (
	"context"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// An admission lets a run of a real lab begin beside others only while the machine has
// time for it: with more to do than it can, nodes fall silent that no fault has touched.
// How much a run takes differs by more than a factor of two between machines.
type admission struct {
	running atomic.Int32 // runs
	began   time.Time    // the last of them; of the goroutine that calls enter
}

const (
	settleRun = 4 * time.Second // from the beginning of a run until its load is seen
	idleSpan  = time.Second     // over which it is seen
	idleLeast = 0.3             // of all processors, that have nothing to do
)

// hasRoom decides whether one more run may begin, by the number of others, the time
// since the last of them began, and the share of the processors that is idle.
func hasRoom(others int, since time.Duration, idle float64) bool {
	return others == 0 || since >= settleRun && idle >= idleLeast
}

// enter waits until one more run may begin, or ctx is done. leave is to be called when
// the run is over. Only one goroutine calls enter.
func (a *admission) enter(ctx context.Context) (leave func()) {
	for a.running.Load() > 0 {
		before, known := processors()
		if !known || !pause(ctx, idleSpan) {
			break
		}
		after, _ := processors()
		if hasRoom(int(a.running.Load()), time.Since(a.began), after.idleSince(before)) {
			break
		}
	}
	a.began = time.Now()
	a.running.Add(1)
	return func() { a.running.Add(-1) }
}

// A usage is the time of all processors since the machine was started, in ticks.
type usage struct{ all, idle uint64 }

// idleSince returns the share of the time since before in which they were idle.
func (u usage) idleSince(before usage) float64 {
	if u.all <= before.all || u.idle < before.idle {
		return 0
	}
	return float64(u.idle-before.idle) / float64(u.all-before.all)
}

// processors reads the usage of the processors; false where the machine does not report it.
func processors() (usage, bool) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return usage{}, false
	}
	return parseUsage(string(b))
}

// parseUsage reads the first line of /proc/stat: user, nice, system, idle, iowait, irq,
// softirq, and steal, which a hypervisor has taken. The times of virtual machines behind them are in
// the first two already.
func parseUsage(text string) (u usage, ok bool) {
	line, _, _ := strings.Cut(text, "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return usage{}, false
	}
	for i, f := range fields[1:9] {
		n, err := strconv.ParseUint(f, 10, 64)
		if err != nil {
			return usage{}, false
		}
		u.all += n
		if i == 3 || i == 4 {
			u.idle += n
		}
	}
	return u, true
}
