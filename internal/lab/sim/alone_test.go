package sim

import (
	"errors"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/lab/history"
	"github.com/fabricd/fabricd/internal/lab/scenario"
	"github.com/fabricd/fabricd/membership/verdict"
)

// An AlonePoint is the result of a cluster of so many nodes without its host. Times are
// of the slowest node.
type AlonePoint struct {
	Nodes   int
	Idle    float64       // messages per node and second, as in ScalePoint
	Crash   time.Duration // from kill −9 of a node to NODE_REMOVED at every other node
	Silence time.Duration // from SIGSTOP to the same
	Return  time.Duration // from the start of the host to NODE_ADDED of all everywhere
	False   int           // removals of nodes that nothing was done to
}

// Alone kills the host of a cluster of so many nodes, 4 at least, and measures its
// absence: one node is killed and another one stopped for 35 s. Then the host is back,
// and with it the stopped node.
func Alone(nodes int, d scenario.Detection, seed uint64) (AlonePoint, error) {
	s := &scaleRun{w: newWorld(seed, nodes, verdict.TimingOf(string(d)), Options{}), out: &ScalePoint{}, removed: make(map[addr.Incarnation]int)}
	s.w.log.keep = s.see
	p := AlonePoint{Nodes: nodes}
	err := s.alone(&p)
	p.False = s.out.False
	return p, err
}

func (s *scaleRun) alone(p *AlonePoint) (err error) {
	w := s.w
	for _, m := range w.machines {
		w.boot(m)
	}
	if _, err = s.until("join", w.whole); err != nil {
		return err
	}
	w.until(w.now + 5*time.Second)
	lost := func(m *machine, others int) func() bool {
		s.expect = m.proc.node.self.Incarnation
		return func() bool { return s.removed[s.expect] >= others }
	}
	gone := lost(w.machines[0], nodes(w)-1)
	w.kill(w.machines[0], history.DidKill, "")
	if _, err = s.until("the host's end", gone); err != nil {
		return err
	}
	const rest = 5 * time.Second
	w.until(w.now + rest)
	before := s.sent()
	w.until(w.now + rest)
	p.Idle = float64(s.sent()-before) / float64(nodes(w)-1) / rest.Seconds()

	gone = lost(w.machines[1], nodes(w)-2)
	w.kill(w.machines[1], history.DidKill, "")
	if p.Crash, err = s.until("crash", gone); err != nil {
		return err
	}
	w.until(w.now + 3*time.Second + time.Duration(w.rng.IntN(1000))*time.Millisecond)
	victim := w.machines[nodes(w)-1]
	gone = lost(victim, nodes(w)-3)
	victim.proc.stop()
	w.gossip.changed()
	if p.Silence, err = s.until("silence", gone); err != nil {
		return err
	}
	w.until(w.now + 35*time.Second)
	if s.removed[s.expect] != nodes(w)-3 {
		return errors.New("the end of the stopped node is reported more than once")
	}
	victim.proc.proceed()
	w.gossip.changed()
	return s.comeBack(p)
}

// comeBack starts the host again. The stopped node's reports about nodes that it could
// not reach are no false removals.
func (s *scaleRun) comeBack(p *AlonePoint) (err error) {
	w, was := s.w, s.out.False
	w.until(w.now + time.Second)
	w.boot(w.machines[0])
	p.Return, err = s.until("the return of the host and the stopped node", w.whole)
	s.out.False = was
	return err
}

func nodes(w *world) int { return len(w.machines) }
