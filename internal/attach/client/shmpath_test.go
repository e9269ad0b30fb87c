package client

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/internal/attach/server"
	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/internal/status"
)

// talk sends a byte each way, again and again, until both directions of the
// connection go through its shared-memory path.
func talk(t testing.TB, a, b attach.Endpoint) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	for !through(a) || !through(b) {
		for _, d := range [][2]attach.Endpoint{{a, b}, {b, a}} {
			if _, err := d[0].Send(ctx, []byte("x")); err != nil {
				t.Fatal("no shared-memory path: ", err)
			}
			var p [1]byte
			if n, err := d[1].Recv(ctx, p[:]); n != 1 || err != nil {
				t.Fatal("no shared-memory path: ", n, err)
			}
		}
		runtime.Gosched()
	}
}

// through reports whether ep sends and receives through a shared-memory path.
func through(ep attach.Endpoint) bool {
	sp := ep.(*endpoint).shmPath.Load()
	return sp != nil && sp.switched.Load() && sp.reading.Load()
}

// overShmPath returns the ends of a connection that goes through a shared-memory path.
func overShmPath(t testing.TB, s *service) (a, b attach.Endpoint) {
	t.Helper()
	a, b = connect(t, s.dial(t), s.dial(t))
	talk(t, a, b)
	return a, b
}

func TestNodeKnowsTheWay(t *testing.T) {
	s := serve(t, nil)
	a, b := connect(t, s.dial(t), s.dial(t))
	want := func(path string) {
		t.Helper()
		eventually(t, "way is "+path, func() bool {
			s.node.mu.Lock()
			defer s.node.mu.Unlock()
			n := 0
			for sess := range s.node.sessions {
				for e := range sess.eps {
					if e.via[0] == path {
						n++
					}
				}
			}
			return n == 2
		})
	}
	want(attach.ViaSocket)
	talk(t, a, b)
	want(attach.ViaShmPath)
}

// Bytes through the data socket before a shared-memory path, and through the ring after it, are one
// stream: with several goroutines that ask, at any moment.
func TestStreamIsKeptAcrossTheUpgrade(t *testing.T) {
	s := serve(t, nil)
	sa, sb := s.dial(t), s.dial(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for round := range 20 {
		a, b := connect(t, sa, sb)
		rng := rand.New(rand.NewPCG(seed, uint64(round)))
		var wg sync.WaitGroup
		for i, d := range [][2]attach.Endpoint{{a, b}, {b, a}} {
			total := 1 + rng.IntN(200_000)
			wg.Go(func() { sendCounted(t, d[0], total, rand.New(rand.NewPCG(seed, uint64(100*round+2*i)))) })
			wg.Go(func() { recvCounted(t, d[1], total, rand.New(rand.NewPCG(seed, uint64(100*round+2*i+1)))) })
		}
		wg.Wait()
		a.Close()
		b.Close()
	}
}

// sendCounted sends bytes that count.
func sendCounted(t *testing.T, ep attach.Endpoint, total int, rng *rand.Rand) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	for at := 0; at < total; {
		p := make([]byte, min(1+rng.IntN(1+rng.IntN(20_000)), total-at))
		for i := range p {
			p[i] = byte(at + i)
		}
		n, err := ep.Send(ctx, p)
		if at += n; err != nil {
			t.Errorf("Send at %d: %v", at, err)
			return
		}
	}
}

// recvCounted receives them.
func recvCounted(t *testing.T, ep attach.Endpoint, total int, rng *rand.Rand) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	buf := make([]byte, 20_000)
	for at := 0; at < total; {
		n, err := ep.Recv(ctx, buf[:1+rng.IntN(len(buf))])
		for i, c := range buf[:n] {
			if c != byte(at+i) {
				t.Errorf("byte %d is %d, want %d", at+i, c, byte(at+i))
				return
			}
		}
		if at += n; err != nil {
			t.Errorf("Recv at %d: %v", at, err)
			return
		}
	}
}

