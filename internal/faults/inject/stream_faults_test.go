package inject

import (
	"context"
	"errors"
	"io"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fabricd/fabricd/internal/faults"
	"github.com/fabricd/fabricd/internal/test/bubble"
	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/transport/mem"
	"github.com/fabricd/fabricd/internal/wire"
)

// A lab is a session between nodes 1 and 2 over a network in memory.
type lab struct {
	t      testing.TB
	layers [2]*Layer
	p      [2]transport.Provider
	s      [2]transport.Session // dialed by node 1, accepted by node 2
}

func openLab(t testing.TB) *lab {
	l := &lab{t: t}
	l.layers[0], l.layers[1], l.p[0], l.p[1] = memPair(t, mem.Config{})
	t.Cleanup(func() { l.p[0].Close(); l.p[1].Close() })
	l.s[0], l.s[1] = l.connect()
	return l
}

func (l *lab) connect() (near, far transport.Session) {
	l.t.Helper()
	near, err := l.p[0].Dial(context.Background(), "b")
	if err != nil {
		l.t.Fatal(err)
	}
	far, err = l.p[1].Accept(context.Background())
	if err != nil {
		l.t.Fatal(err)
	}
	return near, far
}

// A pipeline is a stream whose first frame is known to have arrived.
type pipeline struct {
	out transport.SendStream
	in  transport.RecvStream
}

// stream opens a stream that begins with a frame of a type.
func (l *lab) stream(from int, first wire.Type) pipeline {
	l.t.Helper()
	out, err := l.s[from].OpenStream(context.Background())
	if err != nil {
		l.t.Fatal(err)
	}
	if _, err := out.Write([]byte{byte(first)}); err != nil {
		l.t.Fatal(err)
	}
	in, err := l.s[1-from].AcceptStream(context.Background())
	if err != nil {
		l.t.Fatal(err)
	}
	if _, err := io.ReadFull(in, make([]byte, 1)); err != nil {
		l.t.Fatal(err)
	}
	return pipeline{out, in}
}

// pass sends a byte through a stream and returns how long that took.
func (p pipeline) pass(limit time.Duration) (time.Duration, error) {
	start := time.Now()
	p.in.SetReadDeadline(start.Add(limit))
	defer p.in.SetReadDeadline(time.Time{})
	if _, err := p.out.Write([]byte{1}); err != nil {
		return 0, err
	}
	_, err := io.ReadFull(p.in, make([]byte, 1))
	return time.Since(start), err
}

// TestStreamsBeginInOrder has streams begin that wait at a cut or a delay, and one when it is over:
// the peer gets them in the order of their first bytes. Those of the other plane do not wait for
// them while the rule stands.
func TestStreamsBeginInOrder(t *testing.T) {
	const streams = 50
	for name, r := range map[string]faults.Rule{
		"cut":   {On: faults.Messages, Cut: true},
		"hold":  {On: faults.Messages, Hold: true, For: 500 * ms},
		"delay": {On: faults.Messages, Delay: 30 * ms, Jitter: 30 * ms},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				l := openLab(t)
				add(t, l.layers[0], r)
				begin := func(i int) {
					out, err := l.s[0].OpenStream(t.Context())
					if err == nil {
						_, err = out.Write([]byte{byte(wire.TypeStream), byte(i)})
					}
					if err != nil {
						t.Error(err)
					}
				}
				for i := range streams {
					begin(i)
					synctest.Wait()
				}
				if r.Delay == 0 {
					start := time.Now()
					l.stream(0, wire.TypeConnect)
					if took := time.Since(start); took > 0 {
						t.Errorf("a stream of the other plane waited %v", took)
					}
					if r.Hold {
						time.Sleep(500 * time.Millisecond)
					}
				}
				l.layers[0].plane.Clear()
				begin(streams)
				for i := range streams + 1 {
					in, err := l.s[1].AcceptStream(t.Context())
					got := make([]byte, 2)
					if err == nil {
						_, err = io.ReadFull(in, got)
					}
					if err != nil || got[1] != byte(i) {
						t.Fatalf("stream %d is number %d, %v", got[1], i, err)
					}
				}
			})
		})
	}
}

