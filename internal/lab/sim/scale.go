package sim

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/faults"
	"github.com/fabricd/fabricd/internal/lab/history"
	"github.com/fabricd/fabricd/internal/lab/scenario"
	"github.com/fabricd/fabricd/membership/verdict"
)

// A ScalePoint is the result of a cluster of so many nodes, over several seeds. Times
// are of the slowest node.
type ScalePoint struct {
	Nodes int `json:"nodes"`
	Runs  int `json:"runs"`

	// Join is from the moment in which all nodes but the host start at once to the
	// moment in which every node knows every other.
	Join Spread `json:"join"`
	// Crash is from kill −9 of a node, Silence from the last packet of one that is cut
	// off, to NODE_REMOVED at every other node.
	Crash   Spread `json:"crash"`
	Silence Spread `json:"silence"`
	// Return is from the start of the killed node to NODE_ADDED at every node.
	Return Spread `json:"return"`

	// Messages on control sessions and lifelines, keepalives included: per
	// node and second in a cluster where nothing happens, at the host the same,
	// and per node in the whole join storm. Gossip is not among them: package gossip counts its own.
	Idle     float64 `json:"idle"`
	IdleHost float64 `json:"idle_host"`
	Storm    float64 `json:"storm"`
	// False counts the removals of nodes that nothing was done to.
	False int `json:"false"`
}

// A Spread is the middle and the worst of some times.
type Spread struct {
	P50 time.Duration `json:"p50"`
	Max time.Duration `json:"max"`
}

func spread(all []time.Duration) Spread {
	if len(all) == 0 {
		return Spread{}
	}
	slices.Sort(all)
	return Spread{P50: all[len(all)/2], Max: all[len(all)-1]}
}

// scaleLimit is how long each part of a scale run may take.
const scaleLimit = time.Minute

// Scale measures a cluster of so many nodes, 2 at least, runs times, with the seeds
// from first on.
func Scale(nodes int, d scenario.Detection, first uint64, runs int) (ScalePoint, error) {
	out := ScalePoint{Nodes: nodes, Runs: runs}
	var join, crash, silence, back []time.Duration
	for seed := first; seed < first+uint64(runs); seed++ {
		s := &scaleRun{w: newWorld(seed, nodes, verdict.TimingOf(string(d)), Options{}), out: &out, removed: make(map[addr.Incarnation]int)}
		s.w.log.keep = s.see
		if err := s.run(); err != nil {
			return out, fmt.Errorf("%d nodes, seed %d: %w", nodes, seed, err)
		}
		join, crash = append(join, s.join), append(crash, s.crash)
		silence, back = append(silence, s.silence), append(back, s.back)
	}
	out.Join, out.Crash, out.Silence, out.Return = spread(join), spread(crash), spread(silence), spread(back)
	out.Idle /= float64(runs)
	out.IdleHost /= float64(runs)
	out.Storm /= float64(runs)
	return out, nil
}

// A scaleRun is one run of Scale.
type scaleRun struct {
	w       *world
	out     *ScalePoint
	join    time.Duration
	crash   time.Duration
	silence time.Duration
	back    time.Duration
	removed map[addr.Incarnation]int // how many nodes were notified of the end of an incarnation
	expect  addr.Incarnation         // the incarnation whose end is to be reported
}

// see follows the events without keeping them.
func (s *scaleRun) see(r history.Record) bool {
	if e, ok := r.Body.(*history.Event); ok && e.What == history.EventRemoved {
		s.removed[e.Subject]++
		if e.Subject != s.expect && e.Observer != s.expect {
			s.out.False++
		}
	}
	return false
}

// until lets time pass until cond holds, and returns how long that took.
func (s *scaleRun) until(what string, cond func() bool) (time.Duration, error) {
	began := s.w.now
	for !cond() {
		if s.w.now-began > scaleLimit {
			return 0, errors.New(what + ": not within " + scaleLimit.String())
		}
		s.w.until(s.w.now + time.Millisecond)
	}
	return s.w.now - began, nil
}

func (s *scaleRun) run() (err error) {
	w := s.w
	w.boot(w.machines[0])
	w.until(time.Second)
	for _, m := range w.machines[1:] {
		w.boot(m)
	}
	if s.join, err = s.until("join", w.whole); err != nil {
		return err
	}
	before := s.sent()
	s.out.Storm += float64(before) / float64(len(w.machines))
	const rest = 5 * time.Second
	w.until(w.now + rest)
	before, host := s.sent(), w.machines[0].proc.agent.sent
	w.until(w.now + rest)
	s.out.Idle += float64(s.sent()-before) / float64(len(w.machines)) / rest.Seconds()
	s.out.IdleHost += float64(w.machines[0].proc.agent.sent-host) / rest.Seconds()
	return s.losses()
}

// losses kills a node, starts it again, and cuts another one off.
func (s *scaleRun) losses() (err error) {
	w := s.w
	others := len(w.machines) - 1
	victim := w.machines[1+w.rng.IntN(others)]
	s.expect = victim.proc.node.self.Incarnation
	w.kill(victim, history.DidKill, "")
	gone := func() bool { return s.removed[s.expect] >= others }
	if s.crash, err = s.until("crash", gone); err != nil {
		return err
	}
	w.boot(victim)
	if s.back, err = s.until("return", w.whole); err != nil {
		return err
	}
	w.until(w.now + 2*time.Second)
	victim = w.machines[1+w.rng.IntN(others)]
	s.expect = victim.proc.node.self.Incarnation
	all := make([]int, len(w.machines))
	for i := range all {
		all[i] = i
	}
	for _, way := range [][2][]int{{{victim.index}, all}, {all, {victim.index}}} {
		w.net.add(faults.Rule{On: faults.All, Cut: true}, way[0], way[1])
	}
	w.gossip.changed()
	s.silence, err = s.until("silence", gone)
	return err
}

// sent counts the messages of all nodes.
func (s *scaleRun) sent() (n uint64) {
	for _, m := range s.w.machines {
		if m.proc != nil {
			n += m.proc.agent.sent
		}
	}
	return n
}
