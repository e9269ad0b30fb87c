package conformance

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric"
)

// A waiter is a call of a program that waits when the far node is lost.
type waiter struct {
	what   string
	method string // of package fabric
	call   func(ctx context.Context) error
	result chan error
}

// waiters are the calls that wait at the near ends of connections to the far side,
// and of one that is not yet accepted.
func (r *programRun) waiters() (all []*waiter) {
	add := func(what, method string, call func(ctx context.Context) error) {
		all = append(all, &waiter{what, method, call, make(chan error, 1)})
	}
	for i, e := range r.ends[0] {
		if e.state != isConnected || e.peer.side == 0 {
			continue
		}
		add(fmt.Sprintf("recv 0.%d", i), "(*Endpoint).Recv", func(ctx context.Context) error {
			_, err := e.ep.Recv(ctx, make([]byte, 1))
			return err
		})
		add(fmt.Sprintf("send 0.%d", i), "(*Endpoint).Send", func(ctx context.Context) error {
			_, err := e.ep.Send(ctx, make([]byte, 16<<20))
			return err
		})
		add(fmt.Sprintf("poll 0.%d", i), "(*Node).Poll", func(ctx context.Context) error {
			items := []fabric.PollItem{{Endpoint: e.ep}}
			if _, err := r.apps[0].Poll(ctx, items); err != nil || items[0].Revents != fabric.PollHup {
				return fmt.Errorf("revents %#x, %w", items[0].Revents, err)
			}
			return nil
		})
	}
	listener, near := r.listenFar(), r.fresh()
	add("connect", "(*Endpoint).Connect", func(ctx context.Context) error {
		_, err := near.Connect(ctx, listener.LocalAddr())
		return err
	})
	return all
}

// listenFar returns a listener of the far side that accepts no connection.
func (r *programRun) listenFar() *fabric.Endpoint {
	l, err := r.apps[1].Open()
	if err == nil {
		_, err = l.Bind(0)
	}
	if err == nil {
		err = l.Listen(1)
	}
	r.must("listen", err)
	return l
}

// fresh returns a new endpoint of the near side, which its application closes.
func (r *programRun) fresh() *fabric.Endpoint {
	e, err := r.apps[0].Open()
	r.must("open", err)
	return e
}

// quiet completes the operations under way between the two sides and takes the bytes that
// have arrived: how many of them a crash spares is luck.
func (r *programRun) quiet() {
	for _, e := range slices.Concat(r.ends[0][:], r.ends[1][:]) {
		r.settle(e)
		if e.state == isConnected && e.unread > 0 {
			_, err := e.ep.Recv(r.ctx, make([]byte, e.unread))
			r.must("recv", err)
			e.unread = 0
		}
	}
}

// lose has the far node die while calls wait, and returns how these ended and the events
// of the near side.
func (r *programRun) lose(kill func()) (trace []string) {
	r.quiet()
	removed := make(chan fabric.Event, 4) // more than there are
	defer r.apps[0].OnEvent(func(ev fabric.Event) { removed <- ev })()
	all := r.waiters()
	if r.err != nil {
		return nil
	}
	for _, w := range all {
		go func() { w.result <- w.call(r.ctx) }()
	}
	r.must("wait", awaitWaiters(r.ctx, all))
	kill()
	for _, w := range all {
		trace = append(trace, w.what+" waits: "+outcome(<-w.result))
	}
	select {
	case ev := <-removed:
		trace = append(trace, fmt.Sprintf("event %d", ev.Kind))
	case <-r.ctx.Done():
		r.must("event", r.ctx.Err())
	}
	for _, e := range r.ends[1] {
		e.state = isClosed
	}
	for _, e := range r.ends[0] {
		if e.state == isConnected && e.peer.side == 1 {
			e.state = isDisconnected
		}
	}
	return trace
}

// awaitWaiters waits until each of them waits.
func awaitWaiters(ctx context.Context, all []*waiter) error {
	want := map[string]int{}
	for _, w := range all {
		want[w.method]++
	}
	for method, n := range want {
		for waitersIn(method) < n {
			if ctx.Err() != nil {
				return fmt.Errorf("%d of %d wait in %s", waitersIn(method), n, method)
			}
			runtime.Gosched()
		}
	}
	return nil
}

// lossTrace runs a program on a fresh stage, has the far node die, and goes on
// with the second program at the near side.
func lossTrace(t *testing.T, g stage, before, after []step) []string {
	on := g.start(t)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r := &programRun{ctx: ctx, apps: on.apps}
	r.begin()
	trace := r.steps(before)
	at := on.apps[1].ID()
	trace = append(trace, r.lose(func() { on.site.Kill(1) })...)
	if r.err == nil {
		_, err := r.fresh().Connect(ctx, fabric.Addr{Node: at, Port: 2000})
		trace = append(trace, "connect to the lost node: "+outcome(err))
	}
	trace = r.end(append(trace, r.steps(after)...))
	if r.err != nil {
		t.Errorf("step %d does not end: %v", r.n, r.err)
	}
	return trace
}

// lossSteps are the steps that can be called when one side is left: all but to meet
// the other one.
func lossSteps() []programStep {
	return slices.DeleteFunc(slices.Clone(programSteps), func(p programStep) bool { return p.name == "meet" })
}

// lossPrograms is how many programs end with a node loss.
const lossPrograms = 4

// TestSameLossSameErrnos lets programs end with the death of the far node: calls that
// wait and later ones end in the same way in every API mode and over
// every provider. Connections inside the near node go on.
func TestSameLossSameErrnos(t *testing.T) {
	seed := *programSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-program-seed %d", seed)
	begun := time.Now()
	var ended, lost int
	for i := range uint64(lossPrograms) {
		rng := rand.New(rand.NewPCG(seed+i, 1))
		before, after := newProgram(rng, programLength, programSteps), newProgram(rng, programLength, lossSteps())
		for k := range after {
			after[k].side = 0
		}
		var want []string
		for _, g := range stages {
			if g.farNode != 1 {
				continue
			}
			t.Run(fmt.Sprintf("%d/%s", i, g.name), func(t *testing.T) {
				got := lossTrace(t, g, before, after)
				if want == nil {
					want = got
				}
				if !slices.Equal(got, want) {
					t.Errorf("-program-seed %d", seed+i)
					compare(t, want, got)
				}
			})
		}
		for _, line := range want {
			if strings.Contains(line, " waits: ECONNRESET") {
				ended++
			}
			if strings.Contains(line, "("+string(isDisconnected)+"): ECONNRESET") {
				lost++
			}
		}
	}
	if ended == 0 || lost < 10 {
		t.Errorf("%d calls that waited and %d later ones ended with ECONNRESET", ended, lost)
	}
	t.Logf("%d programs in %v: %d calls that waited and %d later ones ended with ECONNRESET", lossPrograms, time.Since(begun), ended, lost)
}