func TestCloseLeavesWhatIsInTheRing(t *testing.T) {
	s := serve(t, nil)
	for range 10 {
		a, b := overShmPath(t, s)
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		want := bytes.Repeat([]byte("0123456789"), 15_000) // less than the ring holds
		if n, err := a.Send(ctx, want); n != len(want) || err != nil {
			t.Fatalf("Send = %d, %v", n, err)
		}
		check(t, "Close", a.Close(), status.OK)
		got, err := io.ReadAll(reader{ctx, b})
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%d bytes and %v, want all %d and the orderly end", len(got), err, len(want))
		}
		_, err = b.Send(ctx, want)
		check(t, "Send after the peer's close", err, status.Reset)
		check(t, "Close", b.Close(), status.OK)
		cancel()
	}
}

// reader reads a stream up to its orderly end.
type reader struct {
	ctx context.Context
	ep  attach.Endpoint
}

func (r reader) Read(p []byte) (int, error) {
	n, err := r.ep.Recv(r.ctx, p)
	if err == attach.ErrPeerClosed {
		err = io.EOF
	}
	return n, err
}

// Calls that wait at a ring end as those at the data socket do.
func TestCallsBlockedInAShmPathEnd(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(s *service, a, b attach.Endpoint, cancel func())
		want status.Code
	}{
		"with their context":  {func(_ *service, _, _ attach.Endpoint, cancel func()) { cancel() }, status.Canceled},
		"with Close":          {func(_ *service, a, _ attach.Endpoint, _ func()) { a.Close() }, status.Reset},
		"with the peer":       {func(_ *service, _, b attach.Endpoint, _ func()) { b.Close() }, status.Reset},
		"with its session":    {func(_ *service, a, _ attach.Endpoint, _ func()) { a.(*endpoint).c.Close() }, status.Reset},
		"with the peer's":     {func(_ *service, _, b attach.Endpoint, _ func()) { b.(*endpoint).c.Close() }, status.Reset},
		"with the node":       {func(s *service, _, _ attach.Endpoint, _ func()) { s.stop() }, status.Reset},
		"with the connection": {func(s *service, _, _ attach.Endpoint, _ func()) { s.node.lose() }, status.Reset},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, nil)
			a, b := overShmPath(t, s)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			results := make(chan error, 2)
			go func() { _, err := a.Recv(ctx, make([]byte, 1)); results <- err }()
			go func() { _, err := a.Send(ctx, make([]byte, 4<<20)); results <- err }()
			e := a.(*endpoint)
			eventually(t, "Send and Recv wait", func() bool {
				return e.sending.taken() && e.receiving.taken() && !e.shmPath.Load().out.Room()
			})
			c.end(s, a, b, cancel)
			for range 2 {
				select {
				case err := <-results:
					check(t, "a blocked call", err, c.want)
				case <-time.After(limit):
					t.Fatal("a blocked call has not returned")
				}
			}
		})
	}
}

// A limit ends a Send also while the peer keeps reading.
func TestContextEndsASendThatProgresses(t *testing.T) {
	s := serve(t, nil)
	a, b := overShmPath(t, s)
	done := make(chan struct{})
	go func() {
		defer close(done)
		io.Copy(io.Discard, reader{context.Background(), b})
	}()
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(20*time.Millisecond, cancel)
	n, err := 0, error(nil)
	for p := make([]byte, 64<<20); err == nil; {
		var m int
		m, err = a.Send(ctx, p)
		n += m
	}
	check(t, "Send", err, status.Canceled)
	if n == 0 {
		t.Error("nothing was sent before")
	}
	check(t, "Close", a.Close(), status.OK)
	<-done
}

