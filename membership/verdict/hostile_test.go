package verdict

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

// The tests of this file hold, over thousands of seeded schedules: no honest
// incarnation is removed, hidden, impersonated or blocked by what at most f
// members say, f being 1 or 2 of 3 to 32 members beside the host.
//
// A member that is hostile has a real lease, a session, and a Member that runs
// as any other; beside that it sends whatever it likes, whenever it likes. Its
// shell is its own, the host's shell is not: what a certificate, a lease or a
// signature has to prove is proved. The same schedule runs without its words
// too, the twin: what happens there as well was not done by words.

// A hostileRun is one run of a plan.
type hostileRun struct {
	w    *world
	plan plan
	out  *findings
	over bool // what still runs does nothing any more

	host    *machine
	honest  []*machine // members beside the host's own
	hostile []*machine
	bad     map[*machine]bool

	// What hostile members know, and do.
	lives   []addr.Life // ever granted
	own     map[*machine][]addr.Life
	said    map[*machine][]Message
	checks  []Check                // the newest of the host's
	keeping map[*machine]time.Time // keeps back Ack and CheckResult until then

	// What happened, and to whom.
	term       map[*proc]uint64
	troubled   map[*machine]time.Time
	told       map[*proc]bool // told in this life the end of a life that is not over
	complained map[addr.Life]bool
	known      map[addr.Life]bool // when the last outage began
	accusers   map[addr.Life]map[addr.Life]bool
	claims     []claimed
	decided    map[addr.Life]bool // ended by the host
	holder     map[addr.NodeID]*machine
	seen       map[*proc]int // events
	dead       []dead
	hostSince  time.Time // answers
	hostBooted time.Time
	stallEnds  time.Time
	ran        time.Time
	steady     map[*machine]time.Time // when it was last not served
	alone      map[*machine]time.Time // when it last had a host
	waits      map[*machine]time.Time // when it last did not wait for one
	isolated   map[*machine]bool
	last       map[*machine]*proc // that ran
	hostHidden bool               // gossip kept a silent host in the view of some
}

// A claimed is a word of a member that the host's life is over.
type claimed struct {
	at   time.Time
	life addr.Life
}

// findings takes what a run fails with instead of the test, which may have it
// run again.
type findings struct {
	testing.TB
	run      *hostileRun
	breaches []breach
}

func (f *findings) Helper() {}

// Errorf takes what a world fails with. What happens inside of a hostile
// member is its own affair.
func (f *findings) Errorf(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if f.run != nil {
		for _, m := range f.run.hostile {
			if contains(text, fmt.Sprintf(": machine %d", m.index)) || contains(text, fmt.Sprintf("is given to machine %d", m.index)) {
				return
			}
		}
		f.run.breach(broken, f.run.host, "%s", text)
	}
}

func contains(s, part string) bool {
	for i := 0; i+len(part) <= len(s); i++ {
		if s[i:i+len(part)] == part && (i+len(part) == len(s) || s[i+len(part)] < '0' || s[i+len(part)] > '9') {
			return true
		}
	}
	return false
}

func (r *hostileRun) breach(kind breachKind, m *machine, format string, args ...any) {
	if r.over {
		return
	}
	r.out.breaches = append(r.out.breaches, breach{kind, m.index, r.w.now.Sub(r.w.start), fmt.Sprintf(format, args...)})
}

// newHostileRun starts the cluster of a plan.
func newHostileRun(t testing.TB, p plan, trace bool) *hostileRun {
	out := &findings{TB: t}
	r := &hostileRun{
		w: newWorld(out, p.seed, p.honest+p.hostile), plan: p, out: out,
		bad: make(map[*machine]bool), own: make(map[*machine][]addr.Life), said: make(map[*machine][]Message), keeping: make(map[*machine]time.Time),
		term: make(map[*proc]uint64), troubled: make(map[*machine]time.Time), told: make(map[*proc]bool), complained: make(map[addr.Life]bool),
		known: make(map[addr.Life]bool), accusers: make(map[addr.Life]map[addr.Life]bool), decided: make(map[addr.Life]bool),
		holder: make(map[addr.NodeID]*machine), seen: make(map[*proc]int), steady: make(map[*machine]time.Time), waits: make(map[*machine]time.Time),
		alone: make(map[*machine]time.Time), isolated: make(map[*machine]bool), last: make(map[*machine]*proc),
	}
	out.run = r
	w := r.w
	w.trace, w.partial, w.tm.Grace = trace, p.partial, 3*time.Second
	w.tap, w.drops = r.tap, r.drops
	r.host, r.honest, r.hostile = w.machines[0], slices.Clone(w.machines[1:1+p.honest]), w.machines[1+p.honest:]
	r.hostile = slices.Clone(r.hostile)
	w.rng.Shuffle(p.honest+p.hostile, func(i, j int) { // IDs are granted in any order
		at := func(i int) **machine {
			if i < p.honest {
				return &r.honest[i]
			}
			return &r.hostile[i-p.honest]
		}
		*at(i), *at(j) = *at(j), *at(i)
	})
	for _, m := range r.hostile {
		r.bad[m] = true
	}
	w.startAll()
	r.hostSince, r.hostBooted = w.now, w.start
	for _, m := range w.machines {
		r.waits[m], r.steady[m], r.alone[m] = w.now, w.now, w.now
	}
	r.noteKnown()
	return r
}

