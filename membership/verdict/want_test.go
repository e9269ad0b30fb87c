package verdict

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/fabricd/fabricd/fabric/addr"
)

// want lets node n join for one ID on session s; more completes the request.
func (b *bench) want(n byte, s SessionID, id addr.NodeID, more ...func(*Join)) {
	j := joinOf(n)
	j.Want = id
	for _, f := range more {
		f(&j)
	}
	b.in(s, j)
}

// gets is want, and that it is granted.
func (b *bench) gets(n byte, s SessionID, id addr.NodeID, more ...func(*Join)) addr.Incarnation {
	b.t.Helper()
	b.want(n, s, id, more...)
	out := b.out
	out = append(out, b.sync()...)
	g, ok := sent[Grant](out, s)
	if !ok || g.Incarnation.Node != id {
		b.t.Fatalf("node %d wants %d and got %+v", n, id, out)
	}
	return g.Incarnation
}

// isRefused is want, and that it is refused with code and words.
func (b *bench) isRefused(n byte, s SessionID, id addr.NodeID, code Refusal, words string, more ...func(*Join)) {
	b.t.Helper()
	b.want(n, s, id, more...)
	if r, ok := sent[Refused](b.out, s); !ok || r.Code != code || !strings.Contains(r.Text, words) {
		b.t.Errorf("node %d wants %d: %+v, want it refused as %v with %q", n, id, b.out, code, words)
	}
}

func spare(j *Join) { j.WantFree = true }

func TestAWantedIDIsGrantedOrRefusedWithTheReason(t *testing.T) {
	b := newBench(t)
	first := b.gets(1, 1, 7)
	b.isRefused(2, 2, 7, RefusedInvalid, `taken by node "n1"`)
	b.isRefused(2, 2, addr.FirstReserved, RefusedInvalid, "want 1 to 65519")
	b.isRefused(2, 2, 7, RefusedInvalid, `taken by node "n1"`, spare) // an ID that is taken is not spare
	if l := b.join(3, 3); l.Node != 1 {
		b.t.Errorf("a newcomer got %v, want the first free ID", l)
	}

	b.in(1, Leave{Incarnation: first})
	ended := b.now
	b.sync()
	b.isRefused(2, 2, 7, RefusedInvalid, `that of node "n1", which is away`)
	b.isRefused(2, 2, 7, RefusedFull, "until "+ended.Add(b.h.t.Quarantine).UTC().Format(time.RFC3339), spare)
	if again := b.gets(1, 4, 7); again.Generation <= first.Generation {
		t.Errorf("its own ID comes back as %v behind %v", again, first)
	}
	b.isRefused(1, 5, 8, RefusedInvalid, "this node has the ID 7 and keeps it", func(j *Join) { j.Epoch++ })
	if n := b.h.find(7); n == nil || n.phase != live {
		t.Error("a join for another ID has ended the incarnation that the node has")
	}

	b.in(4, Leave{Incarnation: b.h.find(7).node.Incarnation})
	b.sync()
	for _, s := range []SessionID{LocalSession, 3} {
		b.in(s, Ack{Incarnation: addr.Incarnation{Node: 7, Generation: first.Generation + 1}})
	}
	b.wait(b.h.t.Quarantine+b.h.t.Tick, 3)
	b.isRefused(2, 2, 7, RefusedInvalid, "which is away") // for as long as it belongs to the cluster
	b.gets(2, 2, 7, spare)
	b.isRefused(1, 6, 7, RefusedInvalid, `taken by node "n2"`)
}

// A host that lost its table keeps unknown IDs for the nodes that can prove theirs.
func TestAWantedIDWaitsForClaims(t *testing.T) {
	b := &bench{t: t, now: time.Unix(1000, 0)}
	var err error
	b.h, err = NewHost(HostConfig{Self: identity(200), Term: 3, Floor: 50}, b.now)
	if err != nil {
		t.Fatal(err)
	}
	b.in(LocalSession, joinOf(200))
	b.isRefused(1, 1, 9, RefusedBusy, "claim")
	last := func(j *Join) { j.Previous = addr.Incarnation{Node: 9, Generation: 60} }
	b.isRefused(2, 2, 8, RefusedInvalid, "has the ID 9", last)
	if l := b.gets(2, 2, 9, last); l.Generation != 61 {
		t.Errorf("the node that proves incarnation 9.60 got %v", l)
	}
	b.isRefused(1, 1, 9, RefusedInvalid, "taken")
}

