package core

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/fabricd/fabricd/fabric/addr"
)

// TestFlowKeepsTheWindow runs a sender and a receiver that follow their
// accounts: the receiver never holds more than its window, and whatever the
// receiver reads, the sender can go on in the end.
func TestFlowKeepsTheWindow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		window := rapid.SampledFrom([]int{4, 64, 4096}).Draw(t, "window")
		in, out := NewInflow(window), Outflow{}
		out.Raise(uint64(window))
		under, total := 0, rapid.IntRange(0, 5*window).Draw(t, "total")
		rest := total
		for in.Read() < uint64(total) {
			k := out.Reserve(min(rest, rapid.IntRange(0, window).Draw(t, "send")))
			rest, under = rest-k, under+k
			n := rapid.IntRange(0, under).Draw(t, "arrive")
			under -= n
			if !in.Arrive(n) {
				t.Fatalf("a sender that kept its limit broke it: %+v", in)
			}
			if in.Unread() > window {
				t.Fatalf("%d bytes unread in a window of %d", in.Unread(), window)
			}
			in.Take(rapid.IntRange(0, in.Unread()).Draw(t, "read"))
			if limit, send := in.Grant(); send {
				out.Raise(limit)
			}
			if in.Unread() == 0 && under == 0 && rest > 0 && out.Room() == 0 {
				t.Fatalf("everything is read and the sender may send nothing: %+v %+v", in, out)
			}
		}
		if !in.End(out.Sent(), false) || !in.PeerClosed() || !in.Over() {
			t.Fatalf("%d bytes sent and read, and the end does not fit: %+v", total, in)
		}
	})
}

func TestInflowRefusesWhatNoPeerMaySend(t *testing.T) {
	for name, bad := range map[string]func(f *Inflow) bool{
		"more than the limit":           func(f *Inflow) bool { return f.Arrive(101) },
		"more than it said":             func(f *Inflow) bool { return f.End(10, false) && f.Arrive(11) },
		"an end before what came":       func(f *Inflow) bool { return f.Arrive(20) && f.End(19, false) },
		"an end beyond the limit":       func(f *Inflow) bool { return f.End(101, false) },
		"a stream that ended too early": func(f *Inflow) bool { return f.Arrive(5) && f.End(6, false) && f.Cut() },
		"an end after a shorter stream": func(f *Inflow) bool { return f.Arrive(5) && f.Cut() && f.End(6, false) },
	} {
		if f := NewInflow(100); bad(&f) {
			t.Errorf("%s is taken: %+v", name, f)
		}
	}
}

func TestAResetIsNoGoodEnd(t *testing.T) {
	f := NewInflow(100)
	if f.Arrive(3); !f.End(5, true) || f.Over() {
		t.Errorf("the end of a peer with bytes pending: %+v", f)
	}
	if f.Arrive(2); !f.Over() || f.PeerClosed() {
		t.Errorf("all that came before a reset: %+v", f)
	}
}

// A stream ends after one number of bytes, and one that was lost before has no good end.
func TestAStreamEndsOnce(t *testing.T) {
	f := NewInflow(100)
	if !f.Arrive(5) || !f.End(5, false) || !f.PeerClosed() {
		t.Error("a half-close behind the last byte is refused")
	}
	if f.End(6, false) || !f.End(5, false) {
		t.Error("a close has another number than the half-close before it")
	}
	if f.Lose(); !f.PeerClosed() {
		t.Error("what was whole is lost with the connection")
	}
	g := NewInflow(100)
	g.Lose()
	if g.End(0, false); g.PeerClosed() {
		t.Error("a good end behind a loss")
	}
}

func TestMutedInflowGrantsAndKeepsNothing(t *testing.T) {
	f := NewInflow(100)
	f.Arrive(40)
	f.Mute()
	f.Arrive(30)
	if f.Unread() != 0 || f.Arrived() != 70 {
		t.Errorf("a muted end keeps %d of %d bytes", f.Unread(), f.Arrived())
	}
	f.Lose()
	if _, send := f.Grant(); send {
		t.Error("a lost connection grants more")
	}
}

func TestRefusesDialed(t *testing.T) {
	low, high := addr.UUID{1}, addr.UUID{2}
	for _, c := range []struct {
		self, peer              addr.UUID
		linked, dialed, dialing bool
		refuses                 bool
	}{
		{low, high, false, false, false, false},
		{low, high, false, false, true, true},
		{high, low, false, false, true, false},
		{low, high, true, true, false, true},
		{low, high, true, false, false, false}, // the peer's own session: it has lost it
		{low, high, true, false, true, false},
		{high, low, true, true, false, false},
	} {
		if got := RefusesDialed(c.self, c.peer, c.linked, c.dialed, c.dialing); got != c.refuses {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

func TestDoubtNeedsAFreshAnswer(t *testing.T) {
	times := KeepaliveTimes{Heartbeat: 250 * time.Millisecond, Fence: time.Second, Silence: 1200 * time.Millisecond, Dead: 2400 * time.Millisecond}
	p := NewLiveness(times, 10*time.Second, 10*time.Second)
	p.Doubt(10 * time.Second)
	if p.Fresh(10 * time.Second) {
		t.Error("serving in doubt")
	}
	p.Confirm(8*time.Second, 10*time.Second)
	if p.Fresh(10 * time.Second) {
		t.Error("an old answer ends the doubt")
	}
	p.Confirm(10*time.Second, 10*time.Second+time.Millisecond)
	if !p.Fresh(11*time.Second) || p.Fresh(11*time.Second+1) {
		t.Errorf("serving until %v", p.FreshUntil())
	}
}
