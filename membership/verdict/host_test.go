package verdict

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

// A bench drives one Host by hand, with a disk that answers when asked to.
type bench struct {
	t   *testing.T
	now time.Time
	h   *Host
	out []Action
}

func uuid(n byte) addr.UUID { return addr.UUID{15: n} }

func identity(n byte) Identity {
	return Identity{UUID: uuid(n), Epoch: uint64(n) * 10, Claims: claims(fmt.Sprint("n", n), "a:1")}
}

// claims returns the claims of a node that is reached at addresses.
func claims(name string, addresses ...string) Claims {
	c, err := NewClaims(name, addresses, []string{"mem"})
	if err != nil {
		panic(err)
	}
	return c
}

func newBench(t *testing.T, leases ...Lease) *bench {
	b := &bench{t: t, now: time.Unix(1000, 0)}
	var err error
	b.h, err = NewHost(HostConfig{Self: identity(200), Term: 3, Leases: leases}, b.now)
	if err != nil {
		t.Fatal(err)
	}
	b.in(LocalSession, joinOf(200))
	return b
}

func joinOf(n byte) Join {
	return Join{Identity: identity(n)}
}

func resumeOf(n byte, l addr.Incarnation) Resume {
	return Resume{Identity: identity(n), Incarnation: l}
}

// step feeds one input and keeps the actions.
func (b *bench) step(in HostInput) []Action {
	b.out = b.h.Step(b.now, in)
	return b.out
}

func (b *bench) in(s SessionID, m Message) []Action { return b.step(Received{s, m}) }

// moment is a short wait, in which all that is due by a deadline is done.
const moment = 10 * time.Millisecond

// sync confirms every write, and returns the actions that follow.
func (b *bench) sync() []Action { return b.step(Persisted{b.h.records.seq}) }

// wait lets d pass, with a Tick whenever one is due and at the end, while the
// sessions given are alive.
func (b *bench) wait(d time.Duration, alive ...SessionID) []Action {
	var all []Action
	for end := b.now.Add(d); b.now.Before(end); {
		next := deadline{end}
		next.or(b.h.Next())
		b.now = later(b.now, next.Time)
		for _, s := range alive {
			b.in(s, Ping{})
		}
		all = append(all, b.step(Tick{})...)
		if len(b.h.records.writes) > 0 {
			all = append(all, b.sync()...)
		}
	}
	return all
}

// join lets node n join on session s, and returns its incarnation.
func (b *bench) join(n byte, s SessionID) addr.Incarnation {
	b.t.Helper()
	b.in(s, joinOf(n))
	g, ok := sent[Grant](b.sync(), s)
	if !ok {
		b.t.Fatalf("node %d was not granted an incarnation: %+v", n, b.out)
	}
	return g.Incarnation
}

// sent returns the first message of type M on session s.
func sent[M Message](out []Action, s SessionID) (M, bool) {
	for _, a := range out {
		if send, ok := a.(Send); ok && send.Session == s {
			if m, ok := send.Message.(M); ok {
				return m, true
			}
		}
	}
	var none M
	return none, false
}

func did[A Action](out []Action) (A, bool) {
	for _, a := range out {
		if a, ok := a.(A); ok {
			return a, true
		}
	}
	var none A
	return none, false
}

func (b *bench) wantRefused(out []Action, s SessionID, code Refusal) {
	b.t.Helper()
	if r, ok := sent[Refused](out, s); !ok || r.Code != code {
		b.t.Errorf("session %d: got %+v, want a refusal %v", s, out, code)
	}
}

func TestNothingIsGrantedBeforeItIsOnDisk(t *testing.T) {
	b := newBench(t)
	out := b.in(1, joinOf(1))
	if _, ok := sent[Grant](out, 1); ok {
		t.Fatal("granted before the write was confirmed")
	}
	p, ok := did[Persist](out)
	if !ok || len(p.Leases) != 1 || p.Leases[0].State != LeaseActive || p.Term != 3 {
		t.Fatalf("want the lease written, got %+v", out)
	}
	if g, ok := sent[Grant](b.sync(), 1); !ok || g.Incarnation != (addr.Incarnation{Node: 1, Generation: 3}) {
		t.Errorf("after the sync: %+v, want a grant of 1.3, the host's term", b.out)
	}
}