// Poll: readiness, and notifications of its changes.
func TestReadinessOfAShmPathIsNotified(t *testing.T) {
	s := serve(t, nil)
	a, b := overShmPath(t, s)
	changed := make(chan struct{}, 1)
	defer b.Notify(changed)()
	await := func(ep attach.Endpoint, ch chan struct{}, want attach.Events, mask attach.Events) {
		t.Helper()
		after := time.After(limit)
		for ep.Ready()&mask != want {
			select {
			case <-ch:
			case <-after:
				t.Fatalf("Ready = %#x, want %#x of %#x, and no notification", ep.Ready(), want, mask)
			}
		}
	}
	await(b, changed, attach.PollOut, attach.PollIn|attach.PollOut|attach.PollHup)
	for range 200 { // more than a doorbell would hold if it were never emptied
		if n, err := a.TrySend([]byte("abc")); n != 3 || err != nil {
			t.Fatal(n, err)
		}
		await(b, changed, attach.PollIn|attach.PollOut, attach.PollIn|attach.PollOut|attach.PollHup)
		if n, err := b.TryRecv(make([]byte, 10)); n != 3 || err != nil {
			t.Fatal(n, err)
		}
		await(b, changed, attach.PollOut, attach.PollIn|attach.PollOut|attach.PollHup)
	}
	room := make(chan struct{}, 1)
	defer a.Notify(room)()
	total := 0
	for {
		n, err := a.TrySend(make([]byte, 1000))
		if err != nil {
			t.Fatal(err)
		}
		if total += n; n == 0 {
			break
		}
	}
	await(a, room, 0, attach.PollOut)
	read := make(chan struct{})
	go func() {
		defer close(read)
		io.CopyN(io.Discard, reader{context.Background(), b}, int64(total))
	}()
	await(a, room, attach.PollOut, attach.PollOut)
	<-read
	check(t, "Close", a.Close(), status.OK)
	await(b, changed, attach.PollHup, attach.PollIn|attach.PollOut|attach.PollHup)
}

// The reason why there is no shared-memory path is reported, and nothing else changes.
func TestWithoutAShmPath(t *testing.T) {
	t.Run("over the limit", func(t *testing.T) {
		s := serve(t, func(o *server.Options) { o.Session.ShmPaths = 1 })
		sa, sb := s.dial(t), s.dial(t)
		a, b := connect(t, sa, sb)
		talk(t, a, b)
		c, d := connect(t, sa, sb)
		exchange(t, c, d, 100)
		if through(c) || through(d) {
			t.Error("a second shared-memory path over the limit of one")
		}
		a.Close()
		b.Close()
		exchange(t, c, d, 300) // the next try
		talk(t, c, d)
	})
}

// fetch sends a request that is answered with a descriptor.
func (c *rawClient) fetch(o proto.Op, ep uint32, in proto.Message) (proto.Header, *os.File) {
	c.t.Helper()
	c.next++
	c.send(proto.Header{Op: o, Endpoint: ep, Request: c.next}, in, nil)
	h, _, f := c.answer()
	return h, f
}

// accepted connects the client by hand to an endpoint that sess listens at, and
// returns that one's end, the client's number of its own, and its data socket.
func (c *rawClient) accepted(sess attach.Session) (ep attach.Endpoint, far uint32, data *os.File) {
	c.t.Helper()
	l := must(sess.Open())(c.t)
	defer l.Close()
	port := must(l.Bind(0))(c.t)
	check(c.t, "Listen", l.Listen(1), status.OK)
	var opened proto.EndpointBody
	if h, text := c.ask(proto.OpOpen, 0, nil, nil, &opened); h.Code != status.OK {
		c.t.Fatalf("OPEN: %v %s", h.Code, text)
	}
	result := make(chan error, 1)
	go func() {
		var err error
		ep, _, err = l.Accept(context.Background())
		result <- err
	}()
	h, data := c.fetch(proto.OpConnect, opened.Endpoint, &proto.Address{Node: 3, Port: port})
	if err := <-result; err != nil || h.Code != status.OK || data == nil {
		c.t.Fatalf("CONNECT: %v, accept: %v", h.Code, err)
	}
	return ep, opened.Endpoint, data
}

