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

// The tests of this file verify, over thousands of seeded schedules: no honest
// incarnation is removed, hidden, impersonated or blocked by messages of at most f
// members, f being 1 or 2 of 3 to 32 members beside the host.
//
// A hostile member has a real lease, a session, and a Member that runs as any
// other; in addition it sends any message at any time. It controls its own
// shell, not the host's: proofs by certificate, lease or signature are checked.
// A run that harms an honest member is repeated without the hostile acts, the
// control run: harm that happens there too is not caused by them.
//
//	VERDICT_HOSTILE=20000 go test -run TestHostileSchedules   more schedules
//	VERDICT_SEED=593 VERDICT_HOSTILE=1 VERDICT_TRACE=1 ...    one, step by step
//	VERDICT_UNPROVEN=1 ...                                    CheckResults need no proof
//
// Three harms are not the failure of a run. Each follows from the limits of the
// machines' knowledge:
//
//   - An incarnation that reported the end of another one, which lives, has to begin
//     anew, or that one: it is its own report. A hostile member makes it report so by
//     not answering it while there is no host.
//   - A host that is silent stays in the view of those that gossip reports that it
//     lives: only the path to it may be lost.
//   - Where fewer honest members are left than are believed, min(3, K) and a
//     majority of K, the others can withhold their word.

// A hostileRun is one run of a plan.
type hostileRun struct {
	w    *world
	plan plan
	out  *findings
	over bool // functions that still run do nothing any more

	host   *machine
	honest []*machine // members beside the host's own
	attackers
	faultRecord
	verdictRecord
	serviceRecord
}

// attackers are the hostile members, with their knowledge.
type attackers struct {
	hostile      []*machine
	bad          map[*machine]bool  // it is one of them
	incarnations []addr.Incarnation // ever granted, to any member
	own          map[*machine][]addr.Incarnation
	sent         map[*machine][]Message
	checks       []Check                // the newest of the host's
	keeping      map[*machine]time.Time // keeps back Ack, CheckResult and Report until then
}

// A faultRecord has the effects of faults, for which no member is to blame.
type faultRecord struct {
	troubled   map[*machine]time.Time // until then, its removal is no breach
	isolated   map[*machine]bool
	dead       []dead
	hostSince  time.Time // it answers
	hostBooted time.Time
	hostRan    time.Time // its process, last
	stallEnds  time.Time
	hostHidden bool // gossip kept a silent host in the view of some
}

// A verdictRecord has the messages of members and their effects.
type verdictRecord struct {
	term       map[*proc]uint64
	reported   map[*proc]reportedEnd // since its incarnation began
	complained map[addr.Incarnation]bool
	known      map[addr.Incarnation]bool // when the last outage began
	accusers   map[addr.Incarnation]map[addr.Incarnation]bool
	claims     []claimed
	decided    map[addr.Incarnation]bool // ended by the host
	holder     map[addr.NodeID]*machine
	baited     int // honest incarnations that ended because they had reported the end of hostile ones only
}

// A serviceRecord is how members are served.
type serviceRecord struct {
	seen   map[*proc]int          // events
	last   map[*machine]*proc     // that ran
	steady map[*machine]time.Time // when it was last not served
	alone  map[*machine]time.Time // when it last had a host
	waits  map[*machine]time.Time // when it last did not wait for one
}

// A reportedEnd is which end an honest member has announced without the host.
type reportedEnd uint8

const (
	reportedNone reportedEnd = iota
	reportedHostile
	reportedHonest // or that of the host
)

// A claimed is a word of a member that the host's incarnation is over.
type claimed struct {
	at          time.Time
	incarnation addr.Incarnation
}

// findings takes the failures of a run instead of the test, which may have it
// run again.
type findings struct {
	testing.TB
	run      *hostileRun
	breaches []breach
}

func (f *findings) Helper() {}

