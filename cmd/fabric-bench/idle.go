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

// Idle is what one daemon costs that has nothing to do: medians of the windows in
// which it was watched, and each.
type Idle struct {
	Name string   `json:"name"`
	CPU  figure   `json:"cpu_pct"` // of one core
	RSS  figure   `json:"rss_mb"`  // 10⁶ bytes, at the end of a window
	CPUs []figure `json:"cpu_pct_per_window"`
	RSSs []figure `json:"rss_mb_per_window"`
}

// The targets of DESIGN.md for an idle daemon of eight.
const (
	idleCPUTarget = figure(0.5) // percent of a core
	idleRSSTarget = figure(40)  // MB
)

// An idleOptions is what the flags of idle say.
type idleOptions struct {
	clusterOptions
	reps             int // windows
	settling, during time.Duration
}

func (a *app) idleCommand() *cobra.Command {
	o := &idleOptions{}
	cmd := &cobra.Command{
		Use: "idle", Short: "Measure what idle daemons cost", Args: cobra.NoArgs,
		Long: `idle starts fabricd processes on loopback, lets them settle, and measures the
share of a core and the memory that each of them uses, in several windows of time:
what counts is the median of the windows' busiest and largest.`,
		Example: `  fabric-bench run idle --duration 30s --reps 3
  fabric-bench run idle --providers tcp`,
	}
	o.flags(cmd, 8)
	f := cmd.Flags()
	f.Lookup("format").Usage = "table or json"
	f.Lookup("quiet").Usage = "accepted, as elsewhere: there is no progress to tell"
	f.IntVar(&o.reps, "reps", idleWindows, "windows")
	f.DurationVar(&o.during, "duration", idleByDefault, "how long each of them is")
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
	case o.reps < 1 || o.reps > 1000:
		return usagef("--reps %d: 1 to 1000", o.reps)
	case o.during < time.Second || o.during > time.Hour:
		return usagef("--duration %v: 1s to 1h", o.during)
	case o.settling < 0 || o.settling > time.Hour:
		return usagef("--settle %v: up to 1h", o.settling)
	}
	return o.clusterOptions.check(1)
}

// idleWindows is how often daemons are watched, for idleByDefault each.
const (
	idleWindows   = 5
	idleByDefault = 10 * time.Second
)

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
	all := make([]Idle, o.nodes)
	for range o.reps {
		if err := f.watch(ctx, o.during, all); err != nil {
			return nil, err
		}
	}
	for i := range all {
		all[i].CPU, all[i].RSS = median(all[i].CPUs), median(all[i].RSSs)
	}
	return all, nil
}

// watch leaves the daemons alone for a while and adds what each has used.
func (f *fleet) watch(ctx context.Context, during time.Duration, all []Idle) (err error) {
	before := make([]time.Duration, len(all))
	began := time.Now()
	for i, d := range f.daemons {
		if before[i], err = cpuTime(d.cmd.Process.Pid); err != nil {
			return err
		}
	}
	if !wait(ctx, during) {
		return ctx.Err()
	}
	for i, d := range f.daemons {
		used, err := cpuTime(d.cmd.Process.Pid)
		if err != nil {
			return fmt.Errorf("%s: %w", d.name, err)
		}
		rss, err := residentBytes(d.cmd.Process.Pid)
		if err != nil {
			return fmt.Errorf("%s: %w", d.name, err)
		}
		one := &all[i]
		one.Name = d.name
		one.CPUs = append(one.CPUs, figure(100*(used-before[i]).Seconds()/time.Since(began).Seconds()))
		one.RSSs = append(one.RSSs, figure(float64(rss)/1e6))
	}
	return nil
}

// mostOf returns, window by window, what the busiest daemon used of a core in
// percent, and how large the largest was in MB.
func mostOf(all []Idle) (cpu, rss Spread) {
	var cpus, rsss []figure
	for _, d := range all {
		for w := range d.CPUs {
			if w == len(cpus) {
				cpus, rsss = append(cpus, d.CPUs[w]), append(rsss, d.RSSs[w])
			}
			cpus[w], rsss[w] = max(cpus[w], d.CPUs[w]), max(rsss[w], d.RSSs[w])
		}
	}
	return spreadOf(cpus), spreadOf(rsss)
}

// idleChecks compares the most expensive daemons with the targets.
func idleChecks(all []Idle) []Check {
	cpu, rss := mostOf(all)
	return []Check{
		atMost("idle daemon, the busiest", cpu.Median, "% of a core", idleCPUTarget),
		atMost("idle daemon, the largest", rss.Median, "MB", idleRSSTarget),
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
	t.row("daemon", "% of a core: min/median/max", "RSS MB: min/median/max")
	for _, d := range all {
		t.row(d.Name, spreadOf(d.CPUs).String(), spreadOf(d.RSSs).String())
	}
}
