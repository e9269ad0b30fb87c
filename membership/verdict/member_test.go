package verdict

import (
	"slices"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

// A seat drives one Member by hand.
type seat struct {
	t   *testing.T
	now time.Time
	m   *Member
	out []Action
}

var (
	hostIncarnation = addr.Incarnation{Node: 0, Generation: 5}
	ownIncarnation  = addr.Incarnation{Node: 4, Generation: 2}
	peerIncarnation = addr.Incarnation{Node: 6, Generation: 3}
)

func entry(l addr.Incarnation) Entry {
	return Entry{Node: Node{Incarnation: l, Identity: identity(byte(l.Node + 1)), State: Alive}}
}

// newSeat returns a member that serves in term 5, with the host and one peer.
func newSeat(t *testing.T) *seat {
	s := &seat{t: t, now: time.Unix(1000, 0)}
	var err error
	s.m, err = NewMember(MemberConfig{Self: identity(5), Term: 4}, s.now)
	if err != nil {
		t.Fatal(err)
	}
	s.step(Tick{})
	s.step(Connected{1})
	s.in(Grant{Term: 5, Incarnation: ownIncarnation})
	s.in(Table{Term: 5, Version: 10, First: true, Last: true, Entries: []Entry{entry(hostIncarnation), entry(ownIncarnation), entry(peerIncarnation)}})
	if len(s.m.Nodes()) != 2 {
		t.Fatalf("the member knows %+v, want the host and a peer", s.m.Nodes())
	}
	return s
}

func (s *seat) step(in MemberInput) []Action {
	s.out = s.m.Step(s.now, in)
	return s.out
}

func (s *seat) in(m Message) []Action { return s.step(Received{1, m}) }

// wait lets d pass, with a Tick whenever one is due and at the end.
func (s *seat) wait(d time.Duration) []Action {
	var all []Action
	for end := s.now.Add(d); s.now.Before(end); {
		next := deadline{end}
		next.or(s.m.Next())
		s.now = later(s.now, next.Time)
		all = append(all, s.step(Tick{})...)
	}
	return all
}

func eventsOf(out []Action) []Event {
	var all []Event
	for _, a := range out {
		if e, ok := a.(Emit); ok {
			all = append(all, e.Event)
		}
	}
	return all
}

func (s *seat) wantEvents(out []Action, kinds ...EventKind) {
	s.t.Helper()
	got := eventsOf(out)
	if len(got) != len(kinds) {
		s.t.Fatalf("got events %+v, want kinds %v", got, kinds)
	}
	for i := range kinds {
		if got[i].Kind != kinds[i] {
			s.t.Fatalf("event %d is %+v, want kind %v", i, got[i], kinds[i])
		}
	}
}

func TestRemovalIsReportedOnceAndAcknowledgedWhenHandled(t *testing.T) {
	s := newSeat(t)
	v := RemovedIncarnation{Term: 5, Version: 11, Incarnation: peerIncarnation, Reason: ReasonCrashed}
	out := s.in(v)
	s.wantEvents(out, EventRemoved)
	if _, ok := sent[Ack](out, 1); ok {
		t.Error("acknowledged before the handlers returned")
	}
	v.Version = 0
	out = s.in(v)
	s.wantEvents(out)
	if _, ok := sent[Ack](out, 1); ok {
		t.Error("a repetition is acknowledged before the handlers returned")
	}
	if a, ok := sent[Ack](s.step(Handled{peerIncarnation}), 1); !ok || a.Incarnation != peerIncarnation {
		t.Error("not acknowledged when the handlers returned")
	}
	if _, ok := sent[Ack](s.in(v), 1); !ok {
		t.Error("a repetition after that is not acknowledged")
	}
}

func TestNewIncarnationComesAfterTheEndOfTheOld(t *testing.T) {
	s := newSeat(t)
	next := addr.Incarnation{Node: peerIncarnation.Node, Generation: peerIncarnation.Generation + 1}
	out := s.in(Delta{Term: 5, Version: 11, Entries: []Entry{entry(next)}})
	s.wantEvents(out, EventRemoved, EventAdded)
	out = s.in(RemovedIncarnation{Term: 5, Version: 12, Incarnation: peerIncarnation, Reason: ReasonRestarted})
	s.wantEvents(out)
	if s.m.known(next) == nil {
		t.Error("a verdict about the old incarnation ended the new one")
	}
}

func TestGapAsksForTheTable(t *testing.T) {
	s := newSeat(t)
	s.wantEvents(s.in(Delta{Term: 5, Version: 10, Entries: []Entry{entry(addr.Incarnation{Node: 9, Generation: 1})}}))
	out := s.in(Delta{Term: 5, Version: 12, Entries: []Entry{entry(addr.Incarnation{Node: 9, Generation: 1})}})
	s.wantEvents(out)
	if _, ok := sent[Sync](out, 1); !ok {
		t.Error("a gap in the versions is not noticed")
	}
}

func TestLowerTermIsIgnored(t *testing.T) {
	s := newSeat(t)
	out := s.in(RemovedIncarnation{Term: 4, Version: 11, Incarnation: peerIncarnation})
	s.wantEvents(out)
	if _, ok := did[CloseSession](out); !ok {
		t.Error("the session to a host of a lower term stays open")
	}
	s.step(Connected{2})
	s.step(Received{2, Grant{Term: 4, Incarnation: addr.Incarnation{Node: 1, Generation: 9}}})
	if s.m.Self().Incarnation != ownIncarnation {
		t.Errorf("a lower term granted %v", s.m.Self().Incarnation)
	}
}

func TestOwnEndResetsAndJoinsAgain(t *testing.T) {
	ways := map[string]func(s *seat) []Action{
		"verdict": func(s *seat) []Action {
			return s.in(RemovedIncarnation{Term: 5, Version: 11, Incarnation: ownIncarnation})
		},
		"table without it": func(s *seat) []Action {
			return s.in(Table{Term: 5, Version: 20, First: true, Last: true, Entries: []Entry{entry(hostIncarnation)}})
		},
		"refused resume": func(s *seat) []Action {
			s.step(Down{1, DownClosed})
			s.step(Connected{1})
			if r, ok := sent[Resume](s.out, 1); !ok || r.Incarnation != ownIncarnation {
				t.Fatalf("asked %+v, want a resume", s.out)
			}
			return s.in(Refused{Term: 5, Code: RefusedFenced})
		},
	}
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			s := newSeat(t)
			out := way(s)
			s.wantEvents(out, EventReset)
			if j, ok := sent[Join](out, 1); !ok || j.Previous != ownIncarnation {
				t.Fatalf("after the reset: %+v, want a join that names the old incarnation", out)
			}
			next := addr.Incarnation{Node: 4, Generation: 3}
			s.wantEvents(s.in(Grant{Term: 5, Incarnation: next}))
			s.wantEvents(s.in(Table{Term: 5, Version: 21, First: true, Last: true,
				Entries: []Entry{entry(hostIncarnation), entry(next), entry(peerIncarnation)}}), EventSelf, EventAdded, EventAdded)
		})
	}
}

