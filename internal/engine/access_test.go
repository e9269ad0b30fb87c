package engine_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/access"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/engine"
	"github.com/fabricd/fabricd/internal/test/bubble"
	"github.com/fabricd/fabricd/internal/wire"
)

// rules returns a policy.
func rules(t *testing.T, closed bool, texts ...string) *access.Policy {
	t.Helper()
	var all []access.Rule
	for _, text := range texts {
		r, err := access.ParseRule(text)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	p, err := access.NewPolicy(all, closed)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// named gives node j's entry in node i's table a name and labels.
func (f *fabric) named(i, j int, name string, labels ...string) {
	p := f.peers[j]
	p.Name, p.Labels = name, labels
	f.nodes[i].NodeUpdate(p)
}

// openAs opens an endpoint of node i for a user.
func (f *fabric) openAs(i int, uid, gid uint32) attach.NodeEndpoint {
	ep, err := f.nodes[i].NewSession(attach.Credentials{UID: uid, GID: gid, Admin: true}).Open()
	if err != nil {
		f.t.Fatal(err)
	}
	return ep
}

// listenerAt is a listener of a user of node 0 that accepts each request.
func (f *fabric) listenerAt(port addr.Port, uid uint32, allow ...access.Subject) attach.NodeEndpoint {
	f.t.Helper()
	l := f.openAs(0, uid, 0)
	_, err := l.Bind(port)
	if err == nil {
		err = l.Listen(4, allow...)
	}
	if err != nil {
		f.t.Fatal(err)
	}
	go func() {
		for {
			if _, _, err := l.Accept(context.Background()); err != nil {
				return
			}
		}
	}()
	return l
}

// reaches connects from node i, as a user, to a port of node 0.
func (f *fabric) reaches(i int, uid uint32, port addr.Port, want bool) {
	f.t.Helper()
	ep := f.openAs(i, uid, 0)
	defer ep.Close()
	_, err := ep.Connect(context.Background(), addr.Addr{Port: port})
	if want && err != nil || !want && !errors.Is(err, syscall.ECONNREFUSED) {
		f.t.Errorf("node %d, user %d, port %d: %v, want success: %v", i, uid, port, err, want)
	}
}

func TestRulesDecideByTheNodeTable(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		fab := newFabricOf(t, 3, engine.Config{Access: rules(t, false, "2050 from web-1", "2051 from label:db", "2052 from host", "2053 from local", "2054 from none")})
		for port := addr.Port(2050); port <= 2055; port++ {
			fab.listenerAt(port, 1)
		}
		fab.named(0, 1, "web-1", "web")
		fab.named(0, 2, "db-1", "db")
		for port, from := range map[addr.Port][3]bool{
			2050: {false, true, false}, 2051: {false, false, true}, 2052: {true, false, false},
			2053: {true, false, false}, 2054: {}, 2055: {true, true, true},
		} {
			for i, want := range from {
				fab.reaches(i, 9, port, want)
			}
		}
		// The current table counts, on an existing link: not the earlier one.
		fab.named(0, 1, "other", "db")
		fab.reaches(1, 9, 2050, false)
		fab.reaches(1, 9, 2051, true)
	})
}

func TestRulesAreTakenOverForConnectsToCome(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		fab := newFabric(t, 2)
		fab.named(0, 1, "web-1")
		fab.listenerAt(2050, 1)
		there := fab.openAs(1, 9, 0)
		if _, err := there.Connect(context.Background(), addr.Addr{Port: 2050}); err != nil {
			t.Fatal(err)
		}
		fab.nodes[0].SetAccess(rules(t, false, "2050 from db-1"))
		fab.reaches(1, 9, 2050, false)
		if _, err := there.Send(context.Background(), []byte("x")); err != nil {
			t.Errorf("a connection from before: %v", err)
		}
		fab.nodes[0].SetAccess(rules(t, true, "2050 from db-1"))
		if got := fab.nodes[0].AccessRules(); len(got) != 2 || got[0] != (engine.RuleCount{Rule: "2050 from db-1", Refused: 1}) || got[1].Rule != "default-access: closed" {
			t.Errorf("the count of a rule that stays: %+v", got)
		}
		fab.nodes[0].SetAccess(nil)
		fab.reaches(1, 9, 2050, true)
	})
}

