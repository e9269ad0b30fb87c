package verdict

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

// A Member is one node's view of the cluster. The package doc describes its use.
// Owned by one goroutine.
type Member struct {
	cfg MemberConfig
	t   Timing

	stage      stage
	self       addr.Incarnation // our incarnation; the zero Incarnation while we have none
	since      time.Time        // of self
	unnotified bool             // our handlers do not know self yet: its first table is under way
	local      bool             // previous is shown to the applications of this machine
	unwanted   bool             // a host does not want this node, so previous is not shown again
	previous   addr.Incarnation // the newest incarnation before self
	lease      []byte           // signed, of self, or of previous while there is no self
	term       uint64           // the highest accepted

	session hostSession
	host    hostView

	// The table.
	synced  bool // it follows the host's versions
	version uint64
	behind  int // pongs in a row that knew a newer version
	parts   []Entry
	peers   map[addr.NodeID]*peer     // all other incarnations, as reported to our handlers
	watched map[addr.Incarnation]bool // of peers; nil: they have changed
	over    map[addr.NodeID]addr.Generation
	pending map[addr.Incarnation]bool // removed; the handlers have not returned yet

	probes map[uint64]probe
	probed uint64 // nonce of the newest Probe

	clock stallClock
	out   out
}

// A stage is how far a Member has come with the host.
type stage uint8

const (
	seeking   stage = iota // no session
	asking                 // a Join or Resume is sent
	serving                // granted on this session
	departing              // a Leave is sent
	done                   // departed or halted; nothing is answered any more
)

// A peer is another incarnation.
type peer struct {
	node   Node
	link   Evidence // of our own link; 0: none, or nothing bad
	gossip GossipState

	reported   Evidence // last sent to the host; 0: nothing bad
	reportedAt time.Time

	probe  uint64    // nonce of the running probe; 0: none
	failed bool      // the last probe failed, and nothing good came since
	tried  time.Time // when the last probe ended
	asked  time.Time // when the first of the probes that failed in a row began

	doubted bool      // a watcher doubts it, and it has not answered us since
	looked  time.Time // when we last looked because of that
}

// A probe is a Probe that is not answered yet.
type probe struct {
	incarnation addr.Incarnation
	deadline    time.Time
	check       uint64 // nonce of the host's Check; 0: our own question
}

// maxProbes bounds the probes that run at once. Beyond it a Check is not
// answered, which the host takes for "not reached, by this node".
const maxProbes = 1024

// NewMember returns a Member that seeks its host. It fails if the
// configuration breaks a rule of its type.
func NewMember(cfg MemberConfig, now time.Time) (*Member, error) {
	if err := cfg.Self.check(); err != nil {
		return nil, fmt.Errorf("member: %w", err)
	}
	if cfg.Want >= addr.FirstReserved {
		return nil, fmt.Errorf("member: %w", errNoID(cfg.Want))
	}
	m := &Member{
		cfg:      cfg,
		t:        cfg.Timing.withDefaults(),
		previous: cfg.Previous,
		lease:    cfg.Lease,
		term:     cfg.Term,
		session:  hostSession{dialAt: now},
		host:     hostView{lastSeen: now},
		peers:    make(map[addr.NodeID]*peer),
		over:     make(map[addr.NodeID]addr.Generation),
		pending:  make(map[addr.Incarnation]bool),
		probes:   make(map[uint64]probe),
	}
	m.clock.tick(now)
	return m, nil
}

// Step feeds one input to the member at time now and returns the actions for the
// shell, in order. The caller owns the returned slice.
func (m *Member) Step(now time.Time, in MemberInput) []Action {
	if m.stage == done {
		return nil
	}
	if by := m.clock.late(now, m.t); by > 0 {
		m.stoodStill(now, by)
	}
	switch in := in.(type) {
	case Tick:
		m.tick(now)
	case Connected:
		m.connected(now, in.Session)
	case DialFailed:
		m.dialFailed(now, in)
	case Received:
		m.receive(now, in)
	case Down:
		m.down(now, in)
	case Link:
		m.linkSays(now, in)
	case Gossip:
		m.takeGossip(now, in)
	case Doubt:
		m.doubted(now, in)
	case Probed:
		m.probeSays(now, in)
	case Handled:
		m.handled(in.Incarnation)
	case Depart:
		m.depart(now)
	}
	return m.out.take()
}