func TestFullDiskRefusesJoinsButNotRemovals(t *testing.T) {
	b := newBench(t)
	incarnation := b.join(1, 1)
	b.in(2, joinOf(2))
	b.wantRefused(b.step(PersistFailed{b.h.records.seq, "no space"}), 2, RefusedStorage)
	b.in(1, Leave{incarnation})
	out := b.step(PersistFailed{b.h.records.seq, "no space"})
	if r, ok := sent[RemovedIncarnation](out, LocalSession); !ok || r.Incarnation != incarnation || r.Reason != ReasonLeft {
		t.Fatalf("a removal waits for a full disk: %+v", out)
	}
	p, ok := did[Persist](b.wait(2 * time.Second))
	if !ok || len(p.Leases) != 2 {
		t.Errorf("the records are not written again: %+v", p)
	}
	b.wait(time.Second)
	if n := b.join(2, 3); n.Generation != incarnation.Generation+1 {
		t.Errorf("a generation that may be on disk was used again: %v", n)
	}
}

func TestIDIsReusedAfterQuarantineAndAcknowledgements(t *testing.T) {
	b := newBench(t)
	first, second := b.join(1, 1), b.join(2, 2)
	b.in(1, Leave{first})
	b.sync()
	want := joinOf(3)
	want.Previous = first
	ask := func(s SessionID) addr.Incarnation {
		b.in(s, want)
		g, _ := sent[Grant](b.sync(), s)
		b.in(s, Leave{g.Incarnation})
		b.sync()
		want.UUID[0]++
		return g.Incarnation
	}
	if got := ask(3); got.Node == first.Node {
		t.Fatal("an ID in quarantine was given to another node")
	}
	b.wait(b.h.t.Quarantine+time.Second, 2) // session 2 lives, and has not acknowledged
	if got := ask(4); got.Node == first.Node {
		t.Fatal("an ID was given away before all members had acknowledged its end")
	}
	if r, ok := sent[RemovedIncarnation](b.wait(b.h.t.Resend, 2), 2); !ok || r.Version != 0 {
		t.Fatal("a verdict that is not acknowledged is not repeated")
	}
	b.in(2, Ack{first})
	b.in(LocalSession, Ack{first})
	b.wait(moment, 2)
	if got := ask(5); got != (addr.Incarnation{Node: first.Node, Generation: first.Generation + 1}) {
		t.Errorf("after quarantine and acknowledgements: %v, want the next generation of %v", got, first)
	}
	if b.h.living(second) == nil {
		t.Error("the other node did not survive the test")
	}
}

func TestRestartedHostKeepsResumedIncarnationsAndRemovesOthers(t *testing.T) {
	lease := func(id addr.NodeID, n byte, g addr.Generation, s LeaseState) Lease {
		return Lease{ID: id, UUID: uuid(n), Name: "x", Generation: g, Epoch: uint64(n) * 10, State: s}
	}
	b := newBench(t, lease(1, 1, 4, LeaseActive), lease(2, 2, 7, LeaseActive), lease(3, 3, 2, LeaseQuarantine))
	out := b.in(1, resumeOf(1, addr.Incarnation{Node: 1, Generation: 4}))
	if g, ok := sent[Grant](out, 1); !ok || g.Incarnation.Generation != 4 {
		t.Fatalf("resume in the grace period: %+v, want the same incarnation at once", out)
	}
	b.wantRefused(b.in(9, resumeOf(2, addr.Incarnation{Node: 2, Generation: 6})), 9, RefusedFenced)
	other := resumeOf(2, addr.Incarnation{Node: 2, Generation: 7})
	other.Epoch++
	b.wantRefused(b.in(9, other), 9, RefusedFenced)
	thief := joinOf(4)
	thief.Previous = addr.Incarnation{Node: 3, Generation: 2}
	b.in(4, thief)
	if g, _ := sent[Grant](b.sync(), 4); g.Incarnation.Node == 3 || g.Incarnation.Node == 0 {
		t.Errorf("granted %v: the ID was in quarantine", g.Incarnation)
	}
	out = b.wait(b.h.t.Grace+time.Second, 1, 4)
	if r, ok := sent[RemovedIncarnation](out, 1); !ok || r.Incarnation != (addr.Incarnation{Node: 2, Generation: 7}) {
		t.Errorf("an incarnation that no node resumed is still there after the grace period: %+v", r)
	}
	if b.h.living(addr.Incarnation{Node: 1, Generation: 4}) == nil {
		t.Error("the resumed incarnation is gone")
	}
}