// TestMessagesAndRMAAreDistinguished has rules for one of them act on streams of all
// kinds, from both ends.
func TestMessagesAndRMAAreDistinguished(t *testing.T) {
	kinds := []struct {
		name  string
		first wire.Type
		on    []faults.Traffic // whose rules cover it
	}{
		{"messages", wire.TypeStream, []faults.Traffic{faults.Messages, faults.Link, faults.All}},
		{"operations", wire.TypeConnect, []faults.Traffic{faults.RMA, faults.Link, faults.All}},
		{"operations back", wire.TypeAccept, []faults.Traffic{faults.RMA, faults.Link, faults.All}},
		{"control", wire.TypeHello, []faults.Traffic{faults.Link, faults.All}},
	}
	for _, on := range []faults.Traffic{faults.Messages, faults.RMA, faults.Link, faults.All, faults.Gossip} {
		for end, name := range []string{"sender", "receiver"} {
			t.Run(string(on)+" at the "+name, func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) {
					l := openLab(t)
					streams := map[string]pipeline{}
					for _, k := range kinds {
						streams[k.name] = l.stream(0, k.first)
					}
					add(t, l.layers[end], faults.Rule{On: on, From: faults.Nodes{1}, To: faults.Nodes{2}, Delay: 30 * ms})
					for _, k := range kinds {
						want := time.Duration(0)
						for _, covers := range k.on {
							if covers == on {
								want = 30 * time.Millisecond
							}
						}
						if took, err := streams[k.name].pass(time.Second); err != nil || took < want || took > want+time.Millisecond {
							t.Errorf("a stream of %s takes %v, want %v; %v", k.name, took, want, err)
						}
					}
				})
			})
		}
	}
}

// TestFaultsOfLinkStreams has each fault that a stream takes act, on streams of both
// directions.
func TestFaultsOfLinkStreams(t *testing.T) {
	const forever = -1
	tests := []struct {
		name        string
		r           faults.Rule
		there, back time.Duration // how long a byte takes at least; forever: it does not come
	}{
		{"delay", faults.Rule{On: faults.Messages, From: faults.Nodes{1}, Delay: 30 * ms}, 30 * time.Millisecond, 0},
		{"rate", faults.Rule{On: faults.Messages, From: faults.Nodes{1}, Rate: 1000}, time.Millisecond, 0},
		{"cut of a stream", faults.Rule{On: faults.Messages, From: faults.Nodes{1}, Cut: true}, forever, 0},
		{"cut of a link", faults.Rule{On: faults.Link, From: faults.Nodes{1}, Cut: true}, forever, forever},
		{"loss on a link", faults.Rule{On: faults.Link, From: faults.Nodes{1}, Drop: 1}, 8 * faults.LinkRetransmit, 0},
		{"hold", faults.Rule{On: faults.Messages, Hold: true, For: 500 * ms}, 500 * time.Millisecond, 0},
	}
	for _, tt := range tests {
		for end, name := range []string{"node 1", "node 2"} {
			t.Run(tt.name+" at "+name, func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) {
					l := openLab(t)
					streams := []pipeline{l.stream(0, wire.TypeStream), l.stream(1, wire.TypeStream)}
					counts := add(t, l.layers[end], tt.r)
					synctest.Wait()
					for i, want := range []time.Duration{tt.there, tt.back} {
						took, err := streams[i].pass(3 * time.Second)
						if want == forever && !errors.Is(err, os.ErrDeadlineExceeded) ||
							want != forever && (err != nil || took < want || took > want+2*time.Millisecond) {
							t.Errorf("direction %d: %v, %v; want %v", i, took, err, want)
						}
					}
					if counts().Fired() == 0 {
						t.Error("the rule did not fire")
					}
					l.layers[end].plane.Clear()
					for i, want := range []time.Duration{tt.there, tt.back} {
						if want == forever {
							if _, err := io.ReadFull(streams[i].in, make([]byte, 1)); err != nil {
								t.Errorf("direction %d: what was under way: %v", i, err)
							}
						}
						if took, err := streams[i].pass(time.Second); err != nil || took > time.Millisecond {
							t.Errorf("direction %d after the rule: %v, %v", i, took, err)
						}
					}
				})
			})
		}
	}
}

// planesOfStreams are the planes that streams are of, and the first frames of such streams.
var planesOfStreams = map[faults.Traffic][]wire.Type{
	faults.Messages: {wire.TypeStream},
	faults.RMA:      {wire.TypeConnect, wire.TypeAccept},
}

// otherPlane returns the plane of streams that on is not.
func otherPlane(on faults.Traffic) faults.Traffic {
	if on == faults.Messages {
		return faults.RMA
	}
	return faults.Messages
}

// passes is how many bytes show how fast a stream is.
const passes = 20

// A streamEffect checks a rule's effect on streams, and that it is counted. It calls meanwhile when the
// rule has done something and stands.
type streamEffect func(t *testing.T, streams []pipeline, counts func() faults.Counters, meanwhile func())

