package core

import (
	"errors"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/wire"
)

// here and there are two ends of a link that may be opened.
var (
	here  = LinkEnd{Cluster: addr.UUID{1}, Incarnation: addr.Incarnation{Node: 3, Generation: 2}, UUID: addr.UUID{3}, Epoch: 30, Term: 1}
	there = LinkEnd{Cluster: addr.UUID{1}, Incarnation: addr.Incarnation{Node: 4, Generation: 7}, UUID: addr.UUID{4}, Epoch: 40, Term: 1}
)

func TestCheckHelloRefusesEveryOtherIncarnation(t *testing.T) {
	type meeting struct {
		hello wire.Hello
		known LinkEnd
		proof Proof
	}
	for _, tt := range []struct {
		name   string
		change func(m *meeting)
		want   status.Code
	}{
		{"an honest HELLO", func(*meeting) {}, status.OK},
		{"a newer range of versions", func(m *meeting) { m.hello.VersionMin, m.hello.VersionMax = wire.VersionMax+1, wire.VersionMax+2 }, status.Version},
		{"a range that ends before ours", func(m *meeting) { m.hello.VersionMin, m.hello.VersionMax = 0, wire.VersionMin-1 }, status.Version},
		{"a wider range", func(m *meeting) { m.hello.VersionMin, m.hello.VersionMax = 0, wire.VersionMax+9 }, status.OK},
		{"another cluster", func(m *meeting) { m.hello.Cluster[15]++ }, status.Access},
		{"a UUID that the certificate does not prove", func(m *meeting) { m.proof.UUID[15]++ }, status.Access},
		{"the host's ID without a host's certificate", func(m *meeting) {
			m.hello.From.Node, m.known.Incarnation.Node = addr.Host, addr.Host
		}, status.Access},
		{"the host", func(m *meeting) {
			m.hello.From.Node, m.known.Incarnation.Node, m.proof.Host = addr.Host, addr.Host, true
		}, status.OK},
		{"for another node", func(m *meeting) { m.hello.To.Node++ }, status.NoDevice},
		{"for an earlier incarnation of this node", func(m *meeting) { m.hello.To.Generation-- }, status.NoDevice},
		{"for a later incarnation of this node", func(m *meeting) { m.hello.To.Generation++ }, status.NoDevice},
		{"from an incarnation that is over", func(m *meeting) { m.hello.From.Generation-- }, status.Reset},
		{"from an incarnation that is not known yet", func(m *meeting) { m.hello.From.Generation++ }, status.NoDevice},
		{"from a node that is not known", func(m *meeting) { m.known = LinkEnd{Cluster: here.Cluster} }, status.NoDevice},
		{"with an ID that another node holds", func(m *meeting) { m.known.UUID[0]++ }, status.Access},
		{"from a process that has started again", func(m *meeting) { m.hello.FromEpoch-- }, status.Reset},
		{"the first refusal counts", func(m *meeting) { m.hello.Cluster[0]++; m.hello.To.Node++; m.hello.FromEpoch++ }, status.Access},
	} {
		m := meeting{NewHello(there, here), there, Proof{UUID: there.UUID}}
		tt.change(&m)
		err := CheckHello(m.hello, here, m.known, m.proof)
		if got := status.Of(err); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
	}
}

func TestChooseVersionTakesTheHighestInBoth(t *testing.T) {
	for _, tt := range []struct {
		minA, maxA, minB, maxB, want uint16
		ok                           bool
	}{
		{1, 1, 1, 1, 1, true},
		{1, 3, 2, 5, 3, true},
		{2, 5, 1, 3, 3, true},
		{1, 9, 4, 4, 4, true},
		{1, 2, 3, 4, 0, false},
		{3, 4, 1, 2, 0, false},
		{2, 1, 1, 2, 0, false}, // no range at all
	} {
		v, err := ChooseVersion(tt.minA, tt.maxA, tt.minB, tt.maxB)
		if v != tt.want || (err == nil) != tt.ok || err != nil && !errors.Is(err, status.Version) {
			t.Errorf("%d to %d with %d to %d: %d, %v, want %d", tt.minA, tt.maxA, tt.minB, tt.maxB, v, err, tt.want)
		}
	}
}