// A member that wants an ID ends rather than to live with another one.
func TestAMemberTakesNoOtherIDThanItWants(t *testing.T) {
	now := time.Unix(1000, 0)
	if _, err := NewMember(MemberConfig{Self: identity(1), Want: addr.FirstReserved}, now); err == nil {
		t.Error("an ID that no node can have is taken")
	}
	m, err := NewMember(MemberConfig{Self: identity(1), Want: 7, Previous: addr.Incarnation{Node: 5, Generation: 2}}, now)
	if err != nil {
		t.Fatal(err)
	}
	m.Step(now, Tick{})
	if e, ok := did[Emit](m.Step(now, DialFailed{Text: "no host"})); ok {
		t.Errorf("without a host it shows %+v, which has another ID", e)
	}
	out := m.Step(now, Connected{Session: 1})
	if j, ok := sent[Join](out, 1); !ok || j.Want != 7 {
		t.Errorf("it asks %+v, want a Join for 7", out)
	}
	out = m.Step(now, Received{1, Grant{Term: 3, Incarnation: addr.Incarnation{Node: 6, Generation: 1}}})
	if h, ok := did[Halt](out); !ok || !strings.Contains(h.Text, "node-id 7") || len(out) != 1 {
		t.Errorf("granted ID 6 it does %+v, want a halt alone", out)
	}
}

// Whatever nodes want, and however they leave and come back: no incarnation is granted twice, a
// node has one ID for good, and no node gets an ID that another node has, or had last
// without having left the cluster.
func TestWantedIDsAgainstModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		b := newBench(t)
		granted := make(map[addr.Incarnation]bool)
		has := make(map[byte]addr.NodeID)               // of good standing
		last := make(map[addr.NodeID]byte)              // the node that had it last
		incarnations := make(map[byte]addr.Incarnation) // the nodes that live
		on := make(map[byte]SessionID)                  // and on which session
		over := make(map[addr.NodeID]time.Time)         // when the last incarnation of an ID ended
		session := SessionID(10)
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			n := byte(rapid.IntRange(1, 6).Draw(rt, "node"))
			if incarnation, ok := incarnations[n]; ok {
				b.in(on[n], Leave{Incarnation: incarnation})
				b.sync()
				over[incarnation.Node] = b.now
				delete(incarnations, n)
				b.in(LocalSession, Ack{Incarnation: incarnation})
				for o := range incarnations {
					b.in(on[o], Ack{Incarnation: incarnation})
				}
				continue
			}
			if rapid.IntRange(0, 3).Draw(rt, "wait") == 0 {
				var alive []SessionID
				for o := range incarnations {
					alive = append(alive, on[o])
				}
				b.wait(b.h.t.Quarantine/2, alive...)
			}
			session++
			want := addr.NodeID(rapid.IntRange(0, 5).Draw(rt, "want"))
			free := rapid.Bool().Draw(rt, "spare")
			b.want(n, session, want, func(j *Join) { j.WantFree = free })
			g, ok := sent[Grant](b.sync(), session)
			if !ok {
				if own := has[n]; own != 0 && (want == 0 || want == own) {
					rt.Fatalf("node %d has %d and is refused: %+v", n, own, b.out)
				}
				continue
			}
			id := g.Incarnation.Node
			holder, had := last[id]
			switch {
			case granted[g.Incarnation]:
				rt.Fatalf("%v granted twice", g.Incarnation)
			case want != 0 && id != want:
				rt.Fatalf("node %d wants %d and got %v", n, want, g.Incarnation)
			case has[n] != 0 && id != has[n]:
				rt.Fatalf("node %d has %d and got %v", n, has[n], g.Incarnation)
			case had && holder != n && b.now.Before(over[id].Add(b.h.t.Quarantine)):
				rt.Fatalf("%v granted in quarantine, to node %d behind node %d", g.Incarnation, n, holder)
			case had && holder != n && has[holder] == id && want != 0 && !free:
				rt.Fatalf("%v of node %d, which is away, granted to node %d", g.Incarnation, holder, n)
			}
			if had && holder != n {
				delete(has, holder)
			}
			granted[g.Incarnation], has[n], last[id], incarnations[n], on[n] = true, id, n, g.Incarnation, session
		}
	})
}
