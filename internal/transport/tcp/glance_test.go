package tcp

import (
	"crypto/tls"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/transport/transporttest"
)

// eachByte returns a channel on which comes each byte of in that was read, at most so many
// before somebody takes them, and one that is closed when the lane has ended.
func eachByte(in transport.RecvLane, most int) (came, ended chan struct{}) {
	came, ended = make(chan struct{}, most), make(chan struct{})
	go func() { // ends with the lane
		defer close(ended)
		for p := make([]byte, 1); ; came <- struct{}{} {
			if _, err := in.Read(p); err != nil {
				return
			}
		}
	}()
	return came, ended
}

// A goroutine that keeps the only processor busy lets the reader of the first
// connection have what has come, where giving way to others alone does not: the
// scheduler asks the kernel for nothing while it has somebody to run.
func TestAGlanceLetsTheReaderGoOn(t *testing.T) {
	pa, pb := onSockets(t, func(*Config) {})
	from, to := transporttest.Connect(t, pa, pb)
	out, in := transporttest.Lane(t, from, to)
	sb := to.(*session)
	if sb.socket.raw == nil {
		t.Fatal("a socket that cannot be asked")
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const rounds = 50
	came, ended := eachByte(in, rounds)
	here := 0
	for range rounds {
		for !sb.socket.waits.Load() {
			runtime.Gosched()
		}
		if _, err := out.Write([]byte{1}); err != nil {
			t.Fatal(err)
		}
		sb.glance(new(lookout), true, false)
		select {
		case <-came:
			here++
		default:
			<-came
		}
	}
	if here < rounds*4/5 { // now and then another thread polls, or is first
		t.Errorf("a glance was enough %d times of %d", here, rounds)
	}
	out.Close()
	<-ended
}

// Who moves much on one session looks for the others too: their readers go on when a
// second look finds that they still wait, if their end talks.
func TestAGlanceIsForOtherSessionsToo(t *testing.T) {
	pa, pb := onSockets(t, func(*Config) {})
	from, to := transporttest.Connect(t, pa, pb)
	out, in := transporttest.Lane(t, from, to)
	pc, pd := onSockets(t, func(*Config) {})
	mover, _ := transporttest.Connect(t, pc, pd)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const rounds = 50
	came, ended := eachByte(in, rounds)
	sb := to.(*session)
	for _, talks := range []bool{true, false} {
		early, here := 0, 0
		for range rounds {
			for !sb.socket.waits.Load() {
				runtime.Gosched()
			}
			sb.spoke.Store(int64(time.Since(sb.company.begun) - 2*lately))
			if talks {
				sb.spoke.Store(int64(time.Since(sb.company.begun)))
			}
			if _, err := out.Write([]byte{1}); err != nil {
				t.Fatal(err)
			}
			mover.(*session).glance(new(lookout), true, false)
			early += len(came)
			mover.(*session).glance(new(lookout), true, false)
			here += len(came)
			<-came
		}
		if talks && here < rounds*4/5 || !talks && here > rounds/5 || early > rounds/5 {
			t.Errorf("talks: %v: one glance was enough %d times of %d, two %d times", talks, early, rounds, here)
		}
	}
	out.Close()
	<-ended
}

// Sessions give their seats back, those too that nobody adopts.
func TestSeatsAreGivenBack(t *testing.T) {
	seated := func(of ...*Provider) (n int) {
		everyone.mu.RLock()
		defer everyone.mu.RUnlock()
		for _, s := range everyone.seats {
			if slices.Contains(of, s.p) {
				n++
			}
		}
		return n
	}
	pa, pb := onSockets(t, func(*Config) {})
	sa, sb := transporttest.Connect(t, pa, pb)
	for _, s := range []transport.Session{sa, sb} {
		// Its first goroutine sits down.
		for began := time.Now(); seated(s.(*session).p) != 1; runtime.Gosched() {
			if time.Since(began) > 10*time.Second {
				t.Fatal("a session over a socket has no seat")
			}
		}
	}
	pa.Close()
	pb.Close()
	if n := seated(pa, pb); n != 0 {
		t.Errorf("%d seats are taken when both ends have closed", n)
	}

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	late, err := newSession(pa, newRecordConn(conn, recordBuffer), sa.(*session).conn.(*tls.Conn), idB, hello{})
	if err != nil {
		t.Fatal(err)
	}
	if n := seated(pa); n != 0 {
		t.Errorf("a session that nobody has adopted yet has %d seats", n)
	}
	if pa.adopt(late) || late.seat == 0 || seated(pa) != 0 {
		t.Errorf("a session that came too late had seat %d, and of %d is one taken", late.seat, seated(pa))
	}
}

// TestWhoTalksLetsOthersRun: whoever moves much lets go of the processor now and then
// if this end waits for something short, and keeps it otherwise.
func TestWhoTalksLetsOthersRun(t *testing.T) {
	pa, pb := onSockets(t, func(*Config) {})
	sa, _ := transporttest.Connect(t, pa, pb)
	s := sa.(*session)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const rounds = 50
	for _, talks := range []bool{true, false} {
		others := 0
		for range rounds {
			var ran atomic.Bool
			var other sync.WaitGroup
			other.Go(func() { ran.Store(true) })
			if s.glance(new(lookout), talks, talks); ran.Load() {
				others++
			}
			other.Wait()
		}
		if talks && others < rounds*4/5 || !talks && others > rounds/5 {
			t.Errorf("talks: %v: others ran %d times of %d", talks, others, rounds)
		}
	}
}

// TestWhoComputesDoesNotKeepWhoMoves: after others have had the processor for long, who
// moves much has it for longer; after a moment it looks again as ever.
func TestWhoComputesDoesNotKeepWhoMoves(t *testing.T) {
	begun := time.Unix(1000, 0)
	for took, keeps := range map[time.Duration]time.Duration{50 * time.Microsecond: 0, longRun: 4 * longRun, 10 * time.Millisecond: 40 * time.Millisecond} {
		var o lookout
		now := begun.Add(took)
		o.yielded(begun, now)
		if got := max(0, o.keeps.Sub(now)); got != keeps {
			t.Errorf("others ran for %v, and it keeps the processor for %v, want %v", took, got, keeps)
		}
	}
}
