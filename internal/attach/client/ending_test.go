package client

import (
	"errors"
	"maps"
	"slices"
	"testing"

	"github.com/fabricd/fabricd/fence"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/internal/attach/server"
	"github.com/fabricd/fabricd/internal/status"
)

// An endingSession is a node's session that closes: it opens nothing more.
type endingSession struct{ *fakeSession }

func (s endingSession) Open() (attach.NodeEndpoint, error) {
	if s.n.closing() {
		return nil, status.BadFD
	}
	return s.fakeSession.Open()
}

// closing reports whether shut was called.
func (n *fakeNode) closing() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.ending
}

// shut closes all endpoints of all sessions, as a node that ends does before it
// ends the sessions.
func (n *fakeNode) shut() {
	n.mu.Lock()
	n.ending = true
	var all []*fakeEndpoint
	for s := range n.sessions {
		all = slices.AppendSeq(all, maps.Keys(s.eps))
	}
	n.mu.Unlock()
	for _, e := range all {
		e.Close()
	}
}

// TestACallBesideTheEndOfTheNodeIsReset asks between the moment in which the
// node closes its endpoints and the one in which it ends the session. The
// application has closed nothing, so nothing it uses is a bad descriptor.
func TestACallBesideTheEndOfTheNodeIsReset(t *testing.T) {
	s := serve(t, func(o *server.Options) {
		begin := o.NewSession
		o.NewSession = func(c attach.Credentials) (attach.NodeSession, error) {
			sess, err := begin(c)
			return endingSession{sess.(*fakeSession)}, err
		}
	})
	c := attachRaw(t, s)
	var fresh, listening, closed proto.EndpointBody
	for _, ep := range []*proto.EndpointBody{&fresh, &listening, &closed} {
		if h, text := c.ask(proto.OpOpen, 0, nil, nil, ep); h.Code != status.OK {
			t.Fatalf("OPEN: %v (%s)", h.Code, text)
		}
	}
	c.ask(proto.OpBind, listening.Endpoint, &proto.Address{}, nil, &proto.Address{})
	c.ask(proto.OpListen, listening.Endpoint, &proto.ListenBody{Backlog: 1}, nil, nil)
	c.ask(proto.OpClose, closed.Endpoint, nil, nil, nil)
	s.node.shut()

	for _, q := range []struct {
		op proto.Op
		in proto.Message
	}{
		{proto.OpBind, &proto.Address{}}, {proto.OpListen, &proto.ListenBody{Backlog: 1}}, {proto.OpConnect, &proto.Address{Port: 7}}, {proto.OpTryConnect, &proto.Address{Port: 7}},
		{proto.OpAccept, nil}, {proto.OpTryAccept, nil}, {proto.OpUnregister, &proto.Span{Off: 0, Len: 4096}}, {proto.OpWriteTo, &proto.Transfer{Len: 8}},
		{proto.OpReadFrom, &proto.Transfer{Len: 8}}, {proto.OpAtomic, &proto.AtomicBody{}}, {proto.OpMmap, &proto.MmapBody{Len: 4096}},
		{proto.OpFenceMark, &proto.SideBody{Side: fence.InitSelf}}, {proto.OpFenceWait, &proto.MarkBody{}}, {proto.OpFenceSignal, &proto.SignalBody{}},
	} {
		for _, ep := range []uint32{fresh.Endpoint, listening.Endpoint} {
			if h, text := c.ask(q.op, ep, q.in, nil, nil); h.Code != status.Reset {
				t.Errorf("operation %d on an endpoint that the node has closed: %v (%s), want %v", q.op, h.Code, text, status.Reset)
			}
		}
		if h, _ := c.ask(q.op, closed.Endpoint, q.in, nil, nil); h.Code != status.BadFD {
			t.Errorf("operation %d on an endpoint that the application has closed: %v, want %v", q.op, h.Code, status.BadFD)
		}
	}
	var ev proto.ReadyBody
	c.ask(proto.OpReady, fresh.Endpoint, nil, nil, &ev)
	if got := attach.Events(ev.Events); got != attach.PollErr|attach.PollHup {
		t.Errorf("READY of an endpoint that the node has closed: %v, want that it has ended", got)
	}
	if h, _ := c.ask(proto.OpOpen, 0, nil, nil, &proto.EndpointBody{}); h.Code != status.Reset {
		t.Errorf("OPEN beside the end: %v, want %v", h.Code, status.Reset)
	}
	if h, _ := c.ask(proto.OpClose, fresh.Endpoint, nil, nil, nil); h.Code != status.OK {
		t.Errorf("CLOSE of an endpoint that the node has closed: %v, want OK: the number is given back", h.Code)
	}
}

// TestCallsRaceWithTheEndOfTheServer calls all the time while the server ends.
func TestCallsRaceWithTheEndOfTheServer(t *testing.T) {
	for range 30 {
		s := serve(t, nil)
		a, b := connect(t, s.dial(t), s.dial(t))
		ended := make(chan error, 2)
		for _, ep := range []attach.Endpoint{a, b} {
			go func() {
				var err error
				for err == nil {
					_, err = ep.FenceMark(fence.InitSelf)
				}
				ended <- err
			}()
		}
		s.end()
		for range 2 {
			if err := <-ended; !errors.Is(err, status.Reset) && !errors.Is(err, status.NoDevice) {
				t.Errorf("a call beside the end of the node: %v, want it reset, or no node", err)
			}
		}
		s.stop()
	}
}
