package sim

import (
	"fmt"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/lab/scenario"
	"github.com/fabricd/fabricd/membership/verdict"
)

// Revoke measures, as many times as runs says and with the seeds from first on,
// how long it takes in a cluster of so many nodes from the command that bans one
// of them, at the host, to the moment in which every other node has handled its
// removal and holds no link, lifeline or session of it any more. Before, every
// node has a link with the banned one.
func Revoke(nodes int, d scenario.Detection, first uint64, runs int) (Spread, error) {
	var took []time.Duration
	for seed := first; seed < first+uint64(runs); seed++ {
		s := &scaleRun{w: newWorld(seed, nodes, verdict.TimingOf(string(d)), Options{}), out: &ScalePoint{}, removed: make(map[addr.Incarnation]int)}
		s.w.log.keep = s.see
		one, err := s.revoke()
		if err != nil {
			return Spread{}, fmt.Errorf("%d nodes, seed %d: %w", nodes, seed, err)
		}
		if s.out.False != 0 {
			return Spread{}, fmt.Errorf("%d nodes, seed %d: %d removals of nodes that are not banned", nodes, seed, s.out.False)
		}
		took = append(took, one)
	}
	return spread(took), nil
}

func (s *scaleRun) revoke() (time.Duration, error) {
	w := s.w
	w.boot(w.machines[0])
	w.until(time.Second)
	for _, m := range w.machines[1:] {
		w.boot(m)
	}
	if _, err := s.until("join", w.whole); err != nil {
		return 0, err
	}
	w.until(w.now + 2*time.Second)
	banned := w.machines[1+w.rng.IntN(len(w.machines)-1)]
	key := verdict.Start{UUID: banned.disk.uuid, Epoch: banned.proc.epoch}
	s.expect = banned.proc.node.self.Incarnation
	answers := 0
	for _, m := range w.machines {
		if m != banned {
			m.proc.node.ping(s.expect.Node, func(reached bool) {
				if reached {
					answers++
				}
			})
		}
	}
	others := len(w.machines) - 1
	if _, err := s.until("links", func() bool { return answers == others }); err != nil {
		return 0, err
	}
	w.until(w.now + time.Duration(w.rng.Int64N(int64(time.Second))))
	w.machines[0].proc.agent.ban(key.UUID)
	took, err := s.until("ban", func() bool { return s.removed[s.expect] == others && s.free(banned, key) })
	if err != nil {
		return 0, err
	}
	w.until(w.now + 5*time.Second)
	if s.removed[s.expect] != others || !s.free(banned, key) {
		return 0, fmt.Errorf("node %v came back after its ban", s.expect)
	}
	return took, nil
}

// free reports whether no other node holds anything of a start of m.
func (s *scaleRun) free(m *machine, key verdict.Start) bool {
	for _, o := range s.w.machines {
		if o != m && o.proc.holds(key) {
			return false
		}
	}
	return true
}

// holds reports whether the process has a link, a lifeline or a session of a node.
func (p *proc) holds(key verdict.Start) bool {
	for _, l := range p.node.links {
		if l.peer.UUID == key.UUID {
			return true
		}
	}
	for _, peer := range p.agent.peers {
		if peer.uuid == key.UUID {
			return true
		}
	}
	l := p.agent.lines.Find(key)
	return l != nil && l.up != nil
}

// ban ends the incarnation of a node for good: its identity is not admitted any more.
func (a *agent) ban(u addr.UUID) {
	a.banned[u] = true
	a.feedHost(verdict.Expel{UUID: u, Reason: verdict.ReasonBanned})
}