// TestAnIncarnationIsReportedWithItsTable: an incarnation that ends before is reported with its end. If its
// session ends before, it is reported with the table of the next session.
func TestAnIncarnationIsReportedWithItsTable(t *testing.T) {
	s := newSeat(t)
	s.wantEvents(s.in(RemovedIncarnation{Term: 5, Version: 11, Incarnation: ownIncarnation}), EventReset)
	brief := addr.Incarnation{Node: 4, Generation: 3}
	s.wantEvents(s.in(Grant{Term: 5, Incarnation: brief}))
	out := s.in(Table{Term: 5, Version: 20, First: true, Last: true, Entries: []Entry{entry(hostIncarnation)}})
	s.wantEvents(out, EventSelf, EventReset)
	if e := eventsOf(out)[0]; e.Reason == "" || e.Node.Incarnation != brief {
		t.Errorf("an incarnation that is over was reported as %+v", e)
	}
	if j, ok := sent[Join](out, 1); !ok || j.Previous != brief {
		t.Fatalf("after a table that lacks it: %+v, want a join that names the incarnation", out)
	}
	next := addr.Incarnation{Node: 4, Generation: 4}
	s.wantEvents(s.in(Grant{Term: 5, Incarnation: next}))
	s.wantEvents(s.step(Down{1, DownClosed}))
	s.step(Connected{1})
	if r, ok := sent[Resume](s.out, 1); !ok || r.Incarnation != next {
		t.Fatalf("asked %+v, want a resume", s.out)
	}
	s.wantEvents(s.in(Grant{Term: 5, Incarnation: next}))
	gone := entry(addr.Incarnation{Node: 7, Generation: 1})
	gone.Node.State = Removed
	out = s.in(Table{Term: 5, Version: 22, First: true, Last: true, Entries: []Entry{entry(hostIncarnation), entry(next), entry(peerIncarnation), gone}})
	s.wantEvents(out, EventSelf, EventAdded, EventAdded)
	if e := eventsOf(out)[0]; e.Reason != "" || e.Others != 2 || e.Node.Incarnation != next {
		t.Errorf("reported as %+v", e)
	}
}

