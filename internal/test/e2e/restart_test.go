package e2e

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric"
)

// TestQuickRestartsAreRemovalsAndReturns kills a fabricd again and again and
// starts it at once. Its application of each incarnation writes the incarnation's generation
// into a window elsewhere until it cannot any more.
func TestQuickRestartsAreRemovalsAndReturns(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	nodes := l.cluster(2)
	flapping, keeper := nodes[2], l.keeper(nodes[0])
	watchers := []*watcher{nodes[0].watch(), nodes[1].watch()}
	healthy := l.flow(nodes[0], nodes[1])

	var want []string
	var gap, back time.Duration
	quick := 0 // restarts within quickRestart
	count := scale(20, 8, 100)
	for range count {
		old := flapping.incarnation()
		l.agree(nodes...) // it has its place a moment before it knows the others
		writer := l.writeGeneration(flapping, keeper)
		keeper.wrote(t, old.Generation)
		killed := flapping.kill()
		flapping.launch()
		took := time.Since(killed)
		gap = max(gap, took)
		if took <= quickRestart {
			quick++
		}
		writer.check(t, killed, promptly)
		flapping.joined()
		back = max(back, time.Since(killed))
		next := fabric.Incarnation{Node: old.Node, Generation: old.Generation + 1}
		if flapping.incarnation() != next {
			t.Fatalf("%v is back as %v, want %v", old, flapping.incarnation(), next)
		}
		want = append(want, fmt.Sprintf("%v removed, %v added", old, next))
		for _, w := range watchers {
			w.added(stepLimit, next)
		}
	}
	for _, w := range watchers {
		w.saw(strings.Join(want, ", "))
	}
	healthy.end(t)
	keeper.check(t, count)
	t.Logf("%d restarts, %d of them within %v: at most %v between kill and start, %v until it was back",
		count, quick, quickRestart, gap.Round(time.Millisecond), back.Round(time.Millisecond))
	// All of them must be right, however long the machine took. That some were
	// as quick as the test is about is the machine's part, and has to be seen.
	if quick == 0 {
		t.Errorf("none of %d restarts was within %v, so that nothing is shown of such", count, quickRestart)
	}
}

// quickRestart is how soon after its death a node is started again.
const quickRestart = 50 * time.Millisecond

// A keeper is an application that gives every connection a window of its own
// and checks the bytes that were written there.
type keeper struct {
	addr fabric.Addr
	done chan struct{} // closed when its goroutine has ended

	mu    sync.Mutex // guards the fields below
	kept  []*kept
	wrong []error
}

// kept is one connection's window.
type kept struct {
	generation fabric.Generation // of the peer's incarnation, as it said itself
	window     *fabric.Memory
	ended      chan struct{} // closed when the connection has ended with ECONNRESET
}

// keeper attaches a keeper to n.
func (l *lab) keeper(n *node) *keeper {
	l.t.Helper()
	app := n.attach()
	listener, err := app.Listen(0)
	if err != nil {
		l.t.Fatal(err)
	}
	k := &keeper{addr: listener.Addr().(fabric.Addr), done: make(chan struct{})}
	go func() {
		defer close(k.done)
		var conns sync.WaitGroup
		defer conns.Wait()
		for {
			conn, err := listener.AcceptConn(l.t.Context())
			if err != nil {
				return
			}
			conns.Go(func() { k.note(k.keep(l, app, conn)) })
		}
	}()
	l.t.Cleanup(func() {
		app.Close()
		<-k.done
		for _, c := range k.kept {
			c.window.Close()
		}
	})
	return k
}

func (k *keeper) note(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err != nil {
		k.wrong = append(k.wrong, err)
	}
}

// keep opens a window for one connection and waits for its end.
func (k *keeper) keep(l *lab, app *fabric.Node, conn *fabric.Conn) error {
	defer conn.Close()
	generation, err := peerWindow(l.t.Context(), conn.Endpoint()) // any number
	if err != nil {
		return err
	}
	window, _, err := openWindow(l.t.Context(), app, conn.Endpoint())
	if err != nil {
		return err
	}
	c := &kept{generation: fabric.Generation(generation), window: window, ended: make(chan struct{})}
	k.mu.Lock()
	k.kept = append(k.kept, c)
	k.mu.Unlock()
	if _, err := conn.Endpoint().Recv(l.t.Context(), make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		return fmt.Errorf("the connection of generation %d ended with %v, want ECONNRESET", c.generation, err)
	}
	close(c.ended)
	return nil
}

// wrote waits until the window of generation was written to.
func (k *keeper) wrote(t testing.TB, generation fabric.Generation) {
	t.Helper()
	eventually(t, stepLimit, fmt.Sprintf("generation %d writes", generation), func() error {
		k.mu.Lock()
		defer k.mu.Unlock()
		for _, c := range k.kept {
			if c.generation == generation && fabric.LoadUint64(c.window.Bytes()) != 0 {
				return nil
			}
		}
		return fmt.Errorf("%d windows, %v", len(k.kept), errors.Join(k.wrong...))
	})
}

// check fails t unless each of count windows holds only bytes of its own incarnation,
// and all their connections have ended.
func (k *keeper) check(t testing.TB, count int) {
	t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.kept) != count || len(k.wrong) > 0 {
		t.Errorf("%d windows, want %d: %v", len(k.kept), count, errors.Join(k.wrong...))
	}
	for _, c := range k.kept {
		select {
		case <-c.ended:
		case <-time.After(promptly):
			t.Errorf("the connection of generation %d lives", c.generation)
		}
		b := c.window.Bytes()
		for i := 0; i < len(b); i += 8 {
			if got := fabric.LoadUint64(b[i:]); got != 0 && got != uint64(c.generation) {
				t.Errorf("the window of generation %d holds %d at %d", c.generation, got, i)
				break
			}
		}
	}
}

// writeGeneration connects an application at n to k and lets it fill the
// window with n's generation until its node is lost.
func (l *lab) writeGeneration(n *node, k *keeper) *call {
	l.t.Helper()
	app := n.attach()
	conn, err := app.DialAddr(within(l.t, stepLimit), k.addr)
	if err != nil {
		l.t.Fatal(err)
	}
	ep := conn.Endpoint()
	generation := uint64(n.incarnation().Generation)
	if _, err := ep.Send(within(l.t, stepLimit), binary.BigEndian.AppendUint64(nil, generation)); err != nil {
		l.t.Fatal(err)
	}
	off, err := peerWindow(within(l.t, stepLimit), ep)
	if err != nil {
		l.t.Fatal(err)
	}
	words := make([]byte, windowSize)
	for i := 0; i < len(words); i += 8 {
		binary.NativeEndian.PutUint64(words[i:], generation)
	}
	z := &zombie{ep: ep, off: off}
	return start("write of generation "+fmt.Sprint(generation), z.write(words), syscall.ECONNRESET, syscall.ENODEV)
}