// slows expects that bytes take from least to most, and come close to both.
func slows(count func(faults.Counters) uint64, least, most time.Duration) streamEffect {
	return func(t *testing.T, streams []pipeline, counts func() faults.Counters, meanwhile func()) {
		for i, stream := range streams {
			before := count(counts())
			fastest, slowest := time.Hour, time.Duration(0)
			for range passes {
				took, err := stream.pass(time.Second)
				if err != nil {
					t.Fatalf("stream %d: %v", i, err)
				}
				fastest, slowest = min(fastest, took), max(slowest, took)
			}
			span := (most - least) / 4
			if fastest < least || fastest > least+span+time.Millisecond || slowest < most-span || slowest > most+time.Millisecond {
				t.Errorf("stream %d: a byte takes %v to %v, want %v to %v", i, fastest, slowest, least, most)
			}
			if n := count(counts()) - before; n != passes {
				t.Errorf("stream %d: %d of %d bytes counted", i, n, passes)
			}
		}
		meanwhile()
	}
}

// stops expects that bytes do not come before a time, when the rule ends.
func stops(until time.Duration) streamEffect {
	return func(t *testing.T, streams []pipeline, counts func() faults.Counters, meanwhile func()) {
		start := time.Now()
		for i, stream := range streams {
			before := counts().Stopped
			if _, err := stream.pass(50 * time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("stream %d: %v", i, err)
			}
			if counts().Stopped == before {
				t.Errorf("stream %d: not counted", i)
			}
		}
		meanwhile()
		for i, stream := range streams {
			_, err := io.ReadFull(stream.in, make([]byte, 1))
			if took := time.Since(start).Truncate(time.Millisecond); err != nil || took != until {
				t.Errorf("stream %d: it came after %v, want %v; %v", i, took, until, err)
			}
		}
	}
}

// resets expects that both ends of the streams are notified that they have ended.
func resets(t *testing.T, streams []pipeline, counts func() faults.Counters, meanwhile func()) {
	for i, stream := range streams {
		if _, err := stream.out.Write([]byte{1}); !errors.Is(err, transport.ErrStreamCanceled) {
			t.Errorf("writing to stream %d: %v", i, err)
		}
		if _, err := stream.in.Read(make([]byte, 1)); !errors.Is(err, transport.ErrStreamCanceled) {
			t.Errorf("reading from stream %d: %v", i, err)
		}
	}
	if n := counts().Reset; n != uint64(len(streams)) {
		t.Errorf("%d resets of %d streams counted", n, len(streams))
	}
	meanwhile()
}

// TestFaultsOfOnePlane has each fault that a stream takes act on the streams of one
// plane in one direction. Those of the other plane, the link's own and those back
// are as fast as before while it stands, and the rule has not seen them.
func TestFaultsOfOnePlane(t *testing.T) {
	delayed := func(c faults.Counters) uint64 { return c.Delayed }
	limited := func(c faults.Counters) uint64 { return c.Limited }
	kinds := []struct {
		name   string
		r      faults.Rule
		effect streamEffect
	}{
		{"delay", faults.Rule{Delay: 30 * ms}, slows(delayed, 30*time.Millisecond, 30*time.Millisecond)},
		{"jitter", faults.Rule{Jitter: 40 * ms}, slows(delayed, 0, 40*time.Millisecond)},
		{"rate", faults.Rule{Rate: 1000}, slows(limited, time.Millisecond, time.Millisecond)},
		{"cut", faults.Rule{Cut: true, For: 900 * ms}, stops(900 * time.Millisecond)},
		{"hold", faults.Rule{Hold: true, For: 900 * ms}, stops(900 * time.Millisecond)},
		{"reset", faults.Rule{Reset: true}, resets},
	}
	for on := range planesOfStreams {
		for _, k := range kinds {
			for end, name := range []string{"sender", "receiver"} {
				t.Run(string(on)+"/"+k.name+" at the "+name, func(t *testing.T) {
					bubble.Test(t, func(t *testing.T) {
						r := k.r
						r.On, r.From, r.To = on, faults.Nodes{1}, faults.Nodes{2}
						faultOfOnePlane(t, r, end, k.effect)
					})
				})
			}
		}
	}
}