// drops takes out of what members send what they keep back, and what the shell
// of the host would: a member that says to have reached another shows that
// one's signature, which only an answer can have brought.
func (r *hostileRun) drops(c *conn, side int, m Message) bool {
	h := c.ends[side].at
	if side == 1 || !r.bad[h] {
		return false
	}
	switch m := m.(type) {
	case Ping, Sync:
		return false
	case CheckResult:
		if r.w.now.Before(r.keeping[h]) || m.Reached && !unproven && !r.answers(h, m.Target) {
			return true
		}
	case Ack:
		if r.w.now.Before(r.keeping[h]) {
			return true
		}
	}
	if len(r.said[h]) < 64 {
		r.said[h] = append(r.said[h], m)
	}
	return false
}

// unproven lets hostile members say that they reached who did not answer.
var unproven = os.Getenv("VERDICT_UNPROVEN") != ""

// answers reports whether life answers h now.
func (r *hostileRun) answers(h *machine, life addr.Life) bool {
	o := r.w.check.owner[life]
	return o != nil && !o.dead && o.member.self == life && r.w.reaches(h, o.at)
}

// run performs the plan, with the words of hostile members or without, and
// lets the cluster rest.
func (r *hostileRun) run(words bool) {
	defer func() {
		if err := recover(); err != nil {
			r.breach(broken, r.host, "panic: %v\n%s", err, debug.Stack())
		}
		r.over = true
	}()
	w := r.w
	begin := w.now
	r.watch()
	r.watchRuns()
	end := time.Duration(0)
	for _, a := range r.plan.acts {
		end = max(end, a.at+a.long)
		if a.do.hostile() && !words {
			continue
		}
		w.run(begin.Add(a.at).Sub(w.now))
		if len(r.out.breaches) > 0 {
			return
		}
		if w.trace {
			w.t.Logf("%v -- %s", w.now.Sub(w.start), a)
		}
		r.perform(a)
	}
	w.run(begin.Add(end + 500*time.Millisecond).Sub(w.now))
	w.run(aftermath)
	r.rest()
}

// watchRuns notes when the host's process last ran.
func (r *hostileRun) watchRuns() {
	if p := r.host.proc; p != nil && !p.paused {
		r.ran = r.w.now
	}
	if !r.over {
		r.w.after(20*time.Millisecond, r.watchRuns)
	}
}

// rest demands that after all of it the honest are one cluster.
func (r *hostileRun) rest() {
	for _, m := range r.honest {
		if m.proc == nil {
			continue
		}
		v := r.w.check.views[m.proc]
		for _, o := range r.honest {
			if o == m || o.proc == nil {
				continue
			}
			l := o.proc.member.self
			if v == nil || v.self == (addr.Life{}) {
				r.breach(wasBlocked, m, "in the end it has no life")
				break
			} else if l != (addr.Life{}) && v.in[l.Node] != l.Generation {
				r.breach(wasHidden, o, "in the end machine %d does not know its life %v", m.index, l)
			}
		}
	}
}

// A result is what became of a plan.
type result struct {
	breaches   []breach
	hostHidden bool
}

// kinds returns the kinds of breaches, each once.
func (r result) kinds() []breachKind {
	var all []breachKind
	for _, b := range r.breaches {
		if !slices.Contains(all, b.kind) {
			all = append(all, b.kind)
		}
	}
	return all
}

