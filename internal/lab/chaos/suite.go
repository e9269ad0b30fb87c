package chaos

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fabricd/fabricd/internal/lab/check"
	"github.com/fabricd/fabricd/internal/lab/report"
	"github.com/fabricd/fabricd/internal/lab/scenario"
)

// A Named is a scenario and the file that it is from.
type Named struct {
	File     string
	Scenario *scenario.Scenario
}

// ReadScenarios reads the scenarios of files, and of all files *.yaml of directories.
// The error describes the faults of all of them.
func ReadScenarios(paths []string) ([]Named, error) {
	var all []Named
	var wrong error
	for _, path := range paths {
		files := []string{path}
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			if files, err = filepath.Glob(filepath.Join(path, "*.yaml")); err != nil {
				return nil, err
			}
			if len(files) == 0 {
				return nil, refusef("%s: no scenario, which would be a file *.yaml", path)
			}
		}
		for _, file := range files {
			sc, err := ReadScenario(file)
			if err != nil {
				wrong = errors.Join(wrong, err)
				continue
			}
			all = append(all, Named{file, sc})
		}
	}
	if wrong != nil {
		return nil, wrong
	}
	return all, nil
}

// A Job is one run to be made.
type Job struct {
	Named
	Seed uint64
}

// Plan returns the jobs of scenarios that run in a lab, with seeds from first
// on: count of them each, and more, all scenarios alike, until there are at
// least total jobs. Jobs of one seed are together.
func Plan(all []Named, lab scenario.Lab, first uint64, count, total int) []Job {
	var on []Named
	for _, n := range all {
		if n.Scenario.Has(lab) {
			on = append(on, n)
		}
	}
	if len(on) == 0 {
		return nil
	}
	count = max(count, (total+len(on)-1)/len(on))
	var jobs []Job
	for i := range count {
		for _, n := range on {
			jobs = append(jobs, Job{n, first + uint64(i)})
		}
	}
	return jobs
}

// RunAll runs jobs in a lab and hands each outcome to each, one at a time. Runs beside
// each other finish in any order. In a real lab the longest begin first, so that none
// of them is left over at the end, and the heavy ones beside fewer; those that disturb
// others, or that others would disturb, run last and alone, and then once more the few
// that the lab has failed. It stops when ctx is done; the runs that this cuts short are
// not handed on.
func RunAll(ctx context.Context, l *Lab, jobs []Job, opts *Options, each func(Job, *Outcome)) {
	workers := max(1, min(opts.Parallel, MaxParallel))
	if l.Kind() == scenario.Sim {
		workers = runtime.GOMAXPROCS(0)
	}
	together, alone := jobs, []Job(nil)
	if l.Kind() != scenario.Sim {
		together, alone = apart(jobs)
	}
	var again []Job
	unlessHarness := func(j Job, out *Outcome) {
		if len(jobs) > 1 && len(again) < maxAgain && l.Kind() != scenario.Sim && out.Verdict() == report.Harness {
			opts.say("%s: the lab failed, which is no result: once more, alone (%s)", j.Scenario.Name, strings.Join(out.Problems(), "; "))
			again = append(again, j)
			return
		}
		each(j, out)
	}
	runSome(ctx, l, together, workers, opts, unlessHarness)
	runSome(ctx, l, alone, 1, opts, unlessHarness)
	runSome(ctx, l, again, 1, opts, each)
}

// apart returns the jobs that may run beside others, the longest first, and those that
// have to run alone.
func apart(jobs []Job) (together, alone []Job) {
	for _, j := range jobs {
		if j.greedy() || j.weighs() {
			alone = append(alone, j)
		} else {
			together = append(together, j)
		}
	}
	slices.SortStableFunc(together, func(a, b Job) int {
		return cmp.Compare(b.Scenario.Duration, a.Scenario.Duration)
	})
	return together, alone
}

// maxAgain bounds the runs that are made once more because the lab failed: on a
// machine that is too slow for its labs more would not help.
const maxAgain = 3

// greedy reports whether a job disturbs whatever runs beside it.
func (j Job) greedy() bool {
	return slices.ContainsFunc(j.Scenario.Timeline, func(s scenario.Step) bool { return s.CPU != nil })
}

// weighs reports whether a job weighs its throughput against that before the first
// fault. Jobs that begin and end beside it change the one or the other.
func (j Job) weighs() bool {
	return slices.ContainsFunc(j.Scenario.Expect, func(e scenario.Expect) bool {
		return e.Traffic != nil && e.Traffic.Least > 0
	})
}

// largeCluster is from how many nodes on a run counts as two.
const largeCluster = 7

