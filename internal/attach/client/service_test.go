package client

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/internal/status"
)

// A list of services that takes several packets arrives whole, in its order.
func TestServicesComeInPages(t *testing.T) {
	s := serve(t, nil)
	c := s.dial(t)
	var want []attach.Service
	for i := range 2*proto.ServicesPage + 7 {
		want = append(want, attach.Service{Name: fmt.Sprintf("s%05d", i/3), Incarnation: addr.Incarnation{Node: addr.NodeID(i % 3), Generation: 1}, Port: 9, Node: "n", RoundTrip: -1})
	}
	for _, n := range []int{0, 1, proto.ServicesPage, proto.ServicesPage + 1, len(want)} {
		s.node.serve(want[:n]...)
		if got, err := c.Services(); err != nil || !slices.Equal(got, want[:n]) {
			t.Errorf("%d services arrive as %d, %v", n, len(got), err)
		}
	}
	got, err := c.Resolve(t.Context(), "s00001", "")
	if err != nil || !slices.Equal(got, want[3:6]) {
		t.Errorf("Resolve: %v, %v, want %v", got, err, want[3:6])
	}
	_, err = c.Resolve(t.Context(), "nowhere", "")
	if status.Of(err) != status.NoDevice || err.Error() != `no node serves "nowhere"` {
		t.Errorf("Resolve of nothing: %v", err)
	}
}

// A change of services is a hint to a caller that has asked for it, until it stops.
func TestChangesOfServicesAreReported(t *testing.T) {
	s := serve(t, nil)
	c := s.dial(t)
	changed := make(chan struct{}, 1)
	stop := c.NotifyServices(changed)
	for i := range 3 {
		s.node.serve(attach.Service{Name: "db", Port: addr.Port(i + 1)})
		select {
		case <-changed:
		case <-time.After(10 * time.Second):
			t.Fatalf("change %d is not notified", i)
		}
	}
	stop()
	s.node.serve()
	again := make(chan struct{}, 1)
	defer c.NotifyServices(again)()
	s.node.serve(attach.Service{Name: "db", Port: 7})
	<-again
	select {
	case <-changed:
		t.Error("notified after stop")
	default:
	}
}

func TestServeAndConnectService(t *testing.T) {
	s := serve(t, nil)
	c := s.dial(t)
	l := must(c.Open())(t)
	must(l.Bind(2050))(t)
	check(t, "Serve", l.Serve("db"), status.OK)
	check(t, "Listen", l.Listen(1), status.OK)
	ep := must(c.Open())(t)
	_, err := ep.ConnectService(context.Background(), addr.Addr{Node: 3, Port: 2050}, "web")
	check(t, "ConnectService to another name", err, status.Refused)
	accepted := make(chan error, 1)
	go func() {
		_, _, err := l.Accept(context.Background())
		accepted <- err
	}()
	_, err = ep.ConnectService(context.Background(), addr.Addr{Node: 3, Port: 2050}, "db")
	check(t, "ConnectService", err, status.OK)
	check(t, "Accept", <-accepted, status.OK)
}