// exchange sends n bytes one by one and receives them.
func exchange(t *testing.T, a, b attach.Endpoint, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	for range n {
		if _, err := a.Send(ctx, []byte("y")); err != nil {
			t.Fatal(err)
		}
		if n, err := b.Recv(ctx, make([]byte, 1)); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
}

// An application that cannot use its side reports that, and both sides continue as before.
func TestShmPathThatOneSideCannotUse(t *testing.T) {
	s := serve(t, nil)
	sess := s.dial(t)
	c := attachRaw(t, s) // speaks the protocol by hand
	ep, far, data := c.accepted(sess)
	defer data.Close()
	go func() {
		for range 300 {
			ep.Send(context.Background(), []byte("z"))
		}
	}()
	c.shmPath(far)
	for _, which := range []uint8{proto.DoorbellOut, proto.DoorbellIn} {
		h, f := c.fetch(proto.OpDoorbell, far, &proto.DoorbellBody{Which: which})
		if h.Code != status.OK || f == nil {
			t.Fatalf("DOORBELL: %v", h.Code)
		}
		f.Close()
		if h, _ := c.ask(proto.OpDoorbell, far, &proto.DoorbellBody{Which: which}, nil, nil); h.Code != status.Invalid {
			t.Errorf("DOORBELL again: %v, want %v", h.Code, status.Invalid)
		}
	}
	if h, _ := c.ask(proto.OpJoined, far, &proto.JoinedBody{Why: "no room"}, nil, nil); h.Code != status.OK {
		t.Errorf("JOINED: %v", h.Code)
	}
	conn, err := shm.Conn(data)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.ReadFull(conn, make([]byte, 300)); err != nil {
		t.Error("what is sent does not come through the data socket: ", err)
	}
	eventually(t, "the other side has given up", func() bool { return ep.(*endpoint).shmPath.Load() == nil })
}

// Whatever the peer writes into the shared memory, this side ends with an error or continues: it
// neither crashes nor hangs.
func TestPeerThatScribbles(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	s := serve(t, nil)
	for range 30 {
		a, b := overShmPath(t, s)
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		wg.Go(func() { io.Copy(io.Discard, reader{ctx, a}) })
		wg.Go(func() {
			for {
				if _, err := a.Send(ctx, make([]byte, 3000)); err != nil {
					return
				}
			}
		})
		mem := b.(*endpoint).shmPath.Load().region.Bytes()
		for range 2000 {
			at := rng.IntN(600)
			if rng.IntN(2) == 0 {
				at += len(mem) / 2
			}
			mem[at] = byte(rng.Uint32())
		}
		b.Close()
		eventually(t, "the connection has ended", func() bool { return a.Ready()&attach.PollHup != 0 })
		cancel()
		wg.Wait()
		a.Close()
	}
}

// Operators see an application's reason for having no shared-memory path: it contains no terminal
// control characters, and no second line.
func TestReasonsOfApplicationsAreOneLine(t *testing.T) {
	s := serve(t, nil)
	sess := s.dial(t)
	c := attachRaw(t, s)
	ep, far, data := c.accepted(sess)
	defer data.Close()
	defer ep.Close()
	c.shmPath(far)
	why := "no\n  messages  shared-memory path\x1b[2J\u202e \xff, für immer"
	if h, _ := c.ask(proto.OpJoined, far, &proto.JoinedBody{Why: why}, nil, nil); h.Code != status.OK {
		t.Fatal("JOINED: ", h.Code)
	}
	const want = "no   messages  shared-memory path [2J   , für immer"
	eventually(t, "both ways are told in one line", func() bool {
		n := 0
		for _, via := range s.ways() {
			if via == [2]string{attach.ViaSocket, want} || via == [2]string{attach.ViaSocket, proto.OtherGaveUp + ": " + want} {
				n++
			}
		}
		return n == 2
	})
}

func TestShmPathRequestsThatCannotBe(t *testing.T) {
	s := serve(t, nil)
	sess := s.dial(t)
	c := attachRaw(t, s)
	ep, far, data := c.accepted(sess)
	defer data.Close()
	defer ep.Close()
	for what, ask := range map[string]func() proto.Header{
		"DOORBELL without a shared-memory path": func() proto.Header {
			h, _ := c.ask(proto.OpDoorbell, far, &proto.DoorbellBody{Which: proto.DoorbellIn}, nil, nil)
			return h
		},
		"DOORBELL 3": func() proto.Header {
			h, _ := c.ask(proto.OpDoorbell, far, &proto.DoorbellBody{Which: 3}, nil, nil)
			return h
		},
		"JOINED without a shared-memory path": func() proto.Header { h, _ := c.ask(proto.OpJoined, far, &proto.JoinedBody{OK: 1}, nil, nil); return h },
		"JOINED 2":                            func() proto.Header { h, _ := c.ask(proto.OpJoined, far, &proto.JoinedBody{OK: 2}, nil, nil); return h },
	} {
		if h := ask(); h.Code != status.Invalid {
			t.Errorf("%s: %v, want %v", what, h.Code, status.Invalid)
		}
	}
	if h, _ := c.ask(proto.OpShmPath, 99, nil, nil, nil); h.Code != status.BadFD {
		t.Errorf("SHM_PATH of nothing: %v, want %v", h.Code, status.BadFD)
	}
}

func TestMessagesOfAShmPathAllocateNothing(t *testing.T) {
	s := serve(t, nil)
	a, b := overShmPath(t, s)
	ctx := context.Background()
	p := make([]byte, 64)
	got := testing.AllocsPerRun(1000, func() {
		a.Send(ctx, p)
		b.Recv(ctx, p)
	})
	if got != 0 && !raceEnabled {
		t.Errorf("%v allocations for a message, want none", got)
	}
}

func TestEndNamesTheEndThatEndedIt(t *testing.T) {
	s := serve(t, nil)
	a, _ := overShmPath(t, s)
	removed := make(chan struct{})
	defer a.(*endpoint).c.Watch(func(attach.Event) { close(removed) })()
	s.node.lose()
	s.node.emit(attach.Event{Kind: attach.NodeRemoved})
	<-removed
	_, err := a.TrySend([]byte("x"))
	check(t, "TrySend after the removal", err, status.Reset)
	_, err = a.Recv(context.Background(), make([]byte, 1))
	check(t, "Recv after the removal", err, status.Reset)
	if errors.Is(err, io.EOF) || strings.Contains(err.Error(), "closed by peer") {
		t.Errorf("Recv after the loss = %v, which claims a close", err)
	}
}

func TestLatencyIsASetting(t *testing.T) {
	s := serve(t, nil)
	t.Setenv("FABRIC_LATENCY", "fast")
	_, err := Dial(context.Background(), s.path)
	check(t, "Dial", err, status.Invalid)
	if err == nil || !strings.Contains(err.Error(), `FABRIC_LATENCY is "fast", want low or normal`) {
		t.Errorf("it says %v", err)
	}
	t.Setenv("FABRIC_LATENCY", "low")
	a, b := connect(t, s.dial(t), s.dial(t))
	talk(t, a, b)
	if !a.(*endpoint).shmPath.Load().dataSpin.low {
		t.Error("low is not taken")
	}
	exchange(t, a, b, 100)
}

// BenchmarkShmPath measures a message there and back, and messages one way.
func BenchmarkShmPath(b *testing.B) {
	for name, as := range map[string]tuning{"sleeping": {}, "watching": {spin: spinSteps}, "low": {low: true, spin: -1}} {
		b.Run(name, func(b *testing.B) { benchmarkShmPath(b, as, true) })
		b.Run(name+" rate", func(b *testing.B) { benchmarkShmPath(b, as, false) })
	}
}

func benchmarkShmPath(b *testing.B, as tuning, back bool) {
	s := serve(b, nil)
	x, y := overShmPath(b, s)
	for _, e := range []attach.Endpoint{x, y} {
		sp := e.(*endpoint).shmPath.Load()
		sp.dataSpin = as.spinner()
		sp.roomSpin = sp.dataSpin
	}
	ctx := context.Background()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p := make([]byte, 8)
		for {
			n, err := y.Recv(ctx, p)
			if err != nil {
				return
			}
			if back {
				y.Send(ctx, p[:n])
			}
		}
	}()
	p := make([]byte, 8)
	b.ReportAllocs()
	for b.Loop() {
		x.Send(ctx, p)
		if back {
			x.Recv(ctx, p)
		}
	}
	x.Close()
	<-ended
}