// TestAnswersNameTheVersionOfBoth: an older release answers, or a later one.
func TestAnswersNameTheVersionOfBoth(t *testing.T) {
	for asked, want := range map[uint16]uint16{wire.VersionMax: wire.VersionMax, wire.VersionMax + 1: wire.VersionMax, wire.VersionMax - 1: wire.VersionMax - 1} {
		h := NewHello(LinkEnd{}, LinkEnd{})
		h.VersionMin, h.VersionMax = 0, asked
		if a := NewAnswer(h, LinkEnd{}, LinkEnd{}); !a.Answer || a.VersionMin != want || a.VersionMax != want {
			t.Errorf("asked for 0 to %d it answers %d to %d, want %d", asked, a.VersionMin, a.VersionMax, want)
		}
	}
}

func TestBothEndsKeepTheSameSession(t *testing.T) {
	low, high := addr.UUID{1, 0xff}, addr.UUID{2}
	if !KeepsDialed(low, high) || KeepsDialed(high, low) {
		t.Error("the session that the lower UUID dialed does not stay")
	}
}

const ms = time.Millisecond

var times = KeepaliveTimes{Heartbeat: 100 * ms, Fence: 1000 * ms, Silence: 500 * ms, Dead: 800 * ms}

func TestHeartbeatsAreSentAtTheirInterval(t *testing.T) {
	p := NewLiveness(times, 0, 0)
	var sent []time.Duration
	for now := time.Duration(0); now <= 300*ms; now += 10 * ms {
		p.Received(now)
		if p.Tick(now).Send {
			sent = append(sent, now)
		}
	}
	if len(sent) != 3 || sent[0] != 100*ms || sent[1] != 200*ms || sent[2] != 300*ms {
		t.Errorf("heartbeats at %v, want every 100ms", sent)
	}
}

func TestSilenceIsReportedOnceUntilSomethingComes(t *testing.T) {
	p := NewLiveness(times, 0, 0)
	last := time.Duration(0)
	for _, step := range []struct {
		now          time.Duration
		arrives      bool
		report, dead bool
	}{
		{now: 499 * ms},
		{now: 500 * ms, report: true},
		{now: 600 * ms},
		{now: 700 * ms, arrives: true},
		{now: 1199 * ms},
		{now: 1200 * ms, report: true},
		{now: 1499 * ms},
		{now: 1500 * ms, dead: true},
	} {
		if step.arrives {
			p.Received(step.now)
		}
		for now := last + 50*ms; now < step.now; now += 50 * ms {
			if b := p.Tick(now); b.Report || b.Dead {
				t.Errorf("at %v: %+v", now, b)
			}
		}
		last = step.now
		if b := p.Tick(step.now); b.Report != step.report || b.Dead != step.dead {
			t.Errorf("at %v: %+v, want report %v, dead %v", step.now, b, step.report, step.dead)
		}
	}
}

func TestServingEndsWhenTheConfirmationIsOld(t *testing.T) {
	p := NewLiveness(times, 0, 50*ms) // a round trip that took 50 ms
	if !p.Fresh(1000*ms) || p.Fresh(1001*ms) {
		t.Error("a confirmation does not count from the time at which it was asked for")
	}
	p.Received(1100 * ms)
	if p.Fresh(1100 * ms) {
		t.Error("a sign of life confirms the incarnations")
	}
	p.Confirm(1200*ms, 1300*ms)
	if !p.Fresh(2200*ms) || p.Fresh(2201*ms) {
		t.Error("an answer does not renew the confirmation")
	}
	p.Confirm(900*ms, 1400*ms)
	if !p.Fresh(2200 * ms) {
		t.Error("a late answer takes a confirmation back")
	}
}

func TestAnAnswerFromTheFutureConfirmsNothing(t *testing.T) {
	p := NewLiveness(times, 0, 0)
	p.Confirm(5000*ms, 900*ms)
	if p.Fresh(1001 * ms) {
		t.Error("a sending time in the future was believed")
	}
	if p.Silent(900*ms) != 0 {
		t.Error("the answer is no sign of life")
	}
}

func TestAStandstillOfOurOwnIsNoSilenceAndStillFences(t *testing.T) {
	p := NewLiveness(times, 0, 0)
	if b := p.Tick(5000 * ms); b.Report || b.Dead || !b.Send {
		t.Errorf("after a stall of our own: %+v, want a heartbeat and no evidence", b)
	}
	if p.Fresh(5000 * ms) {
		t.Error("the peer is served after a stall without a fresh confirmation")
	}
	for now := nextTick(times, 5000*ms, TickAction{}); ; {
		b := p.Tick(now)
		if b.Report != (now >= 5400*ms) { // 100 ms of the silence are from before the stall
			t.Errorf("%v after the stall: %+v", now-5000*ms, b)
		}
		if b.Report || now > 6000*ms {
			break
		}
		now = nextTick(times, now, b)
	}
}