func TestHostStepsDownBeforeAHigherTerm(t *testing.T) {
	b := newBench(t)
	b.join(3, 3)
	m := joinOf(1)
	m.Term = 4
	out := b.in(1, m)
	b.wantRefused(out, 1, RefusedTerm)
	if _, ok := did[StepDown](out); !ok {
		t.Error("the host of a lower term stays")
	}
	b.wantRefused(b.in(2, joinOf(2)), 2, RefusedStopped)
}

func TestOneReporterCannotRemoveALivingNode(t *testing.T) {
	b := newBench(t)
	victim, _ := b.join(1, 1), b.join(2, 2)
	for _, e := range []Evidence{LinkSilent, LinkReset, LinkFenced, LinkRefused, DeadInGossip, EndAnnounced} {
		out := b.in(2, Report{victim, e})
		if c, ok := sent[Check](out, 1); ok {
			b.in(1, CheckResult{Nonce: c.Nonce, Target: victim, Reached: true})
		}
		b.wait(3*time.Second, 1, 2, LocalSession)
		if b.h.living(victim) == nil {
			t.Fatalf("evidence %d of one reporter removed a living node", e)
		}
		if e == EndAnnounced && b.h.find(2) != nil {
			t.Error("the only node that reported another's end keeps its incarnation")
		}
	}
}

// TestReportInAShortGapRemovesNobody: a node that the network loses for a
// moment is not removed sooner because a member reported it in that moment.
func TestReportInAShortGapRemovesNobody(t *testing.T) {
	for _, late := range []bool{false, true} {
		b := newBench(t)
		victim := b.join(1, 1)
		b.join(2, 2)
		b.wait(100*time.Millisecond, 1, 2)
		gone := b.now // nothing of the victim comes any more
		rest := b.h.t.Silence + b.h.t.Check - 2*moment
		if late { // its check would end when the silence is one
			b.wait(b.h.t.Silence-b.h.t.Check, 2)
			rest -= b.h.t.Silence - b.h.t.Check
		}
		b.in(2, Report{victim, LinkReset})
		out := b.wait(rest, 2)
		if v, ok := sent[RemovedIncarnation](out, 2); ok {
			t.Fatalf("%v after %v, before its silence was one: %+v", v, b.now.Sub(gone), out)
		}
		b.in(1, Ping{Incarnation: victim})
		if v, ok := sent[RemovedIncarnation](b.wait(b.h.t.Silence-moment, 2), 2); ok {
			t.Fatalf("%v although it spoke", v)
		}
		if _, ok := sent[RemovedIncarnation](b.wait(b.h.t.Check+2*moment, 2), 2); !ok {
			t.Errorf("not removed %v after its last word", b.h.t.Silence+b.h.t.Check)
		}
	}
}

func TestForgedCheckResultDoesNotCount(t *testing.T) {
	b := newBench(t)
	victim := b.join(1, 1)
	b.join(2, 2)
	out := b.wait(b.h.t.Silence+moment, 2)
	c, ok := sent[Check](out, 1)
	if !ok {
		t.Fatal("silence started no check")
	}
	b.in(2, CheckResult{Nonce: c.Nonce + 1, Target: victim, Reached: true})
	b.in(7, CheckResult{Nonce: c.Nonce, Target: victim, Reached: true})
	out = b.wait(b.h.t.Check+moment, 2)
	if r, ok := sent[RemovedIncarnation](out, 2); !ok || r.Reason != ReasonSilent {
		t.Errorf("a silent node that no node reached: %+v, want it removed", out)
	}
}