func TestClosedIsForTheSameUserOfTheNode(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		fab := newFabricOf(t, 2, engine.Config{Access: rules(t, true)})
		fab.listenerAt(2050, 7)
		fab.reaches(0, 7, 2050, true)
		fab.reaches(0, 8, 2050, false)
		fab.reaches(1, 7, 2050, false)
	})
}

func TestListenersAllowListOnlyTakesAway(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		fab := newFabricOf(t, 3, engine.Config{Access: rules(t, false, "2050 from web-1 local")})
		fab.named(0, 1, "web-1")
		fab.named(0, 2, "db-1")
		allow, err := access.ParseSubjects([]string{"web-1", "db-1"})
		if err != nil {
			t.Fatal(err)
		}
		l := fab.listenerAt(2050, 7, allow...)
		fab.reaches(0, 7, 2050, false)
		fab.reaches(1, 7, 2050, true)
		fab.reaches(2, 7, 2050, false)
		p := fab.nodes[0].Ports()
		if len(p) == 0 || p[0].Access != "2050 from web-1 local" || p[0].Allow != "web-1 db-1" || p[0].Refused != 2 {
			t.Errorf("ports: %+v", p)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestEveryRefusalIsReportedAndCounted(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var refusals []engine.Refusal
		fab := newFabricOf(t, 2, engine.Config{Access: rules(t, false, "2050 from none"), Refused: func(r engine.Refusal) { refusals = append(refusals, r) }})
		fab.named(0, 1, "web-1", "web")
		for range 100 {
			fab.reaches(1, 9, 2050, false) // there is no listener: the rule decides before
		}
		if len(refusals) != 100 {
			t.Fatalf("%d reports of 100 refusals", len(refusals))
		}
		if r := refusals[0]; r.Bind || r.Port != 2050 || r.Node != uuid(2) || r.Caller.Name != "web-1" || r.Caller.UID != 9 || r.By != "2050 from none" {
			t.Errorf("reported %+v", r)
		}
		if got := fab.nodes[0].AccessRules()[0].Refused; got != 100 {
			t.Errorf("%d counted, want 100", got)
		}
	})
}

func TestPortsAreBoundByTheUsersOfTheRule(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var refusals []engine.Refusal
		fab := newFabricOf(t, 1, engine.Config{Access: rules(t, false, "2050 bind 7 group:27", "32768-32770 bind 7"), Refused: func(r engine.Refusal) { refusals = append(refusals, r) }})
		for _, c := range []struct {
			uid, gid uint32
			want     error
		}{{8, 9, syscall.EACCES}, {0, 0, syscall.EACCES}, {7, 9, nil}, {9, 27, nil}} {
			ep := fab.openAs(0, c.uid, c.gid)
			_, err := ep.Bind(2050)
			if !errors.Is(err, c.want) {
				t.Errorf("user %d, group %d: %v, want %v", c.uid, c.gid, err, c.want)
			}
			if err != nil && !strings.Contains(err.Error(), "2050 bind 7 group:27") {
				t.Errorf("%v does not name the rule", err)
			}
			ep.Close()
		}
		if got := fab.nodes[0].AccessRules()[0]; got != (engine.RuleCount{Rule: "2050 bind 7 group:27", Refused: 2}) {
			t.Errorf("counted %+v, want 2 of the first rule", got)
		}
		if len(refusals) != 2 || !refusals[0].Bind || refusals[0].Port != 2050 || refusals[0].Caller.UID != 8 || refusals[0].Node != uuid(1) {
			t.Errorf("reported %+v", refusals)
		}
		if port, err := fab.openAs(0, 8, 0).Bind(0); port != 32771 || err != nil {
			t.Errorf("chosen for a user that may not have the first ports: %d, %v", port, err)
		}
		if port, err := fab.openAs(0, 7, 0).Bind(0); port != 32768 || err != nil {
			t.Errorf("chosen for one that may: %d, %v", port, err)
		}
	})
}

