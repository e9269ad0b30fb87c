package e2e

import (
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/fabricd/fabricd/fabric"
)

// TestARestartWhileTheHostIsDown kills the host and then a member, and starts the
// member again: its applications reach each other before the host is back, and with
// the member's next incarnation theirs begin anew.
func TestARestartWhileTheHostIsDown(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	nodes := l.cluster(2)
	host, other, member := nodes[0], nodes[1], nodes[2]
	old := member.incarnation()
	host.kill()
	member.kill()
	member.launch()
	eventually(t, stepLimit, "the member serves its machine", func() error {
		st, err := member.status()
		if err == nil && st.State != "local" {
			err = fmt.Errorf("it is %s: %s", st.State, st.Detail)
		}
		return err
	})
	server, client := member.attach(), member.attach()
	if got := client.Incarnation(); got != old {
		t.Errorf("an application sees incarnation %v, want %v", got, old)
	}
	near, far := l.exchange(server, client)
	if _, err := client.DialAddr(within(t, stepLimit), other.at(1)); err == nil {
		t.Error("a connection to another machine was made without a host")
	}

	host.launch()
	host.joined()
	eventually(t, stepLimit, "the member has an incarnation of the host's", func() error {
		member.joined()
		if got := member.incarnation(); got.Node != old.Node || got.Generation <= old.Generation {
			return fmt.Errorf("it is %v, before it was %v", got, old)
		}
		return nil
	})
	for _, ep := range []*fabric.Conn{near, far} {
		if _, err := ep.Endpoint().Recv(within(t, stepLimit), make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("a connection of the incarnation before ends with %v, want ECONNRESET", err)
		}
	}
	l.agree(nodes...)
	l.exchange(other.attach(), client)
}

// exchange connects two applications, sends a byte each way and returns both ends.
func (l *lab) exchange(server, client *fabric.Node) (near, far *fabric.Conn) {
	l.t.Helper()
	listener, err := server.Listen(0)
	if err != nil {
		l.t.Fatal(err)
	}
	accepted := make(chan *fabric.Conn, 1)
	go func() {
		conn, err := listener.AcceptConn(within(l.t, stepLimit))
		if err != nil {
			l.t.Errorf("accept: %v", err)
		}
		accepted <- conn
	}()
	near, err = client.DialAddr(within(l.t, stepLimit), listener.Addr().(fabric.Addr))
	if err != nil {
		l.t.Fatal(err)
	}
	if far = <-accepted; far == nil {
		l.t.FailNow()
	}
	for _, way := range [][2]*fabric.Conn{{near, far}, {far, near}} {
		b := []byte{0}
		if _, err := way[0].Endpoint().Send(within(l.t, stepLimit), []byte{7}); err != nil {
			l.t.Fatal(err)
		}
		if _, err := way[1].Endpoint().Recv(within(l.t, stepLimit), b); err != nil || b[0] != 7 {
			l.t.Fatalf("received %v, %v", b, err)
		}
	}
	return near, far
}
