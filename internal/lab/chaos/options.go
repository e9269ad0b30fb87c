package chaos

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/fabricd/fabricd/internal/lab/history"
	"github.com/fabricd/fabricd/internal/lab/scenario"
	"github.com/fabricd/fabricd/internal/lab/sim"
)

// Options are where and how schedules are run.
type Options struct {
	// Exe is the fabricd to run: daemons, applications and the cleaner. The
	// simulation needs none.
	Exe string
	// Image is the container image of the compose lab; empty: [DefaultImage].
	Image string
	// Version is fabricd's, for the report.
	Version string
	// File is the scenario's, for the command that repeats a run.
	File string
	// Providers is the daemons' setting in a real lab; empty: the default.
	Providers string
	// StreamsOnly: Providers leave links without packets of their own, which some
	// faults of the fault plane need ([Options.Able]).
	StreamsOnly bool
	// Parallel is how many runs a real lab makes at a time, up to
	// [MaxParallel]; 0: one.
	Parallel int
	// Load is how much of its rates a workload has in a real lab, in percent;
	// 0 and 100: all.
	Load int
	// Say reports the progress of a run to users, one line each; nil: no reports.
	Say func(line string)

	worker int               // the index of the run among those at a time
	logs   map[string][]byte // gets the output of the processes, by file
}

func (o *Options) say(format string, args ...any) {
	if o.Say != nil {
		o.Say(fmt.Sprintf(format, args...))
	}
}

func (o *Options) eases(lab scenario.Lab) bool { return o.Load%100 != 0 && lab != scenario.Sim }

// Able returns a [*Refusal] with the reason why links would not notice a fault of a
// scenario in a lab, given their data providers; nil if they would.
func (o *Options) Able(s *scenario.Scenario, lab scenario.Lab) error {
	for _, step := range s.Timeline {
		if l := step.Link; o.StreamsOnly && l != nil && l.MTU > 0 && l.Plane != "gossip" && !meetsStreams(lab, l) {
			return refusef("scenario %s: mtu: it is one of packets there, and --providers %s has streams alone", s.Name, o.Providers)
		}
	}
	return nil
}

// meetsStreams reports whether a fault of a link meets the packets of TCP in a real lab:
// the kernel's does, unless it is about the packets of links.
func meetsStreams(lab scenario.Lab, l *scenario.Link) bool {
	return lab == scenario.Netns && how(l) != byPlane && l.Plane != "link"
}

// eased returns the schedule with the load of the options, which is s if that is all.
func (o *Options) eased(s *scenario.Schedule, lab scenario.Lab) *scenario.Schedule {
	if !o.eases(lab) {
		return s
	}
	less, of := *s, *s.Scenario
	of.Workload = of.Workload.Eased(o.Load)
	less.Scenario = &of
	return &less
}

// workBeat is for how long an application of a real lab sleeps between steps of its
// workload with all of its rates: a process that wakes for each of them costs twice as
// much, on slow machines three times, and several runs share two processors.
const workBeat = 50 * time.Millisecond

// beat returns the beat of workloads in real labs. As many steps fall on it with less of
// their rates, down to a quarter.
func (o *Options) beat() time.Duration {
	if o.Load == 0 {
		return workBeat
	}
	return workBeat * 100 / time.Duration(max(o.Load, 25))
}

// command is the command line that repeats a run of s in a lab.
func (o *Options) command(s *scenario.Schedule, lab scenario.Lab) string {
	line := fmt.Sprintf("fabricd chaos run %s --on %s --seed %d", o.File, lab, s.Seed)
	if o.Providers != "" {
		line += " --providers " + o.Providers
	}
	if o.eases(lab) {
		line += fmt.Sprintf(" --load %d", o.Load)
	}
	return line
}

// A Lab is a place where schedules run, one at a time unless it is simulated.
type Lab struct {
	kind scenario.Lab
	lock *lock // nil: simulated
}

// OpenLab returns a lab. All but sim use the machine, and only one run at a
// time may: another one's makes OpenLab fail with a [*Refusal]. The caller
// closes the lab.
func OpenLab(kind scenario.Lab) (*Lab, error) {
	if !slices.Contains(scenario.Labs, kind) {
		return nil, refusef("on: %q: want one of %v", kind, scenario.Labs)
	}
	l := &Lab{kind: kind}
	if kind == scenario.Sim {
		return l, nil
	}
	var err error
	l.lock, err = takeLock(os.TempDir())
	if err != nil {
		return nil, err
	}
	return l, nil
}

// Close lets others use the machine.
func (l *Lab) Close() {
	if l.lock != nil {
		l.lock.release()
	}
}

// Kind returns which lab it is.
func (l *Lab) Kind() scenario.Lab { return l.kind }

// Run runs a schedule and returns the history. An error is the lab's own failure, or
// ctx's end, never a promise that was broken: that is in the history, which may then be
// incomplete. A [*Refusal] means that nothing was started.
func (l *Lab) Run(ctx context.Context, s *scenario.Schedule, o *Options) ([]history.Record, error) {
	if !s.Scenario.Has(l.kind) {
		return nil, refusef("scenario %s does not run on %s: it says on: %v", s.Scenario.Name, l.kind, s.Scenario.On)
	}
	if err := o.Able(s.Scenario, l.kind); err != nil {
		return nil, err
	}
	if l.kind == scenario.Sim {
		r, err := sim.Run(s, sim.Options{})
		return r.History, err
	}
	return runReal(ctx, l.kind, s, o)
}