// TestStandstillsAreTakenOffTheSilence: a process that stands still now and then,
// for as long as it likes, gives a silent link up when the time without that makes up
// Dead, neither before nor later; and ticks that are a little late are no standstills.
func TestStandstillsAreTakenOffTheSilence(t *testing.T) {
	times := KeepaliveTimes{Heartbeat: 200 * ms, Fence: time.Second, Silence: 1300 * ms, Dead: 1800 * ms}
	for seed := range uint64(1000) {
		rng := rand.New(rand.NewPCG(seed, 7))
		p := NewLiveness(times, 0, 0)
		now, ran := time.Duration(0), time.Duration(0)
		for b := (TickAction{}); !b.Dead; {
			due := times.Heartbeat // at the latest, after the tick before
			if b.Again > 0 {
				due = min(due, b.Again)
			}
			took := nextTick(times, now, b) - now + time.Duration(rng.Int64N(int64(2*ms)))
			if seed%2 == 0 && rng.IntN(3) == 0 {
				took += time.Duration(rng.Int64N(int64(3 * time.Second)))
			}
			now += took
			if took-due <= times.Heartbeat/2 {
				ran += took
			} else {
				ran += due
			}
			if b = p.Tick(now); b.Dead != (ran >= times.Dead) {
				t.Fatalf("seed %d: at %v, of which %v were no standstill: %+v", seed, now, ran, b)
			}
		}
		if seed%2 == 1 && now > times.Dead+5*ms {
			t.Errorf("seed %d: without a standstill given up after %v", seed, now)
		}
	}
}

func TestTimeThatStandsStillOrGoesBack(t *testing.T) {
	p := NewLiveness(times, 1000*ms, 1000*ms)
	p.Received(900 * ms)
	if p.Silent(1000*ms) != 0 {
		t.Error("an older reading of the clock moved the last sign of life back")
	}
	if b := p.Tick(900 * ms); b != (TickAction{}) {
		t.Errorf("an older reading of the clock: %+v", b)
	}
}

// TestLivenessReportsAnIncarnationOnce: evidence against a peer is taken back by the first
// answer on a link, and by the first after a silence that was reported.
func TestLivenessReportsAnIncarnationOnce(t *testing.T) {
	times := KeepaliveTimes{Heartbeat: 250 * time.Millisecond, Fence: time.Second, Silence: 1200 * time.Millisecond, Dead: 2400 * time.Millisecond}
	p := NewLiveness(times, 0, 0)
	for i, want := range []bool{true, false, false} {
		if got := p.Confirm(0, time.Duration(i)); got != want {
			t.Errorf("answer %d is news: %v", i+1, got)
		}
	}
	for now := nextTick(times, 0, TickAction{}); now < 1300*time.Millisecond; {
		now = nextTick(times, now, p.Tick(now))
	}
	p.Received(1400 * time.Millisecond)
	if !p.Confirm(1350*time.Millisecond, 1450*time.Millisecond) {
		t.Error("the first answer after a silence that was to be reported is no news")
	}
	if p.Confirm(1350*time.Millisecond, 1460*time.Millisecond) {
		t.Error("the second answer is")
	}
}

// TestLivenessAsksForATickWhenTheLinkIsDue: ticks are a heartbeat apart, and a link
// is given up when it is due.
func TestLivenessAsksForATickWhenTheLinkIsDue(t *testing.T) {
	times := KeepaliveTimes{Heartbeat: 400 * time.Millisecond, Fence: time.Second, Silence: 1800 * time.Millisecond, Dead: 2700 * time.Millisecond}
	p := NewLiveness(times, 0, 0)
	for now := time.Duration(0); ; {
		b := p.Tick(now)
		if b.Dead {
			if now != times.Dead || b.Again != 0 {
				t.Errorf("at %v: %+v", now, b)
			}
			return
		}
		if now > times.Dead {
			t.Fatalf("at %v the link is not given up", now)
		}
		now = nextTick(times, now, b)
	}
}

// nextTick returns the time of the next tick: a heartbeat's, or one asked for.
func nextTick(times KeepaliveTimes, now time.Duration, b TickAction) time.Duration {
	next := now + times.Heartbeat - now%times.Heartbeat
	if b.Again > 0 {
		next = min(next, now+b.Again)
	}
	return next
}

