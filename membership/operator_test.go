package membership

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/guard"
	"github.com/fabricd/fabricd/membership/control"
	"github.com/fabricd/fabricd/membership/state"
	"github.com/fabricd/fabricd/membership/trust"
	"github.com/fabricd/fabricd/membership/verdict"
)

// TestABanEndsEverythingAndLasts: a banned node's incarnation, session and lifelines end
// within a second, no other node notices more than that, the gossip key is
// another one, restarts of the node, of a member and of the host change nothing, and
// allowed again the node comes back by itself.
func TestABanEndsEverythingAndLasts(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.cluster(4)
		bad, incarnation := w.node(4), w.node(4).incarnation()
		time.Sleep(time.Second)
		began := time.Now().Add(-1)
		e, err := w.node(1).a.BanNode(t.Context(), "n4", "stolen")
		if took := time.Since(began); err != nil || took > time.Second || e.Name != "n4" || !e.IsBanned() {
			t.Fatalf("banned %+v, %v, after %v", e, err, took)
		}
		for i := 1; i <= 3; i++ {
			if got := words(w.node(i).since(began)); !slices.Equal(got, []string{"removed " + incarnation.String() + " banned"}) {
				t.Errorf("node %d received %v, want the end of %v only", i, got, incarnation)
			}
			if n := w.node(i).a.linesOfPeer(e.UUID); n != 0 {
				t.Errorf("node %d has %d lifelines with the banned node", i, n)
			}
		}
		if _, err := w.node(1).a.BanNode(t.Context(), e.UUID.String(), "still"); err != nil {
			t.Errorf("banned again: %v", err)
		}
		w.within(10*time.Second, "it knows why it is out", func() bool {
			return strings.Contains(bad.a.Status().HostDetail, "banned")
		})
		w.within(20*time.Second, "the gossip key is another one", func() bool {
			ring, err := trust.DecodeKeyring(w.node(3).st.Secret("keyring"))
			return err == nil && slices.Equal(ring.Versions(), []uint32{2})
		})
		out := func(when string) {
			t.Helper()
			time.Sleep(5 * time.Second)
			if l := w.node(4).incarnation(); l != noIncarnation {
				t.Errorf("%s: the banned node lives as %v", when, l)
			}
			if !mesh([]*node{w.node(1), w.node(2), w.node(3)}) {
				t.Errorf("%s: the others do not see each other only", when)
			}
		}
		out("at once")
		w.kill(bad)
		w.again(4)
		out("after its restart")
		w.kill(w.node(1))
		w.again(1)
		w.kill(w.node(2))
		w.again(2)
		w.within(20*time.Second, "the others are back", func() bool { return mesh([]*node{w.node(1), w.node(2), w.node(3)}) })
		out("after a restart of the host and of a member")
		if err := w.call(w.node(4), w.node(2), control.End{UUID: e.UUID, Epoch: 77}, nil); err == nil || !strings.Contains(err.Error(), "banned") {
			t.Errorf("a lifeline of the banned node to a member: %v", err)
		}
		must(w.node(1).a.AllowNode(t.Context(), "n4", false))
		w.within(10*time.Second, "it is back", func() bool { return mesh(w.all) })
	})
}

// linesOfPeer is linesOf for other goroutines.
func (a *Agent) linesOfPeer(u addr.UUID) int {
	n := make(chan int, 1)
	a.post(func() { n <- a.linesOf(u) })
	return <-n
}