// Errorf takes a failure of a world. Failures inside of a hostile member do not
// count.
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
	r := &hostileRun{w: newWorld(out, p.seed, p.honest+p.hostile), plan: p, out: out,
		attackers: attackers{bad: make(map[*machine]bool), own: make(map[*machine][]addr.Incarnation),
			sent: make(map[*machine][]Message), keeping: make(map[*machine]time.Time)},
		faultRecord: faultRecord{troubled: make(map[*machine]time.Time), isolated: make(map[*machine]bool)},
		verdictRecord: verdictRecord{term: make(map[*proc]uint64), reported: make(map[*proc]reportedEnd), complained: make(map[addr.Incarnation]bool),
			known: make(map[addr.Incarnation]bool), accusers: make(map[addr.Incarnation]map[addr.Incarnation]bool),
			decided: make(map[addr.Incarnation]bool), holder: make(map[addr.NodeID]*machine)},
		serviceRecord: serviceRecord{seen: make(map[*proc]int), last: make(map[*machine]*proc),
			steady: make(map[*machine]time.Time), alone: make(map[*machine]time.Time), waits: make(map[*machine]time.Time)},
	}
	out.run = r
	w := r.w
	w.trace, w.partial, w.tm.Grace = trace, p.partial, 3*time.Second
	w.tap, w.drops = r.tap, r.drops
	members := slices.Clone(w.machines[1:])
	w.rng.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
	r.host, r.honest, r.hostile = w.machines[0], members[:p.honest:p.honest], members[p.honest:]
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

// drops removes the messages that members keep back, and those that the shell of
// the host would drop: a member that claims to have reached another shows that
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
	case Ack, Report:
		if r.w.now.Before(r.keeping[h]) {
			return true
		}
	}
	if len(r.sent[h]) < 64 {
		r.sent[h] = append(r.sent[h], m)
	}
	return false
}

// unproven lets hostile members claim that they reached an incarnation that did not answer.
var unproven = os.Getenv("VERDICT_UNPROVEN") != ""

// answers reports whether incarnation answers h now.
func (r *hostileRun) answers(h *machine, incarnation addr.Incarnation) bool {
	o := r.w.check.owner[incarnation]
	return o != nil && !o.dead && o.member.self == incarnation && r.w.reaches(h, o.at)
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
		r.hostRan = r.w.now
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
			if v == nil || v.self == (addr.Incarnation{}) {
				r.breach(wasBlocked, m, "in the end it has no incarnation")
				break
			} else if l != (addr.Incarnation{}) && v.in[l.Node] != l.Generation {
				r.breach(wasHidden, o, "in the end machine %d does not know its incarnation %v", m.index, l)
			}
		}
	}
}

// A result is the outcome of a plan.
type result struct {
	breaches   []breach
	hostHidden bool
	baited     int
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

// runPlan runs a plan, and returns its outcome.
func runPlan(t testing.TB, p plan, trace bool) result {
	r := newHostileRun(t, p, trace)
	r.run(true)
	res := result{r.out.breaches, r.hostHidden, r.baited}
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

// A tally counts the outcomes of many schedules.
type tally struct {
	mu         sync.Mutex
	acts       int
	hostHidden int
	baited     int
	most       int // of them in one run
	failed     map[breachKind]int
	show       []plan // the first of each kind
	kinds      []breachKind
}

func (y *tally) add(p plan, res result) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.acts += len(p.acts)
	y.baited += res.baited
	y.most = max(y.most, res.baited)
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
	line := fmt.Sprintf("hostile schedules: %d with %d acts from seed %d: honest members harmed %v; limits: a silent host counted in by gossip in %d, %d honest incarnations ended because they gave up a hostile one that did not answer, at most %d in one schedule",
		n, y.acts, first, y.failed, y.hostHidden, y.baited, y.most)
	if t.Log(line); len(y.failed) > 0 {
		t.Error(line)
	}
}

// showPlan fails the test with the smallest part of a plan that still fails, and
// the trace of its run.
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