func TestEndedSessionIsRedialed(t *testing.T) {
	tests := []struct {
		name    string
		cause   DownCause
		outcome RedialOutcome
		want    Reason // empty: stays
	}{
		{"refused", DownEnded, RedialFailed, ReasonCrashed},
		{"answered", DownEnded, RedialAlive, ""},
		{"answered by a newer process", DownEnded, RedialNewer, ReasonRestarted},
		{"stateless reset, refused", DownReset, RedialFailed, ReasonRestarted},
		{"no answer", DownEnded, 0, ReasonCrashed},
		{"no descriptor to dial with", DownEnded, RedialUntried, ""},
		{"closed on purpose", DownClosed, 0, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t)
			l := b.join(1, 1)
			out := b.step(Down{1, tt.cause})
			if _, ok := did[Redial](out); ok != (tt.cause != DownClosed) {
				t.Fatalf("redial: %v in %+v", ok, out)
			}
			if tt.outcome != 0 {
				b.step(Redialed{l, tt.outcome})
				b.sync()
			}
			out = b.out
			out = append(out, b.wait(150*time.Millisecond)...)
			r, _ := sent[RemovedIncarnation](out, LocalSession)
			if r.Reason != tt.want {
				t.Errorf("removed for %q, want %q", r.Reason, tt.want)
			}
		})
	}
}

func TestHostileRequestsAreRefused(t *testing.T) {
	b := newBench(t)
	second := b.join(2, 2)
	for name, change := range map[string]func(*Join){
		"no UUID":         func(m *Join) { m.UUID = addr.UUID{} },
		"no claims":       func(m *Join) { m.Claims = Claims{} },
		"another's name":  func(m *Join) { m.Claims = claims("n2", "a:1") },
		"the host's name": func(m *Join) { m.Claims = claims("n200", "a:1") },
	} {
		t.Run(name, func(t *testing.T) {
			m := joinOf(1)
			change(&m)
			b.wantRefused(b.in(5, m), 5, RefusedInvalid)
		})
	}
	b.in(2, Leave{second})
	b.sync()
	b.wantRefused(b.in(5, joinOf(200)), 5, RefusedDuplicate)
	first := b.join(1, 1)
	if _, ok := did[CloseSession](b.in(1, joinOf(2))); !ok {
		t.Error("two identities on one session are allowed")
	}
	b.in(3, Leave{first}) // of an incarnation without this session
	if b.h.living(first) == nil {
		t.Error("a stranger ended another node's incarnation")
	}
	b.join(4, 4)
	b.in(4, Leave{first})
	if b.h.living(first) == nil {
		t.Error("a node ended another node's incarnation")
	}
}

func TestFullTableIsRefused(t *testing.T) {
	var leases []Lease
	for id := addr.NodeID(1); id < addr.FirstReserved; id++ {
		var u addr.UUID
		u[0], u[1], u[2] = 1, byte(id>>8), byte(id)
		leases = append(leases, Lease{ID: id, UUID: u, Generation: 1, State: LeaseQuarantine})
	}
	b := newBench(t, leases...)
	b.wantRefused(b.in(1, joinOf(1)), 1, RefusedFull)
}