// TestARemovedNodeIsUnknown: it cannot come back with its certificate, and with a
// token only as another member; its name is free.
func TestARemovedNodeIsUnknown(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.cluster(3)
		gone := w.node(3)
		incarnation := gone.incarnation()
		must(w.node(1).a.RemoveNode(t.Context(), "2")) // its ID
		if got := removals(w.node(2).since(time.Time{})); !slices.Contains(got, "removed "+incarnation.String()+" expelled") {
			t.Errorf("node 2 received %v", got)
		}
		time.Sleep(10 * time.Second)
		if l := gone.incarnation(); l != noIncarnation || !strings.Contains(gone.a.Status().HostDetail, "with an empty --state-dir and a token") {
			t.Errorf("the removed node lives as %v, %q", l, gone.a.Status().HostDetail)
		}
		if list := w.node(1).a.Enrolments(); len(list) != 1 || list[0].Name != "n2" {
			t.Errorf("the host knows %+v, want n2 only", list)
		}
		if _, err := w.node(1).a.RemoveNode(t.Context(), "n3"); err == nil {
			t.Error("removed twice")
		}
		for _, host := range []string{"0", "n1"} {
			if _, err := w.node(1).a.BanNode(t.Context(), host, ""); err == nil || !strings.Contains(err.Error(), "is the host") {
				t.Errorf("ban of the host as %s: %v", host, err)
			}
		}
		if _, err := w.node(2).a.BanNode(t.Context(), "n3", ""); err == nil {
			t.Error("a plain node bans")
		}
	})
}

// TestTheCAIsRotatedUnderTraffic: every node has a certificate of the new CA and
// trusts no other, and no node has lost a session, a lifeline or an incarnation.
func TestTheCAIsRotatedUnderTraffic(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.cluster(4)
		time.Sleep(2 * time.Second)
		began, old := time.Now(), w.node(1).a.cfg.Trust.Pin()
		stop := w.traffic()
		time.Sleep(2 * time.Second)
		if err := w.node(1).a.RotateCA(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, n := range w.all {
			creds := n.a.cfg.Trust.Credentials()
			if len(creds.Roots) != 1 || trust.PinOf(creds.Roots[0]) == old || creds.Chain[0].CheckSignatureFrom(creds.Roots[0]) != nil {
				t.Errorf("node %d: %d roots, certificate of %s", n.i, len(creds.Roots), creds.Chain[0].Issuer)
			}
			if _, err := control.VerifyLease(n.a.cfg.Trust, n.a.Lease()); err != nil {
				t.Errorf("node %d: its lease: %v", n.i, err)
			}
		}
		stop()
		w.wantUndisturbed(began)
		for _, r := range w.node(1).a.Tokens() {
			if !r.Void {
				t.Errorf("the token %s, made before, is not void", r.ID)
			}
		}
		st := must(state.Prepare(filepath.Join(w.dir, "late"), "late", state.Options{}))
		if err := Join(t.Context(), w.joinConfig(6, st, w.token)); !errors.Is(err, trust.ErrPin) || !strings.Contains(err.Error(), "was rotated") {
			t.Errorf("join with a token made before: %v", err)
		}
		_ = st.Close()
		w.kill(w.node(3))
		w.again(3)
		w.within(10*time.Second, "a node is back with the new CA", func() bool { return mesh(w.all) })
		w.kill(w.node(1))
		w.again(1)
		w.within(20*time.Second, "the host is back with the new CA", func() bool { return mesh(w.all) })
		if all := w.node(1).a.Tokens(); len(all) == 0 || !all[0].Void {
			t.Errorf("tokens %+v after a restart, want void ones", all)
		}
		token := must(w.node(1).a.CreateToken(trust.TokenOptions{}))
		w.token = token
		w.join(5)
		w.within(10*time.Second, "a newcomer is there", func() bool { return mesh(w.all) })
	})
}

// TestKeysAreRotatedWithoutAMemberThatDoesNotConfirm: a member that never reports that it
// holds the keys does not keep the others from changing theirs.
func TestKeysAreRotatedWithoutAMemberThatDoesNotConfirm(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.cluster(3)
		mute := w.node(3)
		w.kill(mute)
		s, incarnation := w.mute(mute)
		defer func() { s.Abort(); <-s.Done() }()
		began := time.Now()
		version, err := w.node(1).a.RotateGossipKey(t.Context())
		if took := time.Since(began); err != nil || version != 2 || took > 4*handoutPatience {
			t.Errorf("rotated to %d, %v, after %v", version, err, took)
		}
		if incarnation == noIncarnation {
			t.Error("the mute member had no incarnation")
		}
	})
}

