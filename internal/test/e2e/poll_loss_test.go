package e2e

import (
	"context"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric"
)

// TestPollSeesALossBehindBytes lets an application that does not receive wait
// for the end of a connection whose peer's node is killed: the bytes that it
// leaves no room for are not in the way.
func TestPollSeesALossBehindBytes(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	nodes := l.cluster(1)
	here, victim := nodes[0], nodes[1]
	app, far, w := here.attach(), victim.attach(), here.watch()
	listener, err := app.Listen(0)
	if err != nil {
		t.Fatal(err)
	}
	ctx := within(t, stepLimit)
	dialed := make(chan *fabric.Conn, 1)
	go func() {
		defer close(dialed)
		c, err := far.DialAddr(ctx, here.at(listener.Addr().(fabric.Addr).Port))
		if err != nil {
			t.Error(err)
			return
		}
		dialed <- c
	}()
	in, err := listener.AcceptConn(ctx)
	if err != nil {
		t.Fatal(err)
	}
	out, ok := <-dialed
	if !ok {
		return
	}
	for idle := 0; idle < 20; { // until nothing fits anywhere
		n, err := out.Endpoint().TrySend(make([]byte, 64<<10))
		if err != nil {
			t.Fatal(err)
		}
		if idle++; n > 0 {
			idle = 0
		}
		time.Sleep(5 * time.Millisecond)
	}
	polled := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), stepLimit)
		defer cancel()
		items := []fabric.PollItem{{Endpoint: in.Endpoint()}}
		_, err := app.Poll(ctx, items)
		if err == nil && items[0].Revents != fabric.PollHup {
			t.Errorf("poll returns %#x, want PollHup", items[0].Revents)
		}
		polled <- err
	}()
	incarnation := victim.incarnation()
	victim.kill()
	w.removed(stepLimit, incarnation)
	select {
	case err := <-polled:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(stepLimit):
		t.Error("the poll did not return")
	}
}