// runPlan runs a plan, and returns what its hostile members have done.
func runPlan(t testing.TB, p plan, trace bool) result {
	r := newHostileRun(t, p, trace)
	r.run(true)
	res := result{r.out.breaches, r.hostHidden}
	if len(res.breaches) == 0 {
		return res
	}
	control := newHostileRun(t, p, false)
	control.run(false)
	res.breaches = slices.DeleteFunc(res.breaches, func(b breach) bool {
		return slices.ContainsFunc(control.out.breaches, func(o breach) bool { return o.kind == b.kind && o.machine == b.machine })
	})
	return res
}

// shrink drops acts without which the plan still fails in the same way.
func shrink(t testing.TB, p plan, kind breachKind) plan {
	fails := func(p plan) bool {
		return slices.Contains(runPlan(t, p, false).kinds(), kind)
	}
	for size := max(1, len(p.acts)/2); size > 0; size /= 2 {
		for i := 0; i < len(p.acts); {
			less := p
			less.acts = slices.Delete(slices.Clone(p.acts), i, min(i+size, len(p.acts)))
			if fails(less) {
				p = less
			} else {
				i += size
			}
		}
	}
	return p
}

// hostileSchedules returns how many schedules to run: VERDICT_HOSTILE, or few.
func hostileSchedules(t *testing.T) int {
	s := os.Getenv("VERDICT_HOSTILE")
	if s == "" {
		return fewSeeds * 5
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatalf("VERDICT_HOSTILE: %v", err)
	}
	return n
}

// maxShown is how many failing schedules are shrunk and shown.
const maxShown = 3

// A tally counts what became of many schedules.
type tally struct {
	mu         sync.Mutex
	acts       int
	hostHidden int
	failed     map[breachKind]int
	show       []plan // the first of each kind
	kinds      []breachKind
}

func (y *tally) add(p plan, res result) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.acts += len(p.acts)
	if res.hostHidden {
		y.hostHidden++
	}
	for _, kind := range res.kinds() {
		if y.failed[kind]++; y.failed[kind] == 1 && len(y.show) < maxShown {
			y.show, y.kinds = append(y.show, p), append(y.kinds, kind)
		}
	}
}

func TestHostileSchedules(t *testing.T) {
	first, n := firstSeed(t), hostileSchedules(t)
	y := tally{failed: make(map[breachKind]int)}
	next := atomic.Uint64{}
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for i := next.Add(1) - 1; i < uint64(n); i = next.Add(1) - 1 {
				p := newPlan(first + i)
				y.add(p, runPlan(t, p, false))
			}
		})
	}
	workers.Wait()
	for i, p := range y.show {
		showPlan(t, p, y.kinds[i])
	}
	line := fmt.Sprintf("hostile schedules: %d with %d acts from seed %d: honest members harmed in %d %v; a silent host counted in by gossip in %d",
		n, y.acts, first, len(y.failed), y.failed, y.hostHidden)
	if t.Log(line); len(y.failed) > 0 {
		t.Error(line)
	}
}

// showPlan fails the test with the least of a plan that still fails, and what
// happens in it.
func showPlan(t testing.TB, p plan, kind breachKind) {
	p = shrink(t, p, kind)
	for _, b := range runPlan(t, p, os.Getenv("VERDICT_TRACE") != "").breaches {
		t.Errorf("%v%v", p, b)
		break
	}
}

func TestSameHostileSeedSameRun(t *testing.T) {
	for seed := uint64(1); seed < 4; seed++ {
		sum := func(seed uint64, words bool) uint64 {
			r := newHostileRun(t, newPlan(seed), false)
			r.run(words)
			return r.w.sum
		}
		a := sum(seed, true)
		if b := sum(seed, true); a != b {
			t.Errorf("seed %d: two runs have sums %x and %x", seed, a, b)
		}
		if sum(seed, false) == a {
			t.Errorf("seed %d: the words of hostile members change nothing", seed)
		}
	}
}

// FuzzHostileSchedule reads any bytes as a schedule.
func FuzzHostileSchedule(f *testing.F) {
	f.Add([]byte{1, 2, 0, 50, 1, 0x11, 20, 1, 2, 3, 4})
	f.Add([]byte{7, 0x15, 1, 9, 240, 0x01, 90, 0, 0, 0, 1, 2, 3, 0x00, 60, 9, 9, 9, 9})
	f.Fuzz(func(t *testing.T, data []byte) {
		p := planOf(data)
		for _, kind := range runPlan(t, p, false).kinds() {
			showPlan(t, p, kind)
		}
	})
}