// faultOfOnePlane has one end of a link enforce r, which is for the traffic of node 1.
func faultOfOnePlane(t *testing.T, r faults.Rule, end int, effect streamEffect) {
	l := openLab(t)
	var streams []pipeline
	others := map[string]pipeline{"the link's own": l.stream(0, wire.TypeHello)}
	for _, first := range planesOfStreams[r.On] {
		streams = append(streams, l.stream(0, first))
		others["back, of "+first.String()] = l.stream(1, first)
	}
	for _, first := range planesOfStreams[otherPlane(r.On)] {
		others["of "+first.String()] = l.stream(0, first)
	}
	untouched := func() {
		t.Helper()
		for what, stream := range others {
			if took, err := stream.pass(time.Second); err != nil || took > 0 {
				t.Errorf("a byte on the stream %s: %v, %v", what, took, err)
			}
		}
	}
	counts := add(t, l.layers[end], r)
	synctest.Wait()
	untouched()
	if n := counts(); n.Seen > 0 || n.Stopped > 0 {
		t.Errorf("the rule has seen what it is not for: %+v", n)
	}
	effect(t, streams, counts, untouched)
	l.layers[end].plane.Clear()
	if r.Reset {
		streams = []pipeline{l.stream(0, planesOfStreams[r.On][0])}
	}
	for i, stream := range streams {
		if took, err := stream.pass(time.Second); err != nil || took > time.Millisecond {
			t.Errorf("stream %d when it is over: %v, %v", i, took, err)
		}
	}
}

func TestResetOfStreamsAndLinks(t *testing.T) {
	for end := range 2 {
		bubble.Test(t, func(t *testing.T) {
			l := openLab(t)
			messages, ops := l.stream(0, wire.TypeStream), l.stream(0, wire.TypeConnect)
			counts := add(t, l.layers[end], faults.Rule{On: faults.Messages, Reset: true})
			synctest.Wait()
			if _, err := messages.in.Read(make([]byte, 1)); !errors.Is(err, transport.ErrStreamCanceled) {
				t.Errorf("a message stream that was reset: %v", err)
			}
			if _, err := messages.out.Write([]byte{1}); !errors.Is(err, transport.ErrStreamCanceled) {
				t.Errorf("writing to it: %v", err)
			}
			if _, err := ops.pass(time.Second); err != nil {
				t.Errorf("an operations stream: %v", err)
			}
			if counts().Reset == 0 {
				t.Error("the rule did not fire")
			}
			l.layers[end].plane.Clear()
			counts = add(t, l.layers[end], faults.Rule{On: faults.Link, Reset: true, For: 100 * ms})
			for i, s := range l.s {
				<-s.Done()
				ce, ok := errors.AsType[*transport.CloseError](s.Err())
				if !ok || ce.Reset != (i == end) {
					t.Errorf("session %d after a reset at %d: %v", i, end, s.Err())
				}
			}
			if counts().Reset == 0 {
				t.Error("the rule did not fire")
			}
			time.Sleep(100 * time.Millisecond)
			l.s[0], l.s[1] = l.connect()
			if _, err := l.stream(0, wire.TypeStream).pass(time.Second); err != nil {
				t.Errorf("the next session: %v", err)
			}
		})
	}
}

// TestDatagramsOfALink meets heartbeats.
func TestDatagramsOfALink(t *testing.T) {
	for end := range 2 {
		bubble.Test(t, func(t *testing.T) {
			l := openLab(t)
			arrive := func() (n int, first time.Duration) {
				start := time.Now()
				ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
				defer cancel()
				go func() {
					for range 100 {
						if err := l.s[0].SendDatagram([]byte("beat")); err != nil {
							t.Error(err)
						}
						time.Sleep(time.Millisecond)
					}
				}()
				for {
					p, err := l.s[1].ReceiveDatagram(ctx)
					if err != nil {
						return n, first
					}
					if string(p) != "beat" {
						t.Errorf("received %q", p)
					}
					if n++; n == 1 {
						first = time.Since(start)
					}
				}
			}
			for _, tt := range []struct {
				r           faults.Rule
				least, most int
				first       time.Duration
			}{
				{faults.Rule{On: faults.Messages, Cut: true}, 100, 100, 0},
				{faults.Rule{On: faults.Link, Cut: true, From: faults.Nodes{2}}, 0, 0, 0}, // a stream's acknowledgements
				{faults.Rule{On: faults.Link, Cut: true, From: faults.Nodes{3}}, 100, 100, 0},
				{faults.Rule{On: faults.Link, Cut: true, From: faults.Nodes{1}}, 0, 0, 0},
				{faults.Rule{On: faults.Link, Drop: .5}, 30, 70, 0},
				{faults.Rule{On: faults.Link, Corrupt: .5}, 30, 70, 0},
				{faults.Rule{On: faults.Link, Duplicate: .5}, 130, 170, 0},
				{faults.Rule{On: faults.Link, Delay: 40 * ms}, 100, 100, 40 * time.Millisecond},
			} {
				add(t, l.layers[end], tt.r)
				if n, first := arrive(); n < tt.least || n > tt.most || first < tt.first {
					t.Errorf("%v at %d: %d arrived, the first after %v", tt.r, end, n, first)
				}
				l.layers[end].plane.Clear()
			}
		})
	}
}