// mute has a killed node live on a session on which it answers nothing but pings.
func (w *world) mute(n *node) (*control.Session, addr.Incarnation) {
	w.t.Helper()
	time.Sleep(time.Second)
	end := control.End{UUID: n.a.self.UUID, Epoch: n.a.self.Epoch + 1}
	d := control.Dialer{Store: n.a.cfg.Trust, Dial: w.dial(n.i), Self: func() (control.End, []byte) { return end, nil }}
	s := must(d.Session(w.t.Context(), dataAddr(1)))
	granted := make(chan addr.Incarnation, 1)
	s.Start(func(m any) {
		switch m := m.(type) {
		case verdict.Grant:
			granted <- m.Incarnation
		case verdict.Check:
			s.Send(verdict.CheckResult{Nonce: m.Nonce, Target: m.Incarnation, Reached: true})
		}
	}, func(verdict.DownCause, error) {})
	s.Send(verdict.Join{Identity: claims(end, "n3", dataAddr(n.i))})
	return s, <-granted
}

// TestAnExpiredNodeComesBackByItsKey: a node that was off until its certificate had
// expired gets the next one without a token, and its own ID.
func TestAnExpiredNodeComesBackByItsKey(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		short := func(c *Config) { c.CertificateValidity = 10 * time.Minute }
		w.host(short)
		w.join(2, short)
		w.within(10*time.Second, "all see all", func() bool { return mesh(w.all) })
		n, incarnation := w.node(2), w.node(2).incarnation()
		node := n.st.Identity().Node
		w.kill(n)
		time.Sleep(11 * time.Minute)
		st := must(openState(w, 2))
		if _, err := LoadTrust(st, time.Now); err == nil {
			t.Fatal("the certificate has not expired")
		}
		c := w.joinConfig(2, st, trust.Token{})
		c.Addresses = nil // where the host was is remembered
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if err := Join(ctx, c); err != nil {
			t.Fatal(err)
		}
		w.start(2, st, short)
		w.within(10*time.Second, "it is back", func() bool { return mesh(w.all) })
		if got := w.node(2).incarnation(); st.Identity().Node != node || got.Node != incarnation.Node {
			t.Errorf("it is back as %v of %s, was %v of %s", got, st.Identity().Node, incarnation, node)
		}
	})
}

// TestSessionsWithoutAnIncarnationEnd: a node that opens sessions and asks for nothing, or is
// granted nothing, keeps few of them, and not for long.
func TestSessionsWithoutAnIncarnationEnd(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.cluster(3)
		n := w.node(3)
		w.kill(n)
		end := control.End{UUID: n.a.self.UUID, Epoch: 99}
		d := control.Dialer{Store: n.a.cfg.Trust, Dial: w.dial(3), Self: func() (control.End, []byte) { return end, nil }}
		began := time.Now()
		ended := make(chan time.Duration, 10)
		for range 5 {
			s := must(d.Session(t.Context(), dataAddr(1)))
			s.Start(func(any) {}, func(verdict.DownCause, error) { ended <- time.Since(began) })
		}
		time.Sleep(10 * time.Second)
		if len(ended) != 5 {
			t.Fatalf("%d of 5 sessions have ended", len(ended))
		}
		at := []time.Duration{<-ended, <-ended, <-ended, <-ended, <-ended}
		slices.Sort(at)
		if at[2] > time.Second || at[3] < speechless || at[4] > speechless+2*sweepEvery {
			t.Errorf("they ended after %v, want three at once and two after %v", at, speechless)
		}
		stop, flood := make(chan struct{}), sync.WaitGroup{}
		flood.Go(func() { // sessions without end, and the node comes back all the same
			for {
				s := must(d.Session(w.t.Context(), dataAddr(1)))
				s.Start(func(any) {}, func(verdict.DownCause, error) {})
				select {
				case <-stop:
					s.Abort()
					return
				case <-time.After(50 * time.Millisecond):
				}
			}
		})
		time.Sleep(time.Second)
		w.again(3)
		w.within(2*time.Second, "the node is back", func() bool { return mesh(w.all) })
		close(stop)
		flood.Wait()
	})
}

