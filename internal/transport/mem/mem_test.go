package mem

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/test/bubble"
	"github.com/fabricd/fabricd/internal/test/transporttest"
	"github.com/fabricd/fabricd/internal/transport"
)

var (
	idA = transport.Identity{Cluster: addr.UUID{1}, Node: addr.UUID{2}, Host: true}
	idB = transport.Identity{Cluster: addr.UUID{1}, Node: addr.UUID{3}}
)

// pair returns two providers of a hub.
func pair(t *testing.T, cfg Config) (*Hub, *Provider, *Provider) {
	t.Helper()
	h := NewHub(cfg)
	a, err := h.Provider("a", idA)
	if err != nil {
		t.Fatal(err)
	}
	b, err := h.Provider("b", idB)
	if err != nil {
		t.Fatal(err)
	}
	return h, a, b
}

func conformance(t *testing.T, cfg Config) {
	transporttest.Run(t, func(t *testing.T) transporttest.Pair {
		_, a, b := pair(t, cfg)
		return transporttest.Pair{A: a, B: b, IDA: idA, IDB: idB, MaxStreams: cfg.MaxStreams, Nowhere: "c"}
	})
}

func TestConformance(t *testing.T) { conformance(t, Config{MaxStreams: 16}) }

func TestConformanceWithDelay(t *testing.T) {
	conformance(t, Config{MaxStreams: 16, Seed: 1, Delay: time.Millisecond, Jitter: 3 * time.Millisecond})
}

func TestConformanceWithJitterAlone(t *testing.T) {
	conformance(t, Config{MaxStreams: 16, Seed: 1, Jitter: time.Millisecond})
}

// connect returns both ends of a session from a to b.
func connect(t *testing.T, a, b *Provider) (transport.Session, transport.Session) {
	t.Helper()
	sa, err := a.Dial(t.Context(), b.Addr())
	if err != nil {
		t.Fatal(err)
	}
	sb, err := b.Accept(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return sa, sb
}

func TestDelayIsTheTimeInFlight(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		_, a, b := pair(t, Config{Delay: 5 * time.Millisecond})
		sa, sb := connect(t, a, b)
		s, r := transporttest.Stream(t, sa, sb)
		start := time.Now()
		s.Write([]byte("x"))
		r.Read(make([]byte, 1))
		if d := time.Since(start); d != 5*time.Millisecond {
			t.Errorf("a byte took %v, want the delay", d)
		}
	})
}

func TestCutStallsAndHealCatchesUp(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h, a, b := pair(t, Config{})
		sa, sb := connect(t, a, b)
		s, r := transporttest.Stream(t, sa, sb)
		h.Cut("b", "a")
		s.Write([]byte("late"))
		s.Close()
		got := make(chan string, 1)
		go func() { p, _ := io.ReadAll(r); got <- string(p) }()
		canceled, _ := sa.OpenStream(t.Context())
		canceled.Write([]byte("x"))
		sa.SendDatagram([]byte("lost"))
		time.Sleep(time.Second)
		select {
		case p := <-got:
			t.Fatalf("read %q over a cut path", p)
		default:
		}
		h.Heal("a", "b")
		if p := <-got; p != "late" {
			t.Errorf("read %q after Heal, want what was written", p)
		}
		if _, err := sb.AcceptStream(t.Context()); err != nil {
			t.Errorf("stream opened during the cut: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if p, err := sb.ReceiveDatagram(ctx); err == nil {
			t.Errorf("datagram %q crossed a cut path", p)
		}
	})
}

func TestCancelDuringCutReachesTheReaderAfterHeal(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h, a, b := pair(t, Config{})
		sa, sb := connect(t, a, b)
		s, r := transporttest.Stream(t, sa, sb)
		h.Cut("a", "b")
		done := make(chan error, 1)
		go func() { _, err := r.Read(make([]byte, 1)); done <- err }()
		s.Cancel()
		time.Sleep(time.Second)
		if len(done) > 0 {
			t.Fatal("the cancel crossed a cut path")
		}
		h.HealAll()
		if err := <-done; !errors.Is(err, transport.ErrStreamCanceled) {
			t.Errorf("read: %v, want ErrStreamCanceled", err)
		}
	})
}

