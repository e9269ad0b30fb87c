package verdict

import (
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

// newStart returns a member that starts with a lease of an earlier start.
func newStart(t *testing.T, previous addr.Life) *seat {
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
	s := newStart(t, ownLife)
	out := s.step(DialFailed{Text: "refused"})
	s.wantEvents(out, EventLocal)
	if e := eventsOf(out)[0]; e.Node.Life != ownLife || e.Node.UUID != uuid(5) {
		t.Errorf("got %+v, want this node as %v", e, ownLife)
	}
	if s.m.Self().Life != (addr.Life{}) || s.m.Lease() != nil || len(s.m.Nodes()) != 0 || !s.m.Local() {
		t.Errorf("to the others it lives as %v with lease %q and knows %v, want nothing", s.m.Self().Life, s.m.Lease(), s.m.Nodes())
	}
	s.wantEvents(s.wait(time.Minute))
	s.wantEvents(s.step(DialFailed{Text: "refused"}))

	// The host is back.
	if j, ok := sent[Join](s.step(Connected{1}), 1); !ok || j.Previous != ownLife || string(j.Lease) != "signed" {
		t.Fatalf("it asks with %+v, want a Join with the lease of its last life", s.out)
	}
	next := addr.Life{Node: ownLife.Node, Generation: ownLife.Generation + 1}
	s.in(Grant{Term: 6, Life: next})
	entries := []Entry{entry(addr.Life{Generation: 6}), entry(next)}
	s.wantEvents(s.in(Table{Term: 6, Version: 1, First: true, Last: true, Entries: entries}), EventSelf, EventAdded, EventHost)
	if s.m.Local() {
		t.Error("it still serves its machine alone")
	}

	// A life of this start that the others ended is not shown again.
	s.in(RemovedLife{Term: 6, Version: 2, Life: next, Reason: ReasonSilent})
	s.step(Down{1, DownEnded})
	s.wantEvents(s.step(DialFailed{Text: "refused"}))
}

func TestAnUnwantedMemberServesNotEvenItsMachine(t *testing.T) {
	s := newStart(t, ownLife)
	s.wantEvents(s.step(DialFailed{Text: "no", Refused: "the certificate has expired"}), EventHost)
	s.wantEvents(s.step(DialFailed{Text: "nobody answers"}))

	s = newStart(t, ownLife)
	s.wantEvents(s.step(DialFailed{Text: "nobody answers"}), EventLocal)
	s.step(Connected{1})
	out := s.in(Refused{Term: 6, Code: RefusedBanned, Text: "an operator has banned this node"})
	s.wantEvents(out, EventReset, EventHost)
	if e := eventsOf(out)[0]; e.Node.Life != ownLife || e.Detail == "" {
		t.Errorf("got %+v, want the end of %v with its reason", e, ownLife)
	}
	s.wantEvents(s.step(DialFailed{Text: "nobody answers"}))

	s = newStart(t, addr.Life{})
	s.wantEvents(s.step(DialFailed{Text: "nobody answers"}))
}
