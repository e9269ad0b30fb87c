package main

import (
	"errors"
	"net"
	"slices"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// onMem builds a load of 100 bytes on two nodes in memory.
func onMem(t *testing.T, build builder) (load, *channel) {
	t.Helper()
	s, err := bed{}.side(t.Context(), providerMem)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	})
	ch, err := s.dial(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	l, err := build(t.Context(), s, ch, job{size: 100, seed: 3, check: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(l.end(), ch.close()); err != nil {
			t.Error(err)
		}
	})
	return l, ch
}

// The last message of a burst waits for the whole burst, and the pauses are not
// measured.
func TestBurstsAreMeasuredFromTheirBegin(t *testing.T) {
	near, far := net.Pipe()
	const pause, length, messages = 50 * time.Millisecond, 10, 25
	served := make(chan error, 1)
	// The second message: the first read is that of the command.
	go func() { served <- (&responder{rw: &stalling{Conn: far, at: 3, pause: pause}}).run() }()
	l, err := newBursting(t.Context(), nil, &channel{ReadWriter: near}, job{size: 8, seed: 1, check: true, window: length})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.begin(messages); err != nil {
		t.Fatal(err)
	}
	s := sample{}
	if err := l.(runner).run(messages, &s); err != nil || s.errors != 0 {
		t.Fatalf("%d wrong, %v", s.errors, err)
	}
	late := int64(0)
	for _, b := range s.lat.Distribution() {
		if b.From >= int64(pause/2) {
			late += b.Count
		}
	}
	if late < length-1 || s.lat.TotalCount() != messages || s.elapsed < pause {
		t.Errorf("%d of %d messages are late, in %v; a stall of %v delays %d of them", late, s.lat.TotalCount(), s.elapsed, pause, length-1)
	}
	near.Close()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

func TestBurstLength(t *testing.T) {
	for size, want := range map[int64]int64{1: 64, 64 << 10: 64, 1 << 20: 4, 4 << 20: 4, 64 << 20: 4, 128 << 10: 32} {
		if got := burstOf(size); got != want {
			t.Errorf("a burst of %d bytes each has %d messages, want %d", size, got, want)
		}
	}
}

// TestMovesCoverTheBlock: every byte of a block is written once, and none of two
// pieces touch each other there.
func TestMovesCoverTheBlock(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.Int64Range(1, 1<<20).Draw(t, "size")
		moves := strided(size)
		here, there := int64(0), int64(-1)
		for i, m := range moves {
			if m.from != here || m.to <= there || m.n < 1 {
				t.Fatalf("move %d of %d bytes is %+v, behind %d and %d", i, size, m, here, there)
			}
			here, there = m.from+m.n, m.to+m.n
		}
		if here != size || len(moves) > stridedPieces {
			t.Fatalf("%d moves cover %d of %d bytes", len(moves), here, size)
		}
	})
}

// TestScatterFindsWhatIsWrong writes over what a scatter has written, and over
// what it must not have.
func TestScatterFindsWhatIsWrong(t *testing.T) {
	for name, plan := range map[string]func(int64) []move{"strided": strided, "shifted": shifted(1, shiftMost)} {
		t.Run(name, func(t *testing.T) {
			l, ch := onMem(t, onScatter(plan))
			s := l.(*scatter)
			last := s.moves[len(s.moves)-1]
			for _, tt := range []struct {
				name string
				at   int64 // written over; negative: nothing
				want int64
			}{
				{"nothing", -1, 0}, {"the first byte", s.moves[0].to, 1}, {"the last byte", last.to + last.n - 1, 1},
				{"the byte behind", last.to + last.n, 1}, {"the last of the window", s.span() - 1, 1},
			} {
				if err := errors.Join(s.begin(1), s.prepare(5), s.op(5)); err != nil {
					t.Fatal(err)
				}
				if tt.at >= 0 {
					if err := ch.ep.VWriteTo([]byte{s.mem[s.moves[0].from] ^ 0xA5 | 1}, s.there+tt.at, 0); err != nil {
						t.Fatal(err)
					}
				}
				if got, err := s.check(5); err != nil || got != tt.want {
					t.Errorf("with %s changed: %d wrong, %v; want %d", tt.name, got, err, tt.want)
				}
			}
		})
	}
}

func TestCrossWritesAreCheckedOnBothEnds(t *testing.T) {
	l, _ := onMem(t, newCrossWrites)
	c := l.(*crossWrites)
	ops := c.slots + 3
	if err := c.begin(ops); err != nil {
		t.Fatal(err)
	}
	var s sample
	if err := c.run(ops, &s); err != nil || s.bytes != 2*ops*c.size || s.elapsed <= 0 {
		t.Fatalf("%+v, %v", s, err)
	}
	if wrong, err := c.verify(ops); err != nil || wrong != 0 {
		t.Errorf("%d slots are wrong, %v", wrong, err)
	}
	clear(c.from.Bytes()[:2*c.size])
	if _, err := ask(c.ch, c.command(opClear, 0)); err != nil {
		t.Fatal(err)
	}
	if wrong, err := c.verify(ops); err != nil || wrong != 2+c.slots {
		t.Errorf("with 2 slots empty here and all there: %d are wrong, %v", wrong, err)
	}
}

func TestScattersBeyondAWindowAreNotMeasured(t *testing.T) {
	_, err := onScatter(strided)(t.Context(), nil, nil, job{size: maxSize, seed: 1})
	if !errors.Is(err, syscall.EOPNOTSUPP) || !unsupported(err) {
		t.Errorf("%v, want EOPNOTSUPP", err)
	}
}

func TestThreadsAndGoroutinesOfMtLat(t *testing.T) {
	for most, want := range map[int64][]int64{0: {2, 4, 8, 8}, 1: {1, 1}, 2: {2, 2}, 5: {2, 4, 4}, 16: {2, 4, 8, 8}} {
		all := mtVariants(most)
		if len(all) != len(want) {
			t.Errorf("up to %d: %+v, want %v", most, all, want)
			continue
		}
		for i, v := range all {
			if v.pairs != want[i] || v.threads != (i == len(all)-1) {
				t.Errorf("up to %d: variant %d is %+v, want %d pairs", most, i, v, want[i])
			}
		}
	}
}

// A connect is shown beside what TCP and TLS take for one, whatever carries ours;
// each anchor once.
func TestConnectsAreBesideTCPAndTLS(t *testing.T) {
	temporaries(t)
	for provider, anchors := range map[string][]string{
		providerQUIC:     {rawProvider, rawTCP, rawTLS},
		providerTCP:      {rawTLS, rawTCP},
		providerTCPPlain: {rawTCP, rawTLS},
		providerMem:      nil,
		rawTLS:           nil,
	} {
		d := document(t, "run", "conn_setup", "msg_lat", "--provider", provider, "--size", "8", "--iters", "5", "--reps", "2")
		var rows, ratios []string
		for _, r := range d.Results {
			if r.Test == "conn_setup" && r.Provider != provider {
				rows = append(rows, r.Provider)
			}
		}
		for _, q := range d.Ratios {
			if q.Test == "conn_setup" {
				ratios = append(ratios, q.Anchor)
				if !q.Ratio.measured() || len(q.PerRep) != 2 {
					t.Errorf("over %s beside %s: %+v, want a ratio of each repetition", provider, q.Anchor, q)
				}
			}
		}
		if !slices.Equal(rows, anchors) || !slices.Equal(ratios, anchors) {
			t.Errorf("over %s: rows of %q and ratios to %q, want %q", provider, rows, ratios, anchors)
		}
	}
}
