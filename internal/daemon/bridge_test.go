package daemon

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/engine"
	"github.com/fabricd/fabricd/internal/test/bubble"
	"github.com/fabricd/fabricd/membership"
)

// fakeEngine records its calls. Its NodeLost takes as long as release.
type fakeEngine struct {
	calls   []string
	release chan struct{}
}

func (e *fakeEngine) say(format string, args ...any) {
	e.calls = append(e.calls, fmt.Sprintf(format, args...))
}
func (e *fakeEngine) SetSelf(s engine.Self) {
	e.say("self %v %v epoch %d term %d %q", s.Incarnation, s.UUID, s.Epoch, s.Term, s.Name)
}
func (e *fakeEngine) NodeUp(p engine.Peer)     { e.say("up %v %q %v", p.Incarnation, p.Name, p.Addresses) }
func (e *fakeEngine) NodeUpdate(p engine.Peer) { e.say("update %v %v", p.Incarnation, p.Addresses) }
func (e *fakeEngine) Retain(incarnations []addr.Incarnation, reason string) {
	e.say("retain %v %s", incarnations, reason)
}
func (e *fakeEngine) ResetSelf(reason string) { e.say("reset %s", reason) }
func (e *fakeEngine) NodeLost(incarnation addr.Incarnation, reason string) {
	<-e.release
	e.say("lost %v %s", incarnation, reason)
}

func newTestBridge(e *fakeEngine) *bridge {
	return &bridge{cluster: addr.UUID{1}, name: "me", term: func() uint64 { return 5 },
		engine: e, nodeList: newNodeList(), log: zerolog.Nop()}
}

func TestEventsReachTheEngineInOrder(t *testing.T) {
	e := &fakeEngine{release: make(chan struct{})}
	close(e.release)
	b := newTestBridge(e)
	self := testNode(3, 2, "me")
	self.UUID, self.Epoch = addr.UUID{9}, 77
	moved := testNode(4, 1, "four")
	moved.Claims = testClaims("four", "10.0.0.9:1")
	for _, ev := range []membership.Event{
		{Kind: membership.EventSelf, Node: self},
		{Kind: membership.EventAdded, Node: testNode(4, 1, "four")},
		{Kind: membership.EventUpdated, Node: moved},
		{Kind: membership.EventRemoved, Node: moved, Reason: membership.ReasonCrashed},
		{Kind: membership.EventHost, Detail: "lost"},
		{Kind: membership.EventReset, Reason: membership.ReasonPartitioned},
	} {
		b.handle(ev)
	}
	want := []string{
		`retain [] silent`,
		`self 3.2 09000000-0000-0000-0000-000000000000 epoch 77 term 5 "me"`,
		`up 4.1 "four" [10.0.0.1:7700]`,
		`update 4.1 [10.0.0.9:1]`,
		`lost 4.1 crashed`,
		`reset partitioned`,
	}
	if fmt.Sprint(e.calls) != fmt.Sprint(want) {
		t.Errorf("got  %q\nwant %q", e.calls, want)
	}
	if all := b.nodeList.snapshot(time.Now()); all.Self != addr.NoNode || len(all.Nodes) != 1 || all.Nodes[0].State != "removed" {
		t.Errorf("after the reset the node list is %+v, want no self and node 4 removed", all)
	}
}