func TestDamagedTableIsAnError(t *testing.T) {
	good := Lease{ID: 1, UUID: uuid(1), Generation: 1, State: LeaseActive}
	for name, leases := range map[string][]Lease{
		"node 0":        {{ID: 0, UUID: uuid(1), Generation: 1, State: LeaseActive}},
		"reserved":      {{ID: addr.FirstReserved, UUID: uuid(1), Generation: 1, State: LeaseActive}},
		"twice":         {good, good},
		"one UUID, two": {good, {ID: 2, UUID: uuid(1), Generation: 1, State: LeaseActive}},
		"no generation": {{ID: 1, UUID: uuid(1), State: LeaseActive}},
		"no state":      {{ID: 1, UUID: uuid(1), Generation: 1}},
	} {
		if _, err := NewHost(HostConfig{Self: identity(200), Term: 1, Leases: leases}, time.Unix(0, 0)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := NewHost(HostConfig{Self: identity(200)}, time.Unix(0, 0)); err == nil {
		t.Error("term 0: no error")
	}
}

func TestLateTickJudgesNobody(t *testing.T) {
	b := newBench(t)
	l := b.join(1, 1)
	b.now = b.now.Add(20 * time.Second)
	b.step(Tick{})
	b.wait(b.h.t.Silence - moment)
	if b.h.living(l) == nil || b.h.living(l).check != nil {
		t.Error("a node was doubted for the time in which the host stood still")
	}
}

func TestLargeTableComesInParts(t *testing.T) {
	b := newBench(t)
	for n := range byte(150) {
		b.join(n+1, SessionID(n+1))
	}
	var ids []addr.NodeID
	for i, a := range b.in(1, Sync{}) {
		tab := a.(Send).Message.(Table)
		if tab.First != (i == 0) || len(tab.Entries) > MaxEntries {
			t.Errorf("part %d: first %v, %d entries", i, tab.First, len(tab.Entries))
		}
		for _, e := range tab.Entries {
			ids = append(ids, e.Node.Incarnation.Node)
		}
	}
	if len(ids) != 151 || !slices.IsSorted(ids) {
		t.Errorf("the table has %d entries, sorted %v; want 151, sorted", len(ids), slices.IsSorted(ids))
	}
}

func TestQuarantineOutlastsAcknowledgements(t *testing.T) {
	b := newBench(t)
	incarnation := b.join(1, 1)
	b.in(1, Leave{incarnation})
	b.sync()
	b.in(LocalSession, Ack{incarnation})
	b.wait(b.h.t.Quarantine - time.Minute)
	m := joinOf(2)
	m.Previous = incarnation
	b.in(2, m)
	if g, _ := sent[Grant](b.sync(), 2); g.Incarnation.Node == incarnation.Node {
		t.Error("every node acknowledged, and the ID was given away before its quarantine was over")
	}
	if back := b.join(1, 3); back != (addr.Incarnation{Node: incarnation.Node, Generation: incarnation.Generation + 1}) {
		t.Errorf("its own node came back as %v, want the next generation of %v", back, incarnation)
	}
}

func TestOnlyNodesThatWereAskedCount(t *testing.T) {
	b := newBench(t)
	victim := b.join(1, 1)
	var others []SessionID
	for n := byte(2); n < 8; n++ {
		b.join(n, SessionID(n))
		others = append(others, SessionID(n))
	}
	out := b.wait(b.h.t.Silence+moment, others...)
	asked := 0
	for _, s := range others {
		if c, ok := sent[Check](out, s); ok {
			asked++
			b.in(s, CheckResult{Nonce: c.Nonce, Target: victim, Reached: false})
			continue
		}
		b.in(s, CheckResult{Nonce: b.h.nonce, Target: victim, Reached: true})
	}
	if asked != maxAsked {
		t.Errorf("%d others were asked, want %d", asked, maxAsked)
	}
	if b.h.living(victim).check == nil {
		t.Error("a node that was not asked ended a check")
	}
}

func TestRestartIsReportedBeforeTheNextIncarnation(t *testing.T) {
	ways := map[string]func(b *bench) []Action{
		"the older process does not answer": func(b *bench) []Action { return b.wait(b.h.t.Check + moment) },
		"its session ends":                  func(b *bench) []Action { return b.step(Down{1, DownEnded}) },
	}
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			old := b.join(1, 1)
			m := joinOf(1)
			m.Epoch++
			if c, ok := sent[Check](b.in(2, m), 1); !ok || c.Incarnation != old {
				t.Fatalf("the older process is not asked: %+v", b.out)
			}
			out := way(b)
			out = append(out, b.sync()...)
			out = append(out, b.sync()...)
			if g, ok := sent[Grant](out, 2); !ok || g.Incarnation != (addr.Incarnation{Node: old.Node, Generation: old.Generation + 1}) {
				t.Fatalf("the newer process got %+v, want the generation after %v at once", out, old)
			}
			if b.h.ended[old.Node].reason != ReasonRestarted {
				t.Errorf("removed for %q", b.h.ended[old.Node].reason)
			}
		})
	}
}

func TestJoinOfANewerProcessAnswersARedial(t *testing.T) {
	b := newBench(t)
	old := b.join(1, 1)
	b.step(Down{1, DownEnded})
	m := joinOf(1)
	m.Epoch++
	b.in(2, m)
	r, ok := sent[RemovedIncarnation](b.sync(), LocalSession)
	if !ok || r.Incarnation != old || r.Reason != ReasonRestarted {
		t.Errorf("got %+v, want %v removed as restarted, at once", b.out, old)
	}
}

