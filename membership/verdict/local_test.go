package verdict

import (
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

// newStart returns a member that starts with a lease of an earlier start.
func newStart(t *testing.T, previous addr.Incarnation) *seat {
	s := &seat{t: t, now: time.Unix(1000, 0)}
	var err error
	s.m, err = NewMember(MemberConfig{Self: identity(5), Previous: previous, Lease: []byte("signed"), Term: 5}, s.now)
	if err != nil {
		t.Fatal(err)
	}
	s.wantEvents(s.step(Tick{}))
	return s
}

func TestAMemberServesItsMachineWhileTheHostIsAway(t *testing.T) {
	s := newStart(t, ownIncarnation)
	out := s.step(DialFailed{Text: "refused"})
	s.wantEvents(out, EventLocal)
	if e := eventsOf(out)[0]; e.Node.Incarnation != ownIncarnation || e.Node.UUID != uuid(5) {
		t.Errorf("got %+v, want this node as %v", e, ownIncarnation)
	}
	if s.m.Self().Incarnation != (addr.Incarnation{}) || s.m.Lease() != nil || len(s.m.Nodes()) != 0 || !s.m.Local() {
		t.Errorf("to the others it lives as %v with lease %q and knows %v, want nothing", s.m.Self().Incarnation, s.m.Lease(), s.m.Nodes())
	}
	s.wantEvents(s.wait(time.Minute))
	s.wantEvents(s.step(DialFailed{Text: "refused"}))

	// The host is back.
	if j, ok := sent[Join](s.step(Connected{1}), 1); !ok || j.Previous != ownIncarnation || string(j.Lease) != "signed" {
		t.Fatalf("it asks with %+v, want a Join with the lease of its last incarnation", s.out)
	}
	next := addr.Incarnation{Node: ownIncarnation.Node, Generation: ownIncarnation.Generation + 1}
	s.in(Grant{Term: 6, Incarnation: next})
	entries := []Entry{entry(addr.Incarnation{Generation: 6}), entry(next)}
	s.wantEvents(s.in(Table{Term: 6, Version: 1, First: true, Last: true, Entries: entries}), EventSelf, EventAdded, EventHost)
	if s.m.Local() {
		t.Error("it still serves its machine alone")
	}

	// An incarnation of this start that the others ended is not shown again.
	s.in(RemovedIncarnation{Term: 6, Version: 2, Incarnation: next, Reason: ReasonSilent})
	s.step(Down{1, DownEnded})
	s.wantEvents(s.step(DialFailed{Text: "refused"}))
}

func TestAnUnwantedMemberServesNotEvenItsMachine(t *testing.T) {
	s := newStart(t, ownIncarnation)
	s.wantEvents(s.step(DialFailed{Text: "no", Refused: "the certificate has expired"}), EventHost)
	s.wantEvents(s.step(DialFailed{Text: "no answer"}))

	s = newStart(t, ownIncarnation)
	s.wantEvents(s.step(DialFailed{Text: "no answer"}), EventLocal)
	s.step(Connected{1})
	out := s.in(Refused{Term: 6, Code: RefusedBanned, Text: "an operator has banned this node"})
	s.wantEvents(out, EventReset, EventHost)
	if e := eventsOf(out)[0]; e.Node.Incarnation != ownIncarnation || e.Detail == "" {
		t.Errorf("got %+v, want the end of %v with its reason", e, ownIncarnation)
	}
	s.wantEvents(s.step(DialFailed{Text: "no answer"}))

	s = newStart(t, addr.Incarnation{})
	s.wantEvents(s.step(DialFailed{Text: "no answer"}))
}