func TestGossipAloneRemovesNoNode(t *testing.T) {
	s := newSeat(t)
	s.step(Down{1, DownEnded})
	s.wantEvents(s.step(DialFailed{}), EventHost, EventRemoved)
	s.wantEvents(s.step(Gossip{peerIncarnation, GossipDead}), EventUpdated)
	p, ok := did[Probe](s.out)
	if !ok {
		t.Fatal("a gossip report is not looked into")
	}
	s.wantEvents(s.step(Probed{Nonce: p.Nonce, Reached: true}), EventUpdated)
	s.wantEvents(s.wait(5 * time.Second))
	if s.m.known(peerIncarnation) == nil {
		t.Error("a gossip report removed a peer that was reached")
	}
}

func TestAloneASilentPeerIsRemovedIfAProbeFailsToo(t *testing.T) {
	s := newSeat(t)
	s.step(Link{peerIncarnation, LinkSilent})
	if r, ok := sent[Report](s.out, 1); !ok || r.About != peerIncarnation {
		t.Fatalf("not reported to the host: %+v", s.out)
	}
	s.wantEvents(s.wait(time.Second)) // the host decides
	s.step(Down{1, DownEnded})
	s.step(DialFailed{})
	p, ok := did[Probe](s.wait(moment))
	if !ok || p.Incarnation != peerIncarnation {
		t.Fatalf("alone, a silent peer is not probed: %+v", s.out)
	}
	s.wantEvents(s.step(Probed{Nonce: p.Nonce, Reached: false}), EventRemoved)
}

func TestGossipContradictsTheLossOfTheHost(t *testing.T) {
	s := newSeat(t)
	s.step(Gossip{hostIncarnation, GossipAlive})
	var out []Action
	for range 200 { // no probe or dial is answered
		for _, a := range s.wait(s.m.t.Tick) {
			out = append(out, a)
			if _, ok := a.(DialHost); ok {
				out = append(out, s.step(DialFailed{})...)
			}
		}
	}
	s.wantEvents(out, EventHost)
	s.step(Gossip{hostIncarnation, GossipDead})
	s.wantEvents(s.wait(3*time.Second), EventRemoved)
}

