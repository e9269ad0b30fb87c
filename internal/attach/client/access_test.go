package client

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/fabricd/fabricd/internal/access"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/internal/status"
)

func TestListenersListCrossesTheSocket(t *testing.T) {
	s := serve(t, nil)
	c := s.dial(t)
	allow, err := access.ParseSubjects([]string{"web-1", "label:db", "node:all"})
	if err != nil {
		t.Fatal(err)
	}
	ep := must(c.Open())(t)
	must(ep.Bind(2050))(t)
	check(t, "Listen with too many callers", ep.Listen(1, make([]access.Subject, access.MaxSubjects+1)...), status.Invalid)
	check(t, "Listen", ep.Listen(1, allow...), status.OK)
	s.node.mu.Lock()
	got := slices.Clone(s.node.ports[2050].allow)
	s.node.mu.Unlock()
	if !slices.Equal(got, allow) {
		t.Errorf("the node has %v, want %v", got, allow)
	}
	plain := must(c.Open())(t)
	must(plain.Bind(2051))(t)
	check(t, "Listen without a list", plain.Listen(1), status.OK)
	check(t, "Close", errors.Join(ep.Close(), plain.Close()), status.OK)
}

// The node refuses malformed entries that a hostile application puts into the list, and the
// endpoint stays as it was.
func TestListsThatNameNoCallerAreRefused(t *testing.T) {
	s := serve(t, nil)
	c := s.dial(t).(*session)
	ep := must(c.Open())(t).(*endpoint)
	must(ep.Bind(2050))(t)
	for _, list := range [][]string{nil, {""}, {"a b"}, {"web", "web"}, {"\x1b[31m"}, {"none", "web"}, {"label:"}} {
		err := ep.ask(context.Background(), proto.OpListenAllow, &proto.ListenAllowBody{Backlog: 1, Allow: list}, nil)
		check(t, "Listen", err, status.Invalid)
	}
	check(t, "Listen after all", ep.Listen(1), status.OK)
	check(t, "Close", ep.Close(), status.OK)
}

func TestListsAreBoundedWhereTheyEnter(t *testing.T) {
	_, body, err := proto.ParseFrame(proto.AppendFrame(nil, proto.Header{}, &proto.ListenAllowBody{Allow: make([]string, proto.MaxLabels)}))
	if err != nil {
		t.Fatal(err)
	}
	body[4]++ // one more than allowed
	if err := proto.ParseBody(append(body, 0, 0), new(proto.ListenAllowBody)); status.Of(err) != status.Protocol {
		t.Errorf("a list of %d: %v, want %v", proto.MaxLabels+1, err, status.Protocol)
	}
	long := &proto.PeerBody{Labels: make([]string, proto.MaxLabels+5)}
	_, body, _ = proto.ParseFrame(proto.AppendFrame(nil, proto.Header{}, long))
	var got proto.PeerBody
	if err := proto.ParseBody(body, &got); err != nil || len(got.Labels) != proto.MaxLabels {
		t.Errorf("%d labels: %d, %v, want %d", len(long.Labels), len(got.Labels), err, proto.MaxLabels)
	}
}

func TestPeerCrossesTheSocket(t *testing.T) {
	s := serve(t, nil)
	a, b := connect(t, s.dial(t), s.dial(t))
	for _, ep := range []attach.Endpoint{a, b} {
		p, err := ep.Peer()
		if err != nil || p.Incarnation != s.node.self.Incarnation || p.Name != "fake" || p.UID != 7 || !slices.Equal(p.Labels, []string{"a", "b"}) {
			t.Errorf("Peer = %+v, %v", p, err)
		}
	}
	check(t, "Close", a.Close(), status.OK)
	_, err := a.Peer()
	check(t, "Peer after Close", err, status.BadFD)
}