// tick does the work that is due by time alone.
func (m *Member) tick(now time.Time) {
	m.clock.tick(now)
	m.tickRequest(now)
	if m.stage == done {
		return
	}
	m.tickProbes(now)
	m.tickHost(now)
	if m.stage == serving && now.Sub(m.session.pinged) >= m.t.Heartbeat-m.t.Tick/2 {
		m.ping(now) // the next Tick may come too late
	}
	m.judge(now)
	if m.stage != departing {
		m.dial(now)
	}
}

// stoodStill discards all evidence of the time in which this process did not run:
// messages that others seem not to have sent, we did not read.
func (m *Member) stoodStill(now time.Time, by time.Duration) {
	m.note("this process stood still for %v; gossip and silences of that time are discarded", by.Round(time.Millisecond))
	m.host.stoodStill(now, m.t)
	m.session.stoodStill(now, m.t)
	m.forgetEvidence()
	m.out.add(Revalidate{})
	if m.stage == serving {
		m.ping(now)
		m.host.confirm = m.session.nonce
	}
}

// forgetEvidence makes every peer unsuspected, and probes start over.
func (m *Member) forgetEvidence() {
	for _, p := range m.sorted() {
		p.link, p.gossip, p.failed, p.probe, p.doubted = 0, GossipUnknown, false, 0, false
		p.reported = 0
		m.showState(p)
	}
	for nonce, q := range m.probes {
		if q.check == 0 {
			delete(m.probes, nonce)
		}
	}
}

// depart sends the leave message, and waits a little for the answer.
func (m *Member) depart(now time.Time) {
	if m.stage != serving {
		m.finish(Departed{})
		return
	}
	m.send(Leave{Incarnation: m.self})
	m.stage, m.session.deadline = departing, now.Add(m.t.Check)
}

// finish ends the machine with its last action.
func (m *Member) finish(last Action) {
	m.out.add(last)
	m.stage = done
}

// sorted returns the peers in order of ID.
func (m *Member) sorted() []*peer {
	all := make([]*peer, 0, len(m.peers))
	for _, id := range slices.Sorted(maps.Keys(m.peers)) {
		all = append(all, m.peers[id])
	}
	return all
}

// Self returns this node as others see it. Its Incarnation is the zero Incarnation while it
// has none.
func (m *Member) Self() Node {
	n := m.cfg.Self.node(m.self)
	n.Since = m.since
	if m.stage == departing {
		n.State = Leaving
	}
	return n
}

// Nodes returns all other incarnations that this node counts as being in the cluster,
// in order of ID.
func (m *Member) Nodes() []Node {
	all := make([]Node, 0, len(m.peers))
	for _, p := range m.sorted() {
		all = append(all, p.node)
	}
	return all
}

// Session returns the session with the host that serves this node; ok is false
// if there is none now.
func (m *Member) Session() (s SessionID, ok bool) {
	return m.session.id, m.session.up && m.stage == serving
}

// Lease returns the signed lease of this node's incarnation, nil while it has none.
// It must not be changed.
func (m *Member) Lease() []byte {
	if m.self == (addr.Incarnation{}) {
		return nil
	}
	return m.lease
}

// Local reports whether the node serves the applications of its own machine alone.
func (m *Member) Local() bool { return m.local }

// Term returns the highest host term that was accepted.
func (m *Member) Term() uint64 { return m.term }

// Alone reports whether the node decides for itself, because the host's incarnation
// is over.
func (m *Member) Alone() bool { return m.host.alone }

func (m *Member) note(format string, args ...any) {
	m.out.add(Note{Text: fmt.Sprintf(format, args...)})
}

func (m *Member) emit(e Event) { m.out.add(Emit{Event: e}) }

// send sends to the host if there is a session.
func (m *Member) send(msg Message) {
	if m.session.up {
		m.out.add(Send{Session: m.session.id, Message: msg})
	}
}