func TestDialsOfLinks(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		l := openLab(t)
		add(t, l.layers[0], faults.Rule{On: faults.Link, Cut: true, From: faults.Nodes{2}})
		start := time.Now()
		_, err := l.p[0].Dial(t.Context(), "b")
		ce, ok := errors.AsType[*transport.CloseError](err)
		if !ok || !ce.Timeout || time.Since(start) != dialTimeout {
			t.Errorf("dial across a cut: %v after %v", err, time.Since(start))
		}
		l.layers[0].plane.Clear()
		add(t, l.layers[0], faults.Rule{On: faults.Link, HalfOpen: true})
		if _, err := l.p[0].Dial(t.Context(), "b"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("dial across a half-open link: %v", err)
		}
		l.layers[0].plane.Clear()
		add(t, l.layers[1], faults.Rule{On: faults.Link, HalfOpen: true})
		accepted := make(chan error, 1)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _, err := l.p[1].Accept(ctx); accepted <- err }()
		if s, err := l.p[0].Dial(t.Context(), "b"); err == nil {
			<-s.Done() // the acceptor refuses it when it knows the peer
		}
		cancel()
		if err := <-accepted; !errors.Is(err, context.Canceled) {
			t.Errorf("accept returned %v", err)
		}
	})
}

// TestCloseEndsDialsAcrossACut closes a provider while a cut holds one of its dials up.
func TestCloseEndsDialsAcrossACut(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		l := openLab(t)
		add(t, l.layers[0], faults.Rule{On: faults.Link, Cut: true})
		dialed := make(chan error, 1)
		go func() { _, err := l.p[0].Dial(context.Background(), "b"); dialed <- err }()
		synctest.Wait()
		start := time.Now()
		l.p[0].Close()
		if err := <-dialed; !errors.Is(err, transport.ErrClosed) || time.Since(start) != 0 {
			t.Errorf("the dial returned %v after %v", err, time.Since(start))
		}
	})
}

// TestCloseOfALinkAcrossACut ends one side during a cut: the other one learns of
// it when the cut ends, and calls here fail at once.
func TestCloseOfALinkAcrossACut(t *testing.T) {
	for end := range 2 { // has the rule
		bubble.Test(t, func(t *testing.T) {
			l := openLab(t)
			stream := l.stream(end, wire.TypeStream)
			add(t, l.layers[end], faults.Rule{On: faults.Link, Cut: true, For: 10000 * ms})
			synctest.Wait()
			write := make(chan error, 1)
			go func() {
				for {
					if _, err := stream.out.Write(make([]byte, 100000)); err != nil {
						write <- err
						return
					}
				}
			}()
			accept := make(chan error, 1)
			go func() { _, err := l.s[end].AcceptStream(context.Background()); accept <- err }()
			synctest.Wait()
			start := time.Now()
			l.s[end].Close(transport.CodeFenced, "over")
			for name, c := range map[string]chan error{"write": write, "accept": accept} {
				if err := <-c; !errors.Is(err, transport.ErrClosed) {
					t.Errorf("%s after close: %v", name, err)
				}
			}
			if took := time.Since(start); took != 0 {
				t.Errorf("the closing side waited %v", took)
			}
			<-l.s[1-end].Done()
			ce, ok := errors.AsType[*transport.CloseError](l.s[1-end].Err())
			if !ok || !ce.Remote || ce.Code != transport.CodeFenced || time.Since(start) != 10*time.Second {
				t.Errorf("the other side: %v after %v", l.s[1-end].Err(), time.Since(start))
			}
		})
	}
}

// TestAnEndBehindACutIsNotSeen has the side without the rule end the session.
func TestAnEndBehindACutIsNotSeen(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		l := openLab(t)
		stream := l.stream(1, wire.TypeConnect)
		add(t, l.layers[0], faults.Rule{On: faults.Link, Cut: true, For: 3000 * ms})
		start := time.Now()
		l.s[1].Close(transport.CodeLeaving, "left")
		read := make(chan error, 1)
		go func() { _, err := stream.in.Read(make([]byte, 1)); read <- err }()
		<-l.s[0].Done()
		if took := time.Since(start); took != 3*time.Second {
			t.Errorf("the end was seen after %v, in a cut of 3s", took)
		}
		if err := <-read; !errors.Is(err, transport.ErrClosed) || time.Since(start) < 3*time.Second {
			t.Errorf("a read returned %v after %v", err, time.Since(start))
		}
	})
}