func TestWriterSleepsWhileACancelIsStuckInACut(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h, a, b := pair(t, Config{Delay: 5 * time.Millisecond, StreamBuffer: 16})
		sa, sb := connect(t, a, b)
		s, r := transporttest.Stream(t, sa, sb)
		done := make(chan error, 1)
		go func() { _, err := s.Write(make([]byte, 100)); done <- err }()
		synctest.Wait()
		r.Cancel()
		h.Cut("a", "b")
		time.Sleep(time.Second) // never ends if the writer keeps looking
		if len(done) > 0 {
			t.Fatal("the cancel crossed a cut path")
		}
		h.HealAll()
		if err := <-done; !errors.Is(err, transport.ErrStreamCanceled) {
			t.Errorf("write: %v, want ErrStreamCanceled", err)
		}
	})
}

func TestCutLosesDatagramsInFlightAndKeepsTheRest(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h, a, b := pair(t, Config{Delay: 5 * time.Millisecond})
		sa, sb := connect(t, a, b)
		s, r := transporttest.Stream(t, sa, sb)
		sa.SendDatagram([]byte("lost"))
		s.Write([]byte("x"))
		h.Cut("a", "b")
		time.Sleep(time.Second)
		h.Heal("a", "b")
		sa.SendDatagram([]byte("next"))
		if p, err := sb.ReceiveDatagram(t.Context()); string(p) != "next" {
			t.Errorf("received %q, %v after Heal, want only what was sent then", p, err)
		}
		if n, err := r.Read(make([]byte, 2)); n != 1 || err != nil {
			t.Errorf("read %d bytes, %v after Heal, want the one in flight", n, err)
		}
	})
}

// wantEnd checks how a session ended, and when.
func wantEnd(t *testing.T, s transport.Session, want transport.CloseError, after time.Duration) {
	t.Helper()
	start := time.Now()
	<-s.Done()
	var got *transport.CloseError
	if !errors.As(s.Err(), &got) || *got != want {
		t.Errorf("session ended with %#v, want %#v", got, want)
	}
	if d := time.Since(start); d != after {
		t.Errorf("session ended after %v, want %v", d, after)
	}
}

func TestLongCutEndsSessions(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h, a, b := pair(t, Config{})
		sa, sb := connect(t, a, b)
		h.Cut("a", "b")
		wantEnd(t, sa, transport.CloseError{Timeout: true}, idleTimeout)
		wantEnd(t, sb, transport.CloseError{Timeout: true}, 0)
	})
}

func TestCloseDuringCutIsToldAfterHeal(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h, a, b := pair(t, Config{})
		sa, sb := connect(t, a, b)
		h.Cut("a", "b")
		sa.Close(transport.CodeLeaving, "bye")
		time.Sleep(time.Second)
		if err := sb.Err(); err != nil {
			t.Fatalf("the news crossed a cut path: %v", err)
		}
		h.Heal("a", "b")
		wantEnd(t, sb, transport.CloseError{Remote: true, Code: transport.CodeLeaving, Reason: "bye"}, 0)
	})
}

func TestDialOverACutPath(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h, a, _ := pair(t, Config{})
		h.Cut("a", "b")
		start := time.Now()
		_, err := a.Dial(t.Context(), "b")
		var why *transport.CloseError
		if !errors.As(err, &why) || !why.Timeout || time.Since(start) != dialTimeout {
			t.Errorf("dial: %v after %v, want a timeout after %v", err, time.Since(start), dialTimeout)
		}
	})
}

func TestHealLetsAWaitingDialThrough(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h, a, _ := pair(t, Config{})
		h.Cut("a", "b")
		time.AfterFunc(time.Second, func() { h.Heal("a", "b") })
		if _, err := a.Dial(t.Context(), "b"); err != nil {
			t.Errorf("dial: %v, want success when the path heals", err)
		}
	})
}