// TestLabelsComeFromTheToken: every node sees the labels of the token with which
// another one has joined, also after restarts; a node does not choose its own.
func TestLabelsComeFromTheToken(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.cluster(2)
		w.token = must(w.node(1).a.CreateToken(trust.TokenOptions{Labels: []string{"db", "rack-2"}}))
		w.join(3)
		labels := func(at *node) []string {
			for _, n := range at.a.Nodes() {
				if n.Name() == "n3" {
					return n.Labels
				}
			}
			return nil
		}
		seen := func() bool {
			return mesh(w.all) && slices.Equal(labels(w.node(1)), []string{"db", "rack-2"}) && slices.Equal(labels(w.node(2)), []string{"db", "rack-2"})
		}
		w.within(10*time.Second, "both see its labels", seen)
		w.kill(w.node(3))
		w.again(3)
		w.kill(w.node(1))
		w.again(1)
		w.within(20*time.Second, "both see its labels after restarts", seen)
	})
}

// TestAMessageThatPanicsEndsItsSession: the host goes on, and its loop with it.
func TestAMessageThatPanicsEndsItsSession(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		guard.Catch(t)
		w.cluster(3)
		n := w.node(3)
		w.kill(n)
		s, _ := w.mute(n)
		began, a := time.Now(), w.node(1).a
		ask(a, func() bool {
			for _, o := range a.sessions.open {
				if o.Peer().Epoch == s.Peer().Epoch || o.Peer().UUID == n.a.self.UUID {
					a.serve(o, func() { a.todo = append(a.todo, step{}); panic("the machine has met what cannot be") })
				}
			}
			return true
		})
		<-s.Done()
		time.Sleep(time.Second)
		if got := w.node(1).logged(); !strings.Contains(got, "what cannot be") || !strings.Contains(got, "operator_test.go") {
			t.Error("the log has no stack")
		}
		w.again(3)
		w.within(10*time.Second, "the cluster goes on", func() bool { return mesh(w.all) })
		if got := removals(w.node(2).since(began)); len(got) > 1 {
			t.Errorf("node 2 received %v", got)
		}
	})
}

// TestSessionsWithoutAnIncarnationKeepNobodyOut: nodes that have joined and ask for no incarnation fill
// all places of sessions without one. A node that was there before comes back at once.
func TestSessionsWithoutAnIncarnationKeepNobodyOut(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.cluster(3)
		w.kill(w.node(3))
		w.within(10*time.Second, "node 3 is removed", func() bool { return len(w.node(1).a.Nodes()) == 2 })
		token := must(w.node(1).a.CreateToken(trust.TokenOptions{MaxUses: maxLifeless}))
		for i := range maxLifeless / maxLifelessEach {
			w.idle(fmt.Sprintf("idle-%d", i), token)
		}
		time.Sleep(time.Second)
		began := time.Now()
		w.again(3)
		w.within(10*time.Second, "it is back", func() bool { return mesh(w.all) })
		if took := time.Since(began); took > speechless/2 {
			t.Errorf("it is back after %v", took)
		}
	})
}

// idle joins as a new node and opens as many sessions without an incarnation as one may have.
func (w *world) idle(name string, token trust.Token) {
	w.t.Helper()
	request, key, err := trust.NewRequest()
	if err != nil {
		w.t.Fatal(err)
	}
	grant := must(control.Ask(w.t.Context(), w.dial(9), dataAddr(1), token, time.Now, control.JoinAsk{Name: name, Request: request}))
	store := must(trust.NewStore(must(trust.NewCredentials(key, grant.Certificate, grant.Roots, time.Now())), time.Now))
	end := control.End{UUID: grant.Node, Epoch: 1}
	d := control.Dialer{Store: store, Dial: w.dial(9), Self: func() (control.End, []byte) { return end, nil }}
	for range maxLifelessEach {
		s := must(d.Session(w.t.Context(), dataAddr(1)))
		s.Start(func(any) {}, func(verdict.DownCause, error) {})
	}
}