func TestPreviewSaysWhatAConnectMeets(t *testing.T) {
	each(t, func(t *testing.T, fab *fabric, j int) {
		fab.named(j, 0, "asker") // on the loopback there is no other node to name
		fab.nodes[j].SetAccess(rules(t, false, "2050 from asker local", "2051 from none"))
		l := fab.open(j)
		if _, err := l.Bind(2050); err != nil {
			t.Fatal(err)
		}
		if err := l.Listen(3); err != nil {
			t.Fatal(err)
		}
		if _, err := fab.open(0).TryConnect(addr.Addr{Node: addr.NodeID(j), Port: 2050}); !errors.Is(err, syscall.EINPROGRESS) {
			t.Fatal(err)
		}
		synctest.Wait()
		for port, want := range map[addr.Port]engine.Preview{
			2050: {Allowed: true, By: "2050 from asker local", Listening: true, Waiting: 1, Backlog: 3},
			2051: {By: "2051 from none"},
			2052: {Allowed: true, By: "default-access: open"},
		} {
			got, err := fab.nodes[0].Preview(context.Background(), addr.Addr{Node: addr.NodeID(j), Port: port}, 7)
			if got != want || err != nil {
				t.Errorf("port %d: %+v, %v, want %+v", port, got, err, want)
			}
		}
		if got := fab.nodes[j].AccessRules()[1].Refused; got != 0 {
			t.Errorf("asking was counted as %d refused connects", got)
		}
		_, err := fab.nodes[0].Preview(context.Background(), addr.Addr{Node: 77, Port: 1}, 7)
		if !errors.Is(err, syscall.ENODEV) {
			t.Errorf("of no node: %v", err)
		}
		if _, err := fab.nodes[0].Preview(context.Background(), addr.Addr{Node: addr.NodeID(j)}, 7); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("of port 0: %v", err)
		}
	})
}

func TestPreviewEndsWithItsContextAndItsLink(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		fab := newFabricOn(t, netConfig{}, 2, engine.Config{})
		if _, err := fab.nodes[0].Preview(context.Background(), addr.Addr{Node: 1, Port: 9}, 7); err != nil {
			t.Fatal(err)
		}
		fab.hub.Cut("node0.1", "node1.1")
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		if _, err := fab.nodes[0].Preview(ctx, addr.Addr{Node: 1, Port: 9}, 7); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("no answer comes: %v", err)
		}
		result := make(chan error, 1)
		go func() {
			_, err := fab.nodes[0].Preview(context.Background(), addr.Addr{Node: 1, Port: 9}, 7)
			result <- err
		}()
		synctest.Wait()
		fab.nodes[0].NodeLost(fab.peers[1].Incarnation, "crashed")
		if err := <-result; !errors.Is(err, syscall.ENODEV) {
			t.Errorf("the node is lost: %v", err)
		}
	})
}

// A hostile peer may ask, is answered, and gains nothing by answers to nothing.
func TestHostilePeerAsks(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h := newHostile(t, 1)
		h.write(wire.Answer{Request: 9, Allowed: true, By: "x"}.AppendTo(nil))
		for i := range uint64(5000) {
			h.write(wire.Ask{Request: i, To: 7, UID: uint32(i)}.AppendTo(nil))
			hd, body, err := h.ctrlIn.Next()
			if err != nil {
				t.Fatal(err)
			}
			if f, err := wire.ParseAnswer(hd.Flags, body); hd.Type != wire.TypeAnswer || f.Request != i || f.Listening || err != nil {
				t.Fatalf("answered with %v, %+v, %v", hd.Type, f, err)
			}
		}
		if h.sess.Err() != nil {
			t.Errorf("session ended: %v", h.sess.Err())
		}
		h.write(wire.Ask{Request: 1}.AppendTo(nil)) // port 0
		h.wantReset(true)
	})
}

func (h *hostile) write(p []byte) {
	if _, err := h.ctrl.Write(p); err != nil {
		h.t.Fatal(err)
	}
}