// TestMostLinksSilentNeedNoGossip loses the host and most of the peers at once,
// as on the smaller side of a partition, while gossip still counts all of them
// among its members.
func TestMostLinksSilentNeedNoGossip(t *testing.T) {
	incarnations := []addr.Incarnation{peerIncarnation, {Node: 7, Generation: 1}, {Node: 8, Generation: 1}, {Node: 9, Generation: 1}}
	for silent := range len(incarnations) + 1 {
		s := newSeat(t)
		for i, l := range incarnations[1:] {
			s.in(Delta{Term: 5, Version: 11 + uint64(i), Entries: []Entry{entry(l)}})
		}
		s.step(Gossip{hostIncarnation, GossipAlive})
		for i, l := range incarnations {
			s.step(Gossip{l, GossipAlive})
			if i < silent {
				s.step(Link{l, LinkSilent})
			}
		}
		out := s.wait(s.m.t.Silence + s.m.t.Check + 2*s.m.t.Tick)
		var removed []addr.Incarnation
		for _, e := range eventsOf(out) {
			if e.Kind == EventRemoved {
				removed = append(removed, e.Node.Incarnation)
			}
		}
		// Of five others the host is silent, and silent more.
		var want []addr.Incarnation
		if 1+silent > 2 {
			want = append([]addr.Incarnation{hostIncarnation}, incarnations[:silent]...)
		}
		if !slices.Equal(removed, want) {
			t.Errorf("with %d of 4 peers silent: removed %v, want %v", silent, removed, want)
		}
	}
}

func TestStallDiscardsGossip(t *testing.T) {
	s := newSeat(t)
	s.step(Gossip{peerIncarnation, GossipDead})
	s.now = s.now.Add(5 * time.Second)
	out := s.step(Tick{})
	if _, ok := did[Revalidate](out); !ok {
		t.Error("the data path is not notified of a stall")
	}
	ping, ok := sent[Ping](out, 1)
	if !ok {
		t.Fatal("the host is not asked after a stall")
	}
	s.wantEvents(out, EventUpdated) // suspected no more
	s.step(Link{peerIncarnation, LinkSilent})
	if _, ok := sent[Report](s.out, 1); ok {
		t.Error("reported before the host confirmed us")
	}
	s.in(Pong{Term: 5, Nonce: ping.Nonce, Version: 10})
	if _, ok := sent[Report](s.wait(moment), 1); !ok {
		t.Error("not reported after the host confirmed us")
	}
}

func TestHostTableOverManyPartsIsBounded(t *testing.T) {
	s := newSeat(t)
	part := Table{Term: 5, Version: 30, Entries: make([]Entry, MaxEntries)}
	closed := false
	for range 2000 {
		_, now := did[CloseSession](s.in(part))
		closed = closed || now
		if len(s.m.parts) > maxTable {
			t.Fatalf("%d entries are held", len(s.m.parts))
		}
	}
	if !closed {
		t.Error("a table without an end is taken for ever")
	}
}

func TestDepartWaitsForTheAnswer(t *testing.T) {
	s := newSeat(t)
	if l, ok := sent[Leave](s.step(Depart{}), 1); !ok || l.Incarnation != ownIncarnation {
		t.Fatalf("no leave message: %+v", s.out)
	}
	if _, ok := did[Departed](s.in(RemovedIncarnation{Term: 5, Version: 11, Incarnation: ownIncarnation, Reason: ReasonLeft})); !ok {
		t.Error("the answer to a leave message does not end the member")
	}
	if out := s.step(Tick{}); len(out) != 0 {
		t.Errorf("it still acts: %+v", out)
	}
	s = newSeat(t)
	s.step(Depart{})
	if _, ok := did[Departed](s.wait(s.m.t.Check + moment)); !ok {
		t.Error("without an answer it waits for ever")
	}
}

func TestGossipAndLostProbesRemoveOnlyAfterTheSilenceBound(t *testing.T) {
	s := newSeat(t)
	s.step(Down{1, DownEnded})
	s.step(DialFailed{})
	s.step(Gossip{peerIncarnation, GossipDead})
	s.wantEvents(s.wait(s.m.t.Silence - moment)) // probes run out, one after the other
	s.wantEvents(s.wait(s.m.t.Check+moment), EventRemoved)
}

