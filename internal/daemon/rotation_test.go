package daemon

import (
	"context"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/attach"
)

// pair connects an application of one node with one of another.
func pair(t *testing.T, from, to *Daemon, port addr.Port) (dialer, acceptor attach.NodeEndpoint) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testLimit)
	defer cancel()
	l := open(t, to, 1000)
	if _, err := l.Bind(port); err != nil {
		t.Fatal(err)
	}
	if err := l.Listen(1); err != nil {
		t.Fatal(err)
	}
	dialer = open(t, from, 1000)
	accepted := make(chan attach.NodeEndpoint, 1)
	go func() {
		ep, _, err := l.Accept(ctx)
		if err != nil {
			t.Error(err)
		}
		accepted <- ep
	}()
	if _, err := dialer.Connect(ctx, addr.Addr{Node: to.Self().Incarnation.Node, Port: port}); err != nil {
		t.Fatal(err)
	}
	if acceptor = <-accepted; acceptor == nil {
		t.FailNow()
	}
	return dialer, acceptor
}

// TestTheAuthorityIsRotatedUnderConnections: while applications of three nodes talk,
// the authority is replaced, twice; no connection is reset, no link ends, no node
// gets another incarnation, and a newcomer's links are of the new authority.
func TestTheAuthorityIsRotatedUnderConnections(t *testing.T) {
	host, node := testHost(t)
	one, two := startTest(t, node("one")), startTest(t, node("two"))
	sees(t, one, two.Self().Incarnation.Node)
	incarnations := map[*Daemon]addr.Incarnation{one: one.Self().Incarnation, two: two.Self().Incarnation}
	var sent atomic.Int64
	stop, done := make(chan struct{}), make(chan struct{}, 2)
	for i, ends := range [][2]*Daemon{{one, two}, {two, host}} {
		a, b := pair(t, ends[0], ends[1], addr.Port(2050+i))
		go func() {
			defer func() { done <- struct{}{} }()
			p := make([]byte, 8)
			for {
				select {
				case <-stop:
					return
				case <-time.After(time.Millisecond):
				}
				ctx, cancel := context.WithTimeout(context.Background(), testLimit)
				_, err := a.Send(ctx, p)
				if err == nil {
					_, err = b.Recv(ctx, p)
				}
				cancel()
				if err != nil {
					t.Errorf("connection %d: %v", i, err)
					return
				}
				sent.Add(1)
			}
		}()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*testLimit)
	defer cancel()
	pins := map[string]bool{}
	for range 2 {
		all, err := host.RotateCA(ctx)
		if err != nil || len(all.Roots) != 1 || pins[all.Roots[0].Key] {
			t.Fatalf("rotated to %+v, %v", all, err)
		}
		pins[all.Roots[0].Key] = true
		for _, d := range []*Daemon{one, two} {
			if own, err := d.Authorities(); err != nil || len(own.Roots) != 1 || own.Roots[0].Key != all.Roots[0].Key {
				t.Errorf("%s trusts %+v, %v", d.cfg.Name, own, err)
			}
		}
	}
	close(stop)
	<-done
	<-done
	if sent.Load() < 10 {
		t.Errorf("%d messages beside the rotations, want traffic all the time", sent.Load())
	}
	for _, d := range []*Daemon{one, two} {
		if l := d.Self().Incarnation; l != incarnations[d] {
			t.Errorf("%s lived as %v and lives as %v", d.cfg.Name, incarnations[d], l)
		}
	}
	token, err := host.CreateToken(0, 0)
	if err != nil {
		t.Fatal(err)
	}
	c := node("three")
	c.TokenFile = filepath.Join(filepath.Dir(c.StateDir), "token")
	if err := WriteSecret(c.TokenFile, func() (string, error) { return token.Token, nil }); err != nil {
		t.Fatal(err)
	}
	three := startTest(t, c)
	sees(t, three, two.Self().Incarnation.Node)
	talk(t, three, host)
}