func TestTermOnDiskNeverGoesBack(t *testing.T) {
	b := newBench(t)
	incarnation := b.join(1, 1)
	b.now = b.now.Add(5 * time.Second) // the host stands still
	b.step(Tick{})
	m := resumeOf(1, incarnation)
	m.HostOver = addr.Generation(b.h.Term())
	out := b.in(2, m)
	b.wantRefused(out, 2, RefusedBusy)
	if p, _ := did[Persist](out); p.Term != 4 {
		t.Fatalf("wrote %+v, want term 4", p)
	}
	if p, _ := did[Persist](b.in(3, joinOf(3))); p.Term != 4 {
		t.Errorf("wrote term %d after term 4", p.Term)
	}
	b.sync()
	if g, ok := sent[Grant](b.in(2, m), 2); !ok || g.Term != 4 || g.Incarnation != incarnation {
		t.Errorf("after the renewal: %+v, want the same incarnation in term 4", b.out)
	}
}

func TestManyReportsStartOneCheck(t *testing.T) {
	b := newBench(t)
	victim, _ := b.join(1, 1), b.join(2, 2)
	checks := 0
	for range 20 {
		if c, ok := sent[Check](b.in(2, Report{victim, LinkSilent}), 1); ok {
			checks++
			b.in(1, CheckResult{Nonce: c.Nonce, Target: victim, Reached: true})
		}
	}
	if checks != 1 {
		t.Errorf("20 reports at once started %d checks, want 1", checks)
	}
}

func TestFailedWriteConfirmsThoseBefore(t *testing.T) {
	b := newBench(t)
	b.in(1, joinOf(1))
	b.in(2, joinOf(2))
	out := b.step(PersistFailed{b.h.records.seq, "no space"})
	if _, ok := sent[Grant](out, 1); !ok {
		t.Error("the write before the failed one is not confirmed")
	}
	b.wantRefused(out, 2, RefusedStorage)
}

// outage makes the host stand still for so long that its members may have been
// without it.
func (b *bench) outage() {
	b.now = b.now.Add(5 * time.Second)
	b.step(Tick{})
}

func TestOneOfTwoThatReportedEachOthersEndStays(t *testing.T) {
	b := newBench(t)
	first, second := b.join(1, 1), b.join(2, 2)
	b.outage()
	b.in(1, Report{second, EndAnnounced})
	b.in(2, Report{first, EndAnnounced})
	b.wait(b.h.t.Silence+moment, 1, 2)
	if b.h.living(first) == nil || b.h.find(second.Node) != nil {
		t.Errorf("of %v and %v, %v and %v are left; want the lower ID only", first, second, b.h.living(first), b.h.living(second))
	}
}

// TestNobodyIsRemovedByFew: a member that reports that it announced another's end begins
// anew itself, unless more than two and most of those before an outage report the same.
func TestNobodyIsRemovedByFew(t *testing.T) {
	for _, x := range []struct {
		name      string
		members   byte
		accusers  []SessionID // of 1
		outage    bool
		wantAlive []SessionID
		wantOver  []SessionID
	}{
		{"one, at any time", 4, []SessionID{2}, false, []SessionID{1, 3, 4}, []SessionID{2}},
		{"two, at any time", 4, []SessionID{2, 3}, false, []SessionID{1, 4}, []SessionID{2, 3}},
		{"all others, at any time", 4, []SessionID{2, 3, 4}, false, []SessionID{1}, []SessionID{2, 3, 4}},
		{"one of an outage", 4, []SessionID{2}, true, []SessionID{1, 3, 4}, []SessionID{2}},
		{"two of three of an outage", 3, []SessionID{2, 3}, true, []SessionID{1}, []SessionID{2, 3}},
		{"three of four of an outage", 4, []SessionID{2, 3, 4}, true, []SessionID{2, 3, 4}, []SessionID{1}},
		{"three of seven of an outage", 7, []SessionID{2, 3, 4}, true, []SessionID{1, 5, 6, 7}, []SessionID{2, 3, 4}},
	} {
		t.Run(x.name, func(t *testing.T) {
			b := newBench(t)
			incarnations := map[SessionID]addr.Incarnation{}
			var all []SessionID
			for i := byte(1); i <= x.members; i++ {
				incarnations[SessionID(i)] = b.join(i, SessionID(i))
				all = append(all, SessionID(i))
			}
			if x.outage {
				b.outage()
			}
			for _, s := range x.accusers {
				b.in(s, Report{incarnations[1], EndAnnounced})
				b.sync()
			}
			b.wait(b.h.t.Silence+moment, all...)
			for _, s := range x.wantAlive {
				if b.h.living(incarnations[s]) == nil {
					t.Errorf("%v is over", incarnations[s])
				}
			}
			for _, s := range x.wantOver {
				if b.h.living(incarnations[s]) != nil {
					t.Errorf("%v goes on", incarnations[s])
				}
			}
		})
	}
}