func TestPeerIsTheApplicationThatHasConnected(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		fab := newFabric(t, 2)
		fab.named(0, 1, "web-1", "web", "eu")
		l := fab.openAs(0, 5, 0)
		port, err := l.Bind(0)
		if err == nil {
			err = l.Listen(1)
		}
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range []attach.Peer{{Incarnation: fab.peers[0].Incarnation, UID: 9}, {Incarnation: fab.peers[1].Incarnation, Name: "web-1", UID: 9}} {
			from := fab.openAs(i, 9, 0)
			go from.Connect(context.Background(), addr.Addr{Port: port})
			to, _, err := l.Accept(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			fab.named(0, 1, "renamed")
			got, err := to.Peer()
			if got.Incarnation != want.Incarnation || got.Name != want.Name || got.UID != want.UID || err != nil {
				t.Errorf("the acceptor's peer: %+v, %v, want %+v", got, err, want)
			}
			fab.named(0, 1, "web-1", "web", "eu")
			synctest.Wait()
			uid := uint32(5)
			if i == 1 {
				uid = access.UnknownUID
				if strings.Join(got.Labels, " ") != "web eu" {
					t.Errorf("labels %q", got.Labels)
				}
			}
			if got, err := from.Peer(); got.Incarnation != fab.peers[0].Incarnation || got.UID != uid || err != nil {
				t.Errorf("the connector's peer: %+v, %v, want user %d", got, err, uid)
			}
		}
	})
}

// A name that a rule of the host keeps this node from serving is not found here, and
// no connect by it succeeds; the listener's port stays.
func TestBarredNamesAreNotServed(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		fab := newFabricOf(t, 2, engine.Config{})
		e := fab.openAs(0, 1, 1)
		port, err := e.Bind(2050)
		if err == nil {
			err = e.Serve("db")
		}
		if err == nil {
			err = e.Listen(1)
		}
		if err != nil {
			t.Fatal(err)
		}
		found := func() string {
			list, err := fab.nodes[0].Resolve("db", "")
			return fmt.Sprint(len(list), " ", err)
		}
		connects := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := fab.openAs(1, 1, 1).ConnectService(ctx, addr.Addr{Node: fab.nodes[0].Self().Incarnation.Node, Port: port}, "db")
			return err
		}
		// fails reports whether one Accept, which waits already, fails because the name is barred.
		fails := func(names ...string) error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			time.AfterFunc(time.Millisecond, func() { fab.nodes[0].Barred(names) })
			_, _, err := e.Accept(ctx)
			return err
		}
		if err := fails("db", "web"); !errors.Is(err, syscall.EACCES) || !strings.Contains(err.Error(), `does not let this node serve "db"`) {
			t.Errorf("barred: Accept returned %v", err)
		}
		if err := fails("db"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("barred as before: Accept returned %v, want that it was reported once", err)
		}
		if s := fab.nodes[0].BarredServices(); len(s) != 1 || s[0].Name != "db" || s[0].Port != port {
			t.Errorf("barred are %v, want db", s)
		}
		if got, err := found(), connects(); got != `0 no node serves "db"` || !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("barred: found %q, a connect by the name: %v", got, err)
		}
		if s := fab.nodes[0].Serves(); len(s) != 1 {
			t.Errorf("the host is sent %v, want the name: the rule may change", s)
		}
		fab.nodes[0].Barred(nil)
		if got, err := found(), connects(); got != "1 <nil>" || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("allowed again: found %q, a connect by the name: %v, want it to wait for an accept", got, err)
		}
		if fab.nodes[0].Barred([]string{"db"}); e.Ready() != attach.PollIn {
			t.Errorf("barred again: %v, want PollIn", e.Ready())
		}
		fab.nodes[0].Barred(nil)
		if _, _, err := e.TryAccept(); !errors.Is(err, syscall.EAGAIN) {
			t.Errorf("barred and allowed again: TryAccept returned %v, want EAGAIN", err)
		}
		fab.nodes[0].Barred([]string{"db", "late"})
		late := fab.openAs(0, 1, 1)
		if _, err := late.Bind(2051); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(late.Serve("late"), late.Listen(1)); err != nil {
			t.Fatal(err)
		}
		if _, _, err := late.TryAccept(); !errors.Is(err, syscall.EACCES) {
			t.Errorf("a listener whose name is barred already: TryAccept returned %v, want EACCES", err)
		}
	})
}