// weight returns as how many runs, of those that a lab makes at a time, a job counts: a
// large cluster gives the machine more to do, and a job that judges short waits needs a
// machine that is not overloaded.
func (j Job) weight(atATime int) int {
	n := 1
	if j.Scenario.Cluster.Nodes >= largeCluster {
		n++
	}
	if j.waits() {
		n++
	}
	return min(n, atATime)
}

// shortWait is less than the delays of an overloaded machine.
const shortWait = 500 * time.Millisecond

// waits reports whether a job judges the waits of nodes that no fault touches, or of
// new connections.
func (j Job) waits() bool {
	return slices.ContainsFunc(j.Scenario.Expect, func(e scenario.Expect) bool {
		return e.Traffic != nil || e.Latency != nil || e.Connects != nil && e.Connects.Within.Time() < shortWait
	})
}

// runSome runs jobs in their order, as many at a time as there are workers, in a real
// lab by their weight and while the machine has room.
func runSome(ctx context.Context, l *Lab, jobs []Job, workers int, opts *Options, each func(Job, *Outcome)) {
	idle := make(chan int, workers) // numbers of workers
	for worker := range workers {
		idle <- worker
	}
	var mu sync.Mutex // holds each to one at a time
	var wg sync.WaitGroup
	var room admission
	for _, j := range jobs {
		var taken []int
		slots := 1
		if l.Kind() != scenario.Sim {
			slots = j.weight(workers)
		}
		for range slots {
			taken = append(taken, <-idle)
		}
		leave := func() {}
		if l.Kind() != scenario.Sim {
			leave = room.enter(ctx)
		}
		if ctx.Err() != nil {
			break
		}
		wg.Go(func() {
			defer func() {
				leave()
				for _, worker := range taken {
					idle <- worker
				}
			}()
			o := *opts
			o.File, o.worker = j.File, taken[0]
			if workers > 1 && o.Say != nil {
				o.Say = func(line string) { opts.say("%s: %s", j.Scenario.Name, line) }
			}
			out := Once(ctx, l, j.Scenario.Resolve(j.Seed), &o)
			if ctx.Err() != nil && out.Err != nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			each(j, out)
		})
	}
	wg.Wait()
}

// Tallies sum up outcomes, those of each scenario in each lab. One goroutine uses them.
type Tallies struct{ all map[string]*report.Entry }

// entryOf returns the entry of an outcome's scenario in its lab.
func (t *Tallies) entryOf(out *Outcome) *report.Entry {
	sc := out.Schedule.Scenario
	key := string(out.Lab) + "/" + string(sc.Name)
	if t.all == nil {
		t.all = make(map[string]*report.Entry)
	}
	if t.all[key] == nil {
		t.all[key] = &report.Entry{Scenario: string(sc.Name), Lab: out.Lab, About: string(sc.About), Rows: sc.Rows,
			Detection: sc.Cluster.Detection, Nodes: sc.Cluster.Nodes}
	}
	return t.all[key]
}

// Add adds an outcome.
func (t *Tallies) Add(out *Outcome) {
	e := t.entryOf(out)
	e.Runs++
	switch out.Verdict() {
	case report.Green:
		e.Green++
	case report.Broken:
		e.Broken = append(e.Broken, out.Schedule.Seed)
	case report.Harness:
		e.Harness = append(e.Harness, out.Schedule.Seed)
	}
	if out.Result == nil {
		return
	}
	e.Daemons = out.Result.Begin.Paths
	e.Paths += out.Result.Paths
	for _, f := range out.Result.Figures {
		i := slices.IndexFunc(e.Figures, func(s check.Figure) bool { return s.Name == f.Name && s.Of == f.Of })
		if i < 0 {
			i = len(e.Figures)
			e.Figures = append(e.Figures, check.Figure{Name: f.Name, Of: f.Of})
		}
		sum := &e.Figures[i]
		sum.Count, sum.Why, sum.Samples = sum.Count+f.Count, f.Why, append(sum.Samples, f.Samples...)
	}
}

// Reported sets the path of the report of a run that was added, relative to the suite's.
func (t *Tallies) Reported(out *Outcome, dir string) {
	t.entryOf(out).Report = filepath.Join(dir, report.HTMLName)
}

// List returns the entries by lab and scenario, with their figures and without samples.
func (t *Tallies) List() []report.Entry {
	var all []report.Entry
	for _, of := range t.all {
		e := *of
		e.Figures = nil
		for _, f := range of.Figures {
			sum := check.NewFigure(f.Name, f.Of, f.Samples)
			sum.Count, sum.Why, sum.Samples = f.Count, f.Why, nil
			e.Figures = append(e.Figures, sum)
		}
		slices.SortFunc(e.Figures, func(a, b check.Figure) int {
			return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Of, b.Of))
		})
		slices.Sort(e.Broken)
		slices.Sort(e.Harness)
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b report.Entry) int { return cmp.Compare(a.Scenario, b.Scenario) })
	return all
}