// TestFewCannotEndTheHostsIncarnation: in a time in which members may rightly hold that
// the host's incarnation is over, one of many that reports it begins anew itself.
func TestFewCannotEndTheHostsIncarnation(t *testing.T) {
	for claims, want := range map[int]uint64{2: 3, 3: 4} {
		b := newBench(t)
		incarnations := map[SessionID]addr.Incarnation{}
		for i := byte(1); i <= 5; i++ {
			incarnations[SessionID(i)] = b.join(i, SessionID(i))
		}
		b.outage()
		for range 4 {
			for i := range claims {
				m := resumeOf(byte(i)+1, incarnations[SessionID(i+1)])
				m.HostOver = addr.Generation(3)
				b.in(SessionID(i+1), m)
			}
			b.sync()
			b.wait(b.h.t.Silence/3, 3, 4, 5)
		}
		if got := b.h.Term(); got != want {
			t.Errorf("after %d of 5 have reported the end of the host's incarnation: term %d, want %d", claims, got, want)
		}
	}
}

// TestAnOutageEndsTheHostsIncarnationOnce: a report about the incarnation that the host takes
// after an outage cannot be of that outage.
func TestAnOutageEndsTheHostsIncarnationOnce(t *testing.T) {
	b := newBench(t)
	incarnations := map[SessionID]addr.Incarnation{}
	for i := byte(1); i <= 5; i++ {
		incarnations[SessionID(i)] = b.join(i, SessionID(i))
	}
	b.outage()
	for over := addr.Generation(3); over <= 4; over++ {
		for i := SessionID(1); i <= 4; i++ {
			m := resumeOf(byte(i), incarnations[i])
			m.HostOver = over
			b.in(i, m)
			b.sync()
		}
	}
	if got := b.h.Term(); got != 4 {
		t.Errorf("after all have reported the end of the host's incarnation, and of the next one: term %d, want 4", got)
	}
}

// TestAllThatLostOneNodeAreEvictedAtOnce: of several that complain alone about the
// same node none is left for a Tick that Next did not ask for.
func TestAllThatLostOneNodeAreEvictedAtOnce(t *testing.T) {
	b := newBench(t)
	b.h.cfg.Partial = PartialEvict
	incarnations := map[SessionID]addr.Incarnation{}
	for i := byte(1); i <= 6; i++ {
		incarnations[SessionID(i)] = b.join(i, SessionID(i))
	}
	for i := SessionID(2); i <= 3; i++ {
		b.in(i, Report{incarnations[1], LinkSilent})
	}
	c := b.h.living(incarnations[1]).check
	b.in(1, CheckResult{Nonce: c.nonce, Target: incarnations[1], Reached: true})
	for end := b.now.Add(b.h.partialBound()); b.now.Before(end); {
		b.wait(b.h.t.Tick, 1, 4, 5, 6)
		for i := SessionID(2); i <= 3; i++ {
			b.in(i, Ping{})
		}
		if next := b.h.Next(); !next.After(b.now) {
			t.Fatalf("after a Tick the next is due %v ago", b.now.Sub(next))
		}
	}
	for i := SessionID(1); i <= 6; i++ {
		if alive := b.h.living(incarnations[i]) != nil; alive != (i != 2 && i != 3) {
			t.Errorf("node %d lives: %v", i, alive)
		}
	}
}