// TestAnIncarnationBeginsWithItsTable: applications see this node's incarnation when the engine
// knows all of those that its first table lists, and no others; what the node list
// showed before a reset is not shown for ever.
func TestAnIncarnationBeginsWithItsTable(t *testing.T) {
	e := &fakeEngine{}
	b := newTestBridge(e)
	alive := func() (ids []addr.NodeID, self addr.NodeID) {
		all := b.nodeList.snapshot(time.Now())
		for _, n := range all.Nodes {
			ids = append(ids, n.ID)
		}
		return ids, all.Self
	}
	b.handle(membership.Event{Kind: membership.EventSelf, Node: testNode(3, 2, "me"), Others: 2})
	b.handle(membership.Event{Kind: membership.EventAdded, Node: testNode(0, 1, "host")})
	if ids, self := alive(); self != addr.NoNode || len(ids) != 0 {
		t.Errorf("with half of its table: node %v beside %v", self, ids)
	}
	b.handle(membership.Event{Kind: membership.EventAdded, Node: testNode(4, 1, "four")})
	if ids, self := alive(); self != 3 || len(ids) != 3 {
		t.Errorf("with its table: node %v beside %v", self, ids)
	}
	b.handle(membership.Event{Kind: membership.EventAdded, Node: testNode(5, 1, "five")})
	b.handle(membership.Event{Kind: membership.EventReset, Reason: membership.ReasonPartitioned})
	if ids, self := alive(); self != addr.NoNode || len(ids) != 0 {
		t.Errorf("after a reset: node %v beside %v", self, ids)
	}
	b.handle(membership.Event{Kind: membership.EventSelf, Node: testNode(3, 3, "me"), Reason: membership.ReasonPartitioned})
	b.handle(membership.Event{Kind: membership.EventReset, Reason: membership.ReasonPartitioned})
	b.handle(membership.Event{Kind: membership.EventSelf, Node: testNode(3, 4, "me"), Others: 1})
	b.handle(membership.Event{Kind: membership.EventAdded, Node: testNode(0, 1, "host")})
	want := []string{
		`up 0.1 "host" [10.0.0.1:7700]`, `up 4.1 "four" [10.0.0.1:7700]`, `retain [0.1 4.1] silent`, `self 3.2 00000000-0000-0000-0000-000000000000 epoch 0 term 5 "me"`,
		`up 5.1 "five" [10.0.0.1:7700]`, `reset partitioned`, `reset partitioned`,
		`up 0.1 "host" [10.0.0.1:7700]`, `retain [0.1] silent`, `self 3.4 00000000-0000-0000-0000-000000000000 epoch 0 term 5 "me"`,
	}
	if fmt.Sprint(e.calls) != fmt.Sprint(want) {
		t.Errorf("got  %q\nwant %q", e.calls, want)
	}
}

// TestARemovalIsHandledWhenTheEngineIsDone keeps the order of a loss: the
// engine ends everything towards the node, then readers are notified, then the
// return acknowledges.
func TestARemovalIsHandledWhenTheEngineIsDone(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		e := &fakeEngine{release: make(chan struct{})}
		b := newTestBridge(e)
		b.handle(membership.Event{Kind: membership.EventAdded, Node: testNode(4, 1, "four")})
		sub := b.nodeList.subscribe(time.Now())
		handled := false
		go func() {
			b.handle(membership.Event{Kind: membership.EventRemoved, Node: testNode(4, 1, "four"), Reason: membership.ReasonSilent})
			handled = true
		}()
		synctest.Wait()
		if handled || len(sub.events) != 0 {
			t.Errorf("handled %v, %d events before the engine was done, want neither", handled, len(sub.events))
		}
		close(e.release)
		synctest.Wait()
		if !handled || len(sub.events) != 1 {
			t.Fatalf("handled %v, %d events after the engine was done, want both", handled, len(sub.events))
		}
		if got := <-sub.events; got.Event != EventRemoved || got.Reason != "silent" || got.Node.State != "removed" {
			t.Errorf("readers receive %+v", got)
		}
	})
}

// TestALateRemovalDoesNotHideTheNextIncarnation keeps two incarnations of one ID apart.
func TestALateRemovalDoesNotHideTheNextIncarnation(t *testing.T) {
	r := newNodeList()
	r.apply(membership.Event{Kind: membership.EventAdded, Node: testNode(4, 2, "four")}, time.Now())
	r.apply(membership.Event{Kind: membership.EventRemoved, Node: testNode(4, 1, "four")}, time.Now())
	all := r.snapshot(time.Now()).Nodes
	if len(all) != 1 || all[0].Generation != 2 || all[0].State != "alive" {
		t.Errorf("got %+v, want generation 2 alive", all)
	}
}

// TestTheEngineIsNotifiedWhenACertificateEnds: a link ends with it.
func TestTheEngineIsNotifiedWhenACertificateEnds(t *testing.T) {
	n := testNode(4, 1, "four")
	n.Until = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	if got := peerOf(n).Until; !got.Equal(n.Until) {
		t.Errorf("the engine receives %v, want %v", got, n.Until)
	}
}

func TestEvidenceKeepsItsMeaning(t *testing.T) {
	for from, to := range map[engine.Evidence]membership.Evidence{
		engine.LinkAlive:   membership.LinkAlive,
		engine.LinkSilent:  membership.LinkSilent,
		engine.LinkReset:   membership.LinkReset,
		engine.LinkFenced:  membership.LinkFenced,
		engine.LinkRefused: membership.LinkRefused,
	} {
		if got := evidenceOf(from); got != to {
			t.Errorf("evidence %d becomes %d, want %d", from, got, to)
		}
	}
	var r reporter
	r.report(addr.Incarnation{Node: 1, Generation: 1}, engine.LinkSilent) // no host to notify yet
}