func TestKillWithReset(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h, a, b := pair(t, Config{Delay: time.Millisecond})
		sa, sb := connect(t, a, b)
		h.Kill("b", Reset)
		if sb.Err() == nil {
			t.Error("the killed provider's session lives")
		}
		wantEnd(t, sa, transport.CloseError{Reset: true}, time.Millisecond)
		if _, err := b.Accept(t.Context()); !errors.Is(err, transport.ErrClosed) {
			t.Errorf("accept on a killed provider: %v, want ErrClosed", err)
		}
		if _, err := a.Dial(t.Context(), "b"); !errors.Is(err, ErrRefused) {
			t.Errorf("dial to a killed provider: %v, want ErrRefused", err)
		}
	})
}

func TestKillInSilence(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h, a, b := pair(t, Config{})
		sa, _ := connect(t, a, b)
		h.Kill("b", Silent)
		var why *transport.CloseError
		if _, err := a.Dial(t.Context(), "b"); !errors.As(err, &why) || !why.Timeout {
			t.Errorf("dial to a silent provider: %v, want a timeout", err)
		}
		wantEnd(t, sa, transport.CloseError{Timeout: true}, idleTimeout-dialTimeout)
	})
}

func TestHealDoesNotReviveTheKilled(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h, a, b := pair(t, Config{})
		sa, _ := connect(t, a, b)
		h.Cut("a", "b")
		h.Kill("b", Silent)
		h.HealAll()
		wantEnd(t, sa, transport.CloseError{Timeout: true}, idleTimeout)
	})
}

func TestTheNextIncarnationResetsWhatTheSilentOneLeft(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h, a, b := pair(t, Config{})
		sa, _ := connect(t, a, b)
		h.Kill("b", Silent)
		next, err := h.Provider("b", idB)
		if err != nil {
			t.Fatal(err)
		}
		wantEnd(t, sa, transport.CloseError{Reset: true}, 0)
		connect(t, a, next)
	})
}

func TestPair(t *testing.T) {
	sa, sb := Pair(idA, idB)
	if sa.Peer() != idB || sb.Peer() != idA {
		t.Errorf("peers are %v and %v", sa.Peer(), sb.Peer())
	}
	s, r := transporttest.Stream(t, sa, sb)
	s.Close()
	if _, err := r.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("read: %v, want EOF", err)
	}
	sa.Close(transport.CodeOK, "")
	<-sb.Done()
}

func TestSteadyStateDoesNotAllocate(t *testing.T) {
	sa, sb := Pair(idA, idB)
	s, r := transporttest.Stream(t, sa, sb)
	p := make([]byte, 64<<10)
	step := func() {
		if _, err := s.Write(p); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(r, p); err != nil {
			t.Fatal(err)
		}
	}
	step()
	if n := testing.AllocsPerRun(100, step); n != 0 {
		t.Errorf("%v allocations per write and read, want none", n)
	}
}

func TestEndedSessionsAreForgotten(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h, a, b := pair(t, Config{})
		for range 10 {
			sa, sb := connect(t, a, b)
			transporttest.Stream(t, sa, sb)
			sa.Close(transport.CodeOK, "")
			<-sb.Done()
		}
		if len(h.paths) != 0 {
			t.Errorf("the paths of %d sessions are left", len(h.paths))
		}
	})
}

func BenchmarkPingPong(b *testing.B) {
	sa, sb := Pair(idA, idB)
	out, in := transporttest.Stream(b, sa, sb)
	back, answer := transporttest.Stream(b, sb, sa)
	go func() {
		p := make([]byte, 64)
		for {
			if _, err := io.ReadFull(in, p); err != nil {
				return
			}
			back.Write(p)
		}
	}()
	p := make([]byte, 64)
	b.ReportAllocs()
	for b.Loop() {
		out.Write(p)
		io.ReadFull(answer, p)
	}
	sa.Close(0, "")
}

func BenchmarkBulk(b *testing.B) {
	sa, sb := Pair(idA, idB)
	out, in := transporttest.Stream(b, sa, sb)
	go io.Copy(io.Discard, struct{ io.Reader }{in})
	p := make([]byte, 1<<20)
	b.SetBytes(int64(len(p)))
	b.ReportAllocs()
	for b.Loop() {
		out.Write(p)
	}
	sa.Close(0, "")
}
