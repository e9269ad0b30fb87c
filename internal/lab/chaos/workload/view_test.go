package workload

import (
	"bytes"
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/fabrictest"
	"github.com/fabricd/fabricd/internal/lab/history"
)

// A tap is a log that another goroutine may read meanwhile.
type tap struct {
	wrote chan struct{} // of capacity 1: something was written

	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func newTap() *tap { return &tap{wrote: make(chan struct{}, 1)} }

func (t *tap) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	select {
	case t.wrote <- struct{}{}:
	default:
	}
	return t.text.Write(p)
}

// await returns the views when there are n of them.
func (t *tap) await(tb testing.TB, n int) []*history.View {
	tb.Helper()
	timeout := time.After(20 * time.Second)
	for {
		if all := t.views(tb); len(all) >= n {
			return all
		}
		select {
		case <-t.wrote:
		case <-timeout:
			tb.Fatalf("%d views are written, want %d", len(t.views(tb)), n)
		}
	}
}

// views returns the views that were written so far.
func (t *tap) views(tb testing.TB) (all []*history.View) {
	tb.Helper()
	t.mu.Lock()
	defer t.mu.Unlock()
	records, err := history.Read(bytes.NewReader(t.text.Bytes()), "log")
	if err != nil {
		tb.Fatal(err)
	}
	for _, r := range records {
		if v, ok := r.Body.(*history.View); ok {
			all = append(all, v)
		}
	}
	return all
}

// TestANewIncarnationHasAView gives a node another incarnation, which the handler of an event
// notices, and not the goroutine that looks all the time. The nodes that live on get no
// new events, so a view has to list them; and it stays due until the node's table
// agrees with its IDs.
func TestANewIncarnationHasAView(t *testing.T) {
	const nodes, i = 3, 1
	c := fabrictest.NewCluster(t, nodes)
	zero, err := Monotonic()
	if err != nil {
		t.Fatal(err)
	}
	clock, err := NewClock(zero)
	if err != nil {
		t.Fatal(err)
	}
	log := newTap()
	a := newApp(Config{Node: i, Run: 1, Seed: 7}, NewLog(log, history.App(i, 1), clock))
	const tries = 3
	var asked atomic.Int32 // for the table of the new incarnation, which has it late
	a.incarnations = func(context.Context) (all []history.Member, err error) {
		for j := range nodes {
			all = append(all, history.Member{Incarnation: c.Node(j).Incarnation()})
		}
		if all[i].Incarnation.Generation > 1 && asked.Add(1) <= 2*tries {
			return all[:i], nil
		}
		return all, nil
	}
	s := newSession(a, c.App(i, false))
	s.tries = tries
	s.ctx = t.Context()
	if !s.settle() {
		t.Fatal("the session does not settle")
	}
	if got := log.views(t); len(got) != 1 || len(got[0].Live) != nodes {
		t.Fatalf("views of the first incarnation: %v", got)
	}
	c.Evict(i)
	s.checkIncarnation() // as the handler of an event does
	s.wg.Go(s.care)
	defer s.wg.Wait()
	defer close(s.over)
	got := log.await(t, 2)
	if v := got[1]; len(got) != 2 || len(v.Live) != nodes || v.Observer != c.Node(i).Incarnation() {
		t.Errorf("the view of the new incarnation: %+v", got[1:])
	}
	if n := asked.Load(); n <= 2*tries {
		t.Errorf("it was written after %d looks, of which the first %d contradict it", n, 2*tries)
	}
}
