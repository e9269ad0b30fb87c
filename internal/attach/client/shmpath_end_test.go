package client

import (
	"context"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/internal/status"
)

// An endpoint and its session may be closed at the same time.
func TestEndpointAndSessionCloseAtOnce(t *testing.T) {
	s := serve(t, nil)
	for range 5 {
		sa := s.dial(t)
		a, b := connect(t, sa, s.dial(t))
		e := a.(*endpoint)
		e.shut() // the first half of a Close that is held up here
		done := make(chan struct{}, 2)
		go func() { sa.Close(); done <- struct{}{} }()
		go func() { e.wg.Wait(); e.free(); done <- struct{}{} }()
		for range 2 {
			select {
			case <-done:
			case <-time.After(limit):
				t.Fatal("a Close has not returned")
			}
		}
		b.(*endpoint).c.Close()
	}
}

// The peer goes over to its ring, writes there and closes, all after a receive
// has seen that it had not: the end of the data socket is not that of the stream.
func TestEndOfTheDataSocketBesideASwitch(t *testing.T) {
	s := serve(t, nil)
	a, b := joined(t, s)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	e := b.(*endpoint)
	seen, most, err := e.ringIn()
	if seen != nil || most != unlimited || err != nil {
		t.Fatal("the peer has gone over already: ", seen, most, err)
	}
	if n, err := a.Send(ctx, []byte("last")); n != 4 || err != nil || !a.(*endpoint).shmPath.Load().switched.Load() {
		t.Fatal("not sent through the ring: ", n, err)
	}
	check(t, "Close", a.Close(), status.OK)
	eventually(t, "the data socket has ended", func() bool { return b.Ready()&attach.PollHup != 0 })
	if !e.wentOver(seen, most) {
		t.Error("the ring is not looked at again")
	}
	got, err := io.ReadAll(reader{ctx, b})
	if string(got) != "last" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if seen, most, err = e.ringIn(); err != nil || e.wentOver(seen, most) {
		t.Error("the end of the stream is looked behind: ", err)
	}
}

// joined returns the ends of a connection with a shared-memory path to which neither side has
// switched.
func joined(t testing.TB, s *service) (a, b attach.Endpoint) {
	t.Helper()
	a, b = connect(t, s.dial(t), s.dial(t))
	a.(*endpoint).upgrade(false)
	for _, ep := range []attach.Endpoint{a, b} {
		eventually(t, "the peer reads at the shared-memory path", func() bool {
			sp := ep.(*endpoint).shmPath.Load()
			return sp != nil && sp.out.ReaderReady()
		})
	}
	return a, b
}

// A peer that asks for shared-memory paths and gives its side up, again and again, does not
// make this side hold more and more memory and descriptors.
func TestPeerThatGivesUpAgainAndAgain(t *testing.T) {
	s := serve(t, nil)
	sess := s.dial(t)
	c := attachRaw(t, s)
	ep, far, data := c.accepted(sess)
	defer data.Close()
	e := ep.(*endpoint)
	state := func() (spent int, rest bool) {
		e.mu.Lock()
		defer e.mu.Unlock()
		return len(e.upgrades.spent), !e.upgrades.upgrading && e.shmPath.Load() == nil
	}
	for round := 0; ; round++ {
		h, f := c.fetch(proto.OpShmPath, far, nil)
		if h.Code == status.Again {
			break
		}
		if h.Code != status.OK || round > len(shmPathAfter) {
			t.Fatalf("SHM_PATH number %d: %v", round, h.Code)
		}
		f.Close()
		if h, _ := c.ask(proto.OpJoined, far, &proto.JoinedBody{Why: "changed my mind"}, nil, nil); h.Code != status.OK {
			t.Fatalf("JOINED: %v", h.Code)
		}
		eventually(t, "the other side has given up", func() bool { _, rest := state(); return rest })
	}
	if spent, _ := state(); spent > len(shmPathAfter) {
		t.Errorf("%d shared-memory paths are held that came to nothing", spent)
	}
	check(t, "Close", ep.Close(), status.OK)
}

// Poll may wait while other calls run. These consume the rings for which it waits, possibly before
// it sees them; the changes that they leave are still reported.
func TestRingsThatOtherCallsTakeAreNotified(t *testing.T) {
	s := serve(t, nil)
	a, b := overShmPath(t, s)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	notified := make(chan struct{}, 1)
	defer b.Notify(notified)()
	e := b.(*endpoint)
	e.mu.Lock()
	for _, w := range e.polled.by {
		w.(net.Conn).SetReadDeadline(overdue) // the watchers get no notification
		w.(net.Conn).SetWriteDeadline(overdue)
	}
	e.mu.Unlock()
	for name, take := range map[string]func() (int, error){
		"TryRecv": func() (int, error) { return b.TryRecv(make([]byte, 1)) },
		"Recv":    func() (int, error) { return b.Recv(ctx, make([]byte, 1)) },
	} {
		for b.Ready()&attach.PollIn != 0 {
			b.TryRecv(make([]byte, 10))
		}
		select {
		case <-notified:
		default:
		}
		if b.Ready()&attach.PollIn != 0 { // arms
			t.Fatal("something to read, and nothing was sent")
		}
		if n, err := a.Send(ctx, []byte("abc")); n != 3 || err != nil {
			t.Fatal(n, err)
		}
		if n, err := take(); n != 1 || err != nil {
			t.Fatalf("%s = %d, %v", name, n, err)
		}
		select {
		case <-notified:
		case <-ctx.Done():
			t.Fatalf("what %s has left is not notified", name)
		}
		if b.Ready()&attach.PollIn == 0 {
			t.Errorf("%s has left nothing", name)
		}
	}
}