// TestLivenessFindsGapsAtItsOwnPace: a network that comes back for three tenths of
// an interval, and that as often as heartbeats are sent, lets one through before
// the link is given up.
func TestLivenessFindsGapsAtItsOwnPace(t *testing.T) {
	times := KeepaliveTimes{Heartbeat: 200 * ms, Fence: time.Second, Silence: 1300 * ms, Dead: 1800 * ms}
	for from := time.Duration(0); from < times.Heartbeat; from += 5 * ms {
		p := NewLiveness(times, 0, 0)
		through := false
		for now := time.Duration(0); now < times.Dead; {
			b := p.Tick(now)
			phase := now % times.Heartbeat
			through = through || b.Send && (phase >= from && phase < from+60*ms || phase+times.Heartbeat < from+60*ms)
			now = nextTick(times, now, b)
		}
		if !through {
			t.Errorf("no heartbeat between %v and %v of the interval", from, from+60*ms)
		}
	}
}

// keepalives returns the two ends of a link that was established at 0.
func keepalives() (a, b *Keepalive) {
	x, y := addr.Incarnation{Node: 1, Generation: 1}, addr.Incarnation{Node: 2, Generation: 1}
	return &Keepalive{Liveness: NewLiveness(times, 0, 0), Self: x, Peer: y}, &Keepalive{Liveness: NewLiveness(times, 0, 0), Self: y, Peer: x}
}

func TestAHeartbeatIsAnsweredAndConfirms(t *testing.T) {
	a, b := keepalives()
	const sent, now = 3 * time.Second, 3100 * time.Millisecond
	asked := b.Datagram(a.Heartbeat(7, sent), now)
	if asked.Reply == nil || asked.Confirmed || b.Silent(now) != 0 {
		t.Errorf("a heartbeat has the effect %+v and leaves a silence of %v, want a reply, no confirmation, 0", asked, b.Silent(now))
	}
	h := a.Datagram(asked.Reply, now)
	if want := (FrameEffect{Confirmed: true, Report: true, Resume: true, Seq: 7, Sent: sent}); !reflect.DeepEqual(h, want) {
		t.Errorf("the first answer has the effect %+v, want %+v", h, want)
	}
	if h = a.Datagram(asked.Reply, now+2*time.Second); h.Report || h.Resume {
		t.Errorf("a late copy of the answer has the effect %+v, want neither news nor a fresh confirmation", h)
	}
}

func TestOneProbeIsUnderWay(t *testing.T) {
	a, b := keepalives()
	const now = 5 * time.Second
	ask := a.Ask(now)
	if ask == nil || a.Ask(now) != nil {
		t.Fatal("the first call of Ask does not give a Probe, or the second one does")
	}
	control := func(k *Keepalive, frame []byte) FrameEffect {
		t.Helper()
		head, err := wire.ParseHeader(frame)
		if err != nil {
			t.Fatal(err)
		}
		h, err := k.Control(head, frame[wire.HeaderLen:], now)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	stale := wire.ProbeAck{Nonce: 9, From: a.Peer, To: a.Self}.AppendTo(nil)
	if h := control(a, stale); h.Confirmed || a.Fresh(now) {
		t.Error("the answer to another probe confirms")
	}
	answer := control(b, ask).Reply
	if h := control(a, answer); !h.Confirmed || !h.Resume || !a.Fresh(now) {
		t.Errorf("the answer has the effect %+v, want a confirmation", h)
	}
	if h := control(a, answer); h.Confirmed {
		t.Error("the same answer confirms again")
	}
	if a.Ask(now) == nil {
		t.Error("no probe can be sent after an answer")
	}
}

func TestFramesOfOtherIncarnationsHaveNoEffect(t *testing.T) {
	a, b := keepalives()
	old := *b
	old.Self.Generation = 0
	for _, p := range [][]byte{
		old.Heartbeat(1, time.Second), wire.HeartbeatAck{Seq: 1, From: old.Self, To: a.Self}.AppendTo(nil), {1, 2, 3},
	} {
		if h := a.Datagram(p, time.Second); !reflect.DeepEqual(h, FrameEffect{}) || a.Silent(time.Second) != time.Second {
			t.Errorf("datagram %x has the effect %+v, want none", p, h)
		}
	}
	for _, p := range [][]byte{old.Ask(0), wire.ProbeAck{Nonce: 1, From: old.Self, To: a.Self}.AppendTo(nil)} {
		a.Ask(0)
		head, err := wire.ParseHeader(p)
		if err != nil {
			t.Fatal(err)
		}
		if h, err := a.Control(head, p[wire.HeaderLen:], time.Second); err != nil || !reflect.DeepEqual(h, FrameEffect{}) {
			t.Errorf("%v has the effect %+v, %v, want none", head.Type, h, err)
		}
	}
}