// TestOnlyAllowedNetworks: with networks that an operator allows, no node gets an incarnation
// that is reached elsewhere, or under a name that may be anywhere.
func TestOnlyAllowedNetworks(t *testing.T) {
	for addresses, good := range map[string]bool{
		"10.0.0.1:7": true, "10.0.0.1:7 10.9.9.9:1": true, "[::ffff:10.0.0.1]:7": true,
		"10.0.0.1:7 192.168.0.1:7": false, "db:7": false, "[fd00::1]:7": false,
	} {
		b := newBench(t)
		b.h.cfg.Networks = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
		m := joinOf(1)
		m.Claims = claims("n1", strings.Fields(addresses)...)
		if out := b.in(1, m); !good {
			b.wantRefused(out, 1, RefusedInvalid)
		}
		if granted := b.h.find(1) != nil; granted != good {
			t.Errorf("%s: granted %v, want %v", addresses, granted, good)
		}
	}
}

func TestAnOperatorEndsAnIncarnation(t *testing.T) {
	b := newBench(t)
	incarnation, other := b.join(1, 1), b.join(2, 2)
	b.step(Expel{UUID: uuid(1), Reason: ReasonBanned})
	out := b.sync()
	for _, s := range []SessionID{1, 2, LocalSession} {
		if r, ok := sent[RemovedIncarnation](out, s); !ok || r.Incarnation != incarnation || r.Reason != ReasonBanned {
			t.Errorf("session %d receives %+v, want the end of %v", s, r, incarnation)
		}
	}
	if b.h.living(other) == nil {
		t.Error("the other incarnation is over too")
	}
	if out := b.step(Expel{UUID: uuid(1), Reason: ReasonBanned}); len(out) != 0 {
		t.Errorf("ended again: %+v", out)
	}
}

func TestTableHasTheReasonWhyAnIncarnationEnded(t *testing.T) {
	b := newBench(t)
	b.join(1, 1)
	gone := b.join(2, 2)
	b.in(2, Leave{gone})
	b.sync()
	tab, _ := sent[Table](b.in(1, Sync{}), 1)
	i := slices.IndexFunc(tab.Entries, func(e Entry) bool { return e.Node.Incarnation == gone })
	if i < 0 || tab.Entries[i].Node.State != Removed || tab.Entries[i].Reason != ReasonLeft {
		t.Errorf("the table has %+v, want that %v left", tab.Entries, gone)
	}
}

func TestARenewedTermComesWithItsLease(t *testing.T) {
	b := newBench(t)
	incarnation := b.join(1, 1)
	b.h.renew(b.h.term + 1)
	g, ok := sent[Grant](b.sync(), 1)
	if !ok || g.Term != 4 || g.Incarnation != incarnation || g.UUID != uuid(1) || g.Epoch != 10 || g.Name != "n1" {
		t.Errorf("after the host took term 4: %+v, want a grant of %v with all that its lease has", b.out, incarnation)
	}
}

func TestNewcomersWaitForClaimsAfterALostTable(t *testing.T) {
	b := &bench{t: t, now: time.Unix(1000, 0)}
	var err error
	b.h, err = NewHost(HostConfig{Self: identity(200), Term: 3, Floor: 50}, b.now)
	if err != nil {
		t.Fatal(err)
	}
	b.in(LocalSession, joinOf(200))
	b.wantRefused(b.in(1, joinOf(1)), 1, RefusedBusy)
	b.wantRefused(b.in(2, resumeOf(2, addr.Incarnation{Node: 1, Generation: 7})), 2, RefusedFenced)
	claim := joinOf(2)
	claim.Previous = addr.Incarnation{Node: 1, Generation: 70}
	b.in(2, claim)
	if g, ok := sent[Grant](b.sync(), 2); !ok || g.Incarnation != (addr.Incarnation{Node: 1, Generation: 71}) {
		t.Errorf("a claim got %+v, want 1.71: above the floor and above its last incarnation", b.out)
	}
	b.wait(b.h.t.Grace, 2)
	if l := b.join(1, 1); l != (addr.Incarnation{Node: 2, Generation: 71}) {
		t.Errorf("a newcomer after the grace period lives as %v, want 2.71", l)
	}
}