// A stream that is not watched at the first time, as without a descriptor.
type unwatched struct {
	nodeStream
	asked int
}

func (u *unwatched) watch(run func(func()), changed func()) (io.Closer, error) {
	if u.asked++; u.asked == 1 {
		return nil, syscall.EMFILE
	}
	return u.nodeStream.watch(run, changed)
}

// A data socket that could not be watched is tried again, also when the doorbells are watched.
func TestADataSocketIsWatchedAfterAFailure(t *testing.T) {
	s := serve(t, nil)
	_, b := overShmPath(t, s)
	e := b.(*endpoint)
	e.mu.Lock()
	stream := &unwatched{nodeStream: e.data}
	e.data = stream
	e.mu.Unlock()
	watched := func() (data bool, by int) {
		defer b.Notify(make(chan struct{}, 1))()
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.polled.data, len(e.polled.by)
	}
	if data, by := watched(); data || by != 2 {
		t.Errorf("out of descriptors: watched is %v, with %d others, want the two doorbells", data, by)
	}
	for range 2 {
		if data, by := watched(); !data || by != 3 || stream.asked != 2 {
			t.Errorf("again: watched is %v, %d in all, tried %d times", data, by, stream.asked)
		}
	}
}

// A second shared-memory path of an endpoint is watched as the first one was.
func TestReadinessOfASecondShmPathIsNotified(t *testing.T) {
	s := serve(t, nil)
	sess := s.dial(t)
	c := attachRaw(t, s)
	ep, far, data := c.accepted(sess)
	defer data.Close()
	defer ep.Close()
	e := ep.(*endpoint)
	changed := make(chan struct{}, 1)
	defer ep.Notify(changed)()
	for range 2 {
		c.shmPath(far)
		eventually(t, "there is a shared-memory path", func() bool { return e.shmPath.Load() != nil })
		defer ep.Notify(changed)()
		e.mu.Lock()
		watchers := e.shmPath.Load().watchers
		e.mu.Unlock()
		if !watchers.room || !watchers.data {
			t.Error("no goroutine watches the doorbells")
		}
		if h, _ := c.ask(proto.OpJoined, far, &proto.JoinedBody{Why: "enough"}, nil, nil); h.Code != status.OK {
			t.Fatal("JOINED: ", h.Code)
		}
		eventually(t, "the other side has given up", func() bool {
			e.mu.Lock()
			defer e.mu.Unlock()
			return !e.upgrades.upgrading && e.shmPath.Load() == nil
		})
	}
}

// shmPath asks for a shared-memory path until the other side is there, and leaves the
// memory.
func (c *rawClient) shmPath(ep uint32) {
	c.t.Helper()
	eventually(c.t, "SHM_PATH is answered with memory", func() bool {
		h, f := c.fetch(proto.OpShmPath, ep, nil)
		if f != nil {
			f.Close()
		} else if h.Code != status.Again {
			c.t.Fatalf("SHM_PATH: %v", h.Code)
		}
		return f != nil
	})
}

// A connection that has ended gets no shared-memory path: its application may have got the
// notification of the end before it knew the endpoint, and would not see it at a ring.
func TestNoShmPathAfterTheEnd(t *testing.T) {
	s := serve(t, nil)
	sess := s.dial(t)
	c := attachRaw(t, s)
	ep, far, data := c.accepted(sess)
	defer data.Close()
	defer ep.Close()
	s.node.lose()
	if h, f := c.fetch(proto.OpShmPath, far, nil); h.Code != status.Reset || f != nil {
		t.Errorf("SHM_PATH: %v, memory %v", h.Code, f)
	}
}

// A call that waits for a shared-memory path does not wait for a peer that is gone.
func TestNobodyWaitsForAShmPathWithAPeerThatIsGone(t *testing.T) {
	for range 100 { // a request may be looked at when its peer is gone already
		if h, body := shmPathOfTheDying(t); h.Code != status.NotSupp {
			if h.Op != proto.OpShmPath|proto.OpReply || h.Code != status.Reset {
				t.Errorf("answer %#x: %v, %q; want SHM_PATH's: %v", h.Op, h.Code, body, status.Reset)
			}
			return
		}
	}
	t.Error("nobody has waited")
}

// shmPathOfTheDying asks for a shared-memory path with a peer that never does, and dies, and
// returns the answer.
func shmPathOfTheDying(t *testing.T) (proto.Header, []byte) {
	s := serve(t, nil)
	defer s.stop()
	sess := s.dial(t)
	c := attachRaw(t, s)
	_, far, data := c.accepted(sess)
	defer data.Close()
	release := make(chan struct{})
	defer close(release)
	hold := func(string) { <-release }
	sess.(*session).step.Store(&hold) // it never asks itself
	c.next++
	c.send(proto.Header{Op: proto.OpShmPath, Endpoint: far, Request: c.next}, nil, nil)
	eventually(t, "one side waits", func() bool {
		h, _ := c.ask(proto.OpSelf, 0, nil, nil, &proto.SelfBody{})
		return h.Code == status.OK
	})
	sess.(*session).conn.Close() // as if its process had died
	h, body, _ := c.answer()
	return h, body
}
