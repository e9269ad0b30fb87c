package workload

import (
	"bytes"
	"context"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/fabric/fabrictest"
	"github.com/fabricd/fabricd/internal/lab/history"
)

func TestBytesAreAFunctionOfTheirPosition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nonce := rapid.Uint64Min(1).Draw(t, "nonce")
		pos := rapid.Int64Range(0, 1<<40).Draw(t, "pos")
		p := make([]byte, rapid.IntRange(1, 300).Draw(t, "len"))
		Fill(p, nonce, history.Client, pos)
		if bad := Verify(p, nonce, history.Client, pos); bad != -1 {
			t.Fatalf("own bytes: bad at %d", bad)
		}
		cut := rapid.IntRange(0, len(p)-1).Draw(t, "cut")
		q := make([]byte, len(p)-cut)
		Fill(q, nonce, history.Client, pos+int64(cut))
		if !bytes.Equal(q, p[cut:]) {
			t.Fatal("filled in two parts they differ")
		}
		p[cut] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
		if bad := Verify(p, nonce, history.Client, pos); bad != cut {
			t.Fatalf("changed at %d, bad at %d", cut, bad)
		}
	})
}

// TestVisibleFindsWhatIsMissing writes the operations of one end in order into a
// window and takes a word of one of them away.
func TestVisibleFindsWhatIsMissing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.Int64Range(8, 4096).Draw(t, "size")
		g := newGeometry(RMA{Min: 8, Max: size, Window: rapid.Int64Range(4096, 1<<18).Draw(t, "window"), Reads: 0.3})
		end := history.ConnEnd{Conn: rapid.Uint64Min(1).Draw(t, "nonce"), Side: history.Server}
		last := rapid.Uint64Range(1, 300).Draw(t, "operations")
		window := make([]byte, g.window)
		stamp(window[:g.slotsEnd()], fillOf(7), 0)
		written := func(upto uint64) {
			for n := uint64(1); n <= upto; n++ {
				if op := g.operation(end, n); op.verb.writes() {
					stamp(window[op.off:op.off+op.len], writerOf(end), n)
				}
			}
		}
		written(last)
		told := rapid.Uint64Range(0, last).Draw(t, "told")
		if missing, ok := g.visible(window, end, 0, told); !ok {
			t.Fatalf("of %d operations, %d is missing up to %d", last, missing, told)
		}
		n := rapid.Uint64Range(1, last).Draw(t, "lost")
		op := g.operation(end, n)
		if !op.verb.writes() {
			return
		}
		word := op.off + 8*rapid.IntRange(0, op.len/8-1).Draw(t, "word")
		stamp(window[word:word+8], fillOf(7), 0)
		if missing, ok := g.visible(window, end, 0, last); ok || missing > n {
			t.Fatalf("a word of operation %d is gone: missing %d, %v", n, missing, ok)
		}
	})
}

// TestApplicationsTalk lets three applications talk in one process and looks at
// what they wrote. RMA has no place here: in one process it is a data race by
// design; the labs have it.
func TestApplicationsTalk(t *testing.T) {
	const nodes = 3
	c := fabrictest.NewCluster(t, nodes)
	zero, err := Monotonic()
	if err != nil {
		t.Fatal(err)
	}
	clock, err := NewClock(zero)
	if err != nil {
		t.Fatal(err)
	}
	live := func(context.Context) (all []history.Member, err error) {
		for i := range nodes {
			all = append(all, history.Member{Life: c.Node(i).Life()})
		}
		return all, nil
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	var wg sync.WaitGroup
	logs := make([]bytes.Buffer, nodes)
	for i := range nodes {
		cfg := Config{Slot: i, Run: 1, Seed: 7, Messages: Messages{64, 4096, 200}, Connects: 5, Waiters: true}
		for j := range nodes {
			if j != i {
				cfg.Peers = append(cfg.Peers, Peer{Slot: j, Client: i < j})
			}
		}
		a := newApp(cfg, NewLog(&logs[i], history.App(i, 1), clock))
		a.lives = live
		s := newSession(a, c.App(i, false))
		wg.Go(func() { s.run(ctx) })
	}
	wg.Wait()
	for i := range logs {
		seen := readLog(t, &logs[i])
		if seen[history.KindOpened] < 6 || seen[history.KindReceived] < 5 || seen[history.KindSent] < 5 || seen[history.KindView] != 1 ||
			seen[history.KindClosed] != seen[history.KindOpened] {
			t.Errorf("application %d wrote %v", i, seen)
		}
	}
}

// readLog counts the records of a log by kind and fails t for bad bytes, calls
// that did not return, and connections that failed.
func readLog(t *testing.T, log *bytes.Buffer) map[history.Kind]int {
	t.Helper()
	records, err := history.Read(log, "log")
	if err != nil {
		t.Fatal(err)
	}
	kinds, open := map[history.Kind]int{}, map[uint64]string{}
	for _, r := range records {
		kinds[r.Kind()]++
		switch b := r.Body.(type) {
		case *history.Received:
			if b.Bad != nil {
				t.Errorf("%v: bad bytes at %d", b.ConnEnd, *b.Bad)
			}
		case *history.Call:
			open[b.ID] = b.Name
		case *history.Return:
			delete(open, b.ID)
		case *history.Opened:
			if b.Local.Generation != 1 || b.Remote.Generation != 1 || b.Local == (fabric.Life{}) {
				t.Errorf("%v: between %v and %v", b.ConnEnd, b.Local, b.Remote)
			}
		}
	}
	for id, name := range open {
		t.Errorf("call %d, %s, has not returned", id, name)
	}
	return kinds
}