func TestHostThatAnswersARedialIsNotLost(t *testing.T) {
	s := newSeat(t)
	s.step(Down{1, DownEnded})
	s.wait(moment)
	s.step(Connected{2})
	s.wantEvents(s.wait(500 * time.Millisecond))
	s.step(Received{2, Grant{Term: 5, Incarnation: ownIncarnation}})
	if s.m.Alone() || s.m.Self().Incarnation != ownIncarnation {
		t.Error("a host that answered was taken for lost")
	}
}

func TestHostThatDoesNotAnswerARedialIsLost(t *testing.T) {
	s := newSeat(t)
	s.step(Down{1, DownEnded})
	out := s.wait(150 * time.Millisecond)
	s.wantEvents(out, EventHost, EventRemoved)
	if e := eventsOf(out)[1]; e.Node.Incarnation != hostIncarnation || e.Reason != ReasonCrashed {
		t.Errorf("reported %+v, want %v crashed", e, hostIncarnation)
	}
}

func TestTableEndsNodesThatAreNotInIt(t *testing.T) {
	s := newSeat(t)
	out := s.in(Table{Term: 5, Version: 20, First: true, Last: true, Entries: []Entry{entry(hostIncarnation), entry(ownIncarnation),
		{Node: Node{Incarnation: peerIncarnation, State: Removed}, Reason: ReasonLeft}}})
	s.wantEvents(out, EventRemoved)
	if e := eventsOf(out)[0]; e.Reason != ReasonLeft {
		t.Errorf("reported %+v, want the table's reason", e)
	}
	if _, ok := sent[Ack](s.step(Handled{peerIncarnation}), 1); !ok {
		t.Error("an end that a table listed is not acknowledged")
	}
}

func TestGrantsLeaseIsRememberedAndShown(t *testing.T) {
	for name, tm := range map[string]Timing{"fast": Fast(), "normal": Normal(), "calm": Calm()} {
		// The last ping before a pause is up to Heartbeat - Tick/2 old when the
		// Tick comes after which the process stands still.
		if unnoticed := tm.Heartbeat + tm.Tick/2 + tm.Stall; unnoticed > tm.Silence {
			t.Errorf("%s: a pause that is not noticed may look like a silence of %v, the bound is %v", name, unnoticed, tm.Silence)
		}
	}
	m, err := NewMember(MemberConfig{Self: identity(1), Previous: addr.Incarnation{Node: 1, Generation: 1}, Lease: []byte("first")}, time.Unix(1000, 0))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1000, 0)
	if j, ok := sent[Join](m.Step(now, Connected{Session: 1}), 1); !ok || string(j.Lease) != "first" {
		t.Errorf("the Join shows lease %q, want that of the last incarnation", j.Lease)
	}
	incarnation := addr.Incarnation{Node: 1, Generation: 2}
	out := m.Step(now, Received{1, Grant{Term: 1, Incarnation: incarnation, Lease: []byte("second")}})
	if r, ok := did[Remember](out); !ok || r.Incarnation != incarnation || string(r.Lease) != "second" {
		t.Errorf("granted: %+v, want the lease remembered", out)
	}
	out = m.Step(now, Received{1, Grant{Term: 2, Incarnation: incarnation, Lease: []byte("third")}})
	if r, ok := did[Remember](out); !ok || r.Term != 2 || string(m.Lease()) != "third" {
		t.Errorf("granted in a new term: %+v, want the lease remembered", out)
	}
	m.Step(now, Down{Session: 1, Cause: DownClosed})
	if r, ok := sent[Resume](m.Step(now, Connected{Session: 2}), 2); !ok || string(r.Lease) != "third" {
		t.Errorf("the Resume shows lease %q, want the newest", r.Lease)
	}
}
