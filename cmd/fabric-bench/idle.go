package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// Idle is what one daemon costs that has nothing to do.
type Idle struct {
	Name string `json:"name"`
	CPU  figure `json:"cpu_pct"` // of one core
	RSS  figure `json:"rss_mb"`  // 10⁶ bytes, at the end
}

// The targets of DESIGN.md for an idle daemon of eight.
const (
	idleCPUTarget = figure(0.5) // percent of a core
	idleRSSTarget = figure(40)  // MB
)

// An idleOptions is what the flags of idle say.
type idleOptions struct {
	clusterOptions
	settling, during time.Duration
}

func (a *app) idleCommand() *cobra.Command {
	o := &idleOptions{}
	cmd := &cobra.Command{
		Use: "idle", Short: "Measure what idle daemons cost", Args: cobra.NoArgs,
		Long: `idle starts fabricd processes on loopback, lets them settle, and measures the
share of a core and the memory that each of them uses.`,
		Example: `  fabric-bench run idle --duration 30s
  fabric-bench run idle --providers tcp`,
	}
	o.flags(cmd, 8)
	f := cmd.Flags()
	f.Lookup("format").Usage = "table or json"
	f.Lookup("quiet").Usage = "accepted, as elsewhere: there is no progress to tell"
	f.DurationVar(&o.during, "duration", 20*time.Second, "how long to measure")
	f.DurationVar(&o.settling, "settle", idleSettling, "how long to wait before that")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := o.check(); err != nil {
			return err
		}
		return a.reportOn(o.format, func(d *Document) (err error) {
			if d.Idle, err = measureIdle(cmd.Context(), o); err == nil {
				d.Checks = idleChecks(d.Idle)
			}
			return err
		})
	}
	return cmd
}

func (o *idleOptions) check() error {
	switch {
	case o.format == "csv":
		return usagef("--format csv: the schema has no columns for idle; use json")
	case o.during < time.Second || o.during > time.Hour:
		return usagef("--duration %v: 1s to 1h", o.during)
	case o.settling < 0 || o.settling > time.Hour:
		return usagef("--settle %v: up to 1h", o.settling)
	}
	return o.clusterOptions.check(1)
}

// idleSettling is how long daemons are left alone before they are watched: until
// what joining has begun is over.
const idleSettling = 3 * time.Second

// measureIdle starts daemons, lets them settle, leaves them alone for a
// while and returns what each has used.
func measureIdle(ctx context.Context, o *idleOptions) (_ []Idle, err error) {
	exe, err := findFabricd(o.fabricd)
	if err != nil {
		return nil, err
	}
	runtime.LockOSThread() // see fleet
	defer runtime.UnlockOSThread()
	f, err := newFleet(ctx, exe, o.nodes, o.daemonFlags()...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.close()) }()
	if !wait(ctx, o.settling) {
		return nil, ctx.Err()
	}
	before := make([]time.Duration, o.nodes)
	began := time.Now()
	for i, d := range f.daemons {
		if before[i], err = cpuTime(d.cmd.Process.Pid); err != nil {
			return nil, err
		}
	}
	if !wait(ctx, o.during) {
		return nil, ctx.Err()
	}
	var all []Idle
	for i, d := range f.daemons {
		used, err := cpuTime(d.cmd.Process.Pid)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", d.name, err)
		}
		rss, err := residentBytes(d.cmd.Process.Pid)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", d.name, err)
		}
		share := 100 * (used - before[i]).Seconds() / time.Since(began).Seconds()
		all = append(all, Idle{d.name, figure(share), figure(float64(rss) / 1e6)})
	}
	return all, nil
}

// idleChecks compares the most expensive daemon with the targets.
func idleChecks(all []Idle) []Check {
	var cpu, rss figure
	for _, d := range all {
		cpu, rss = max(cpu, d.CPU), max(rss, d.RSS)
	}
	return []Check{
		atMost("idle daemon, the busiest", cpu, "% of a core", idleCPUTarget),
		atMost("idle daemon, the largest", rss, "MB", idleRSSTarget),
	}
}

// clockTick is the unit of the times in /proc/PID/stat: user space sees a
// hundredth of a second on every architecture.
const clockTick = 10 * time.Millisecond

// cpuTime returns the user and system time of a process.
func cpuTime(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	return parseStat(string(text))
}

// parseStat reads utime and stime, the 14th and 15th field, of
// /proc/PID/stat. The second, in parentheses, may contain anything.
func parseStat(text string) (time.Duration, error) {
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(fields) < 13 {
		return 0, fmt.Errorf("/proc/PID/stat has %d fields behind the name", len(fields))
	}
	user, err1 := strconv.ParseUint(fields[11], 10, 63)
	system, err2 := strconv.ParseUint(fields[12], 10, 63)
	return time.Duration(user+system) * clockTick, errors.Join(err1, err2)
}

// residentBytes returns the resident set of a process.
func residentBytes(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(text))
	if len(fields) < 2 {
		return 0, errors.New("/proc/PID/statm is short")
	}
	pages, err := strconv.ParseInt(fields[1], 10, 63)
	return pages * int64(os.Getpagesize()), err
}

func (t *table) idle(all []Idle) {
	if len(all) == 0 {
		return
	}
	t.title("\nIdle daemons")
	t.row("daemon", "% of a core", "RSS MB")
	for _, d := range all {
		t.row(d.Name, short(d.CPU), short(d.RSS))
	}
}
