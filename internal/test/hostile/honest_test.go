package hostile

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/fabric/addr"
)

// A witness is the applications of the honest nodes. Each talks with the host's and
// with the next node's all the while, and each watches the nodes. Any disturbance that
// they see is an effect of the attack.
type witness struct {
	f    *fleet
	all  []*machine // the honest nodes, which stay the same
	ctx  context.Context
	stop context.CancelFunc
	work sync.WaitGroup

	mu       sync.Mutex // guards the fields below
	excused  map[*machine]bool
	resets   []string
	removals []string
	messages int
	pause    time.Duration // the longest between a message and its answer
}

// talkPort is where the honest applications listen.
const talkPort fabric.Port = 2050

// watch starts the applications.
func (f *fleet) watch() *witness {
	w := &witness{f: f, all: f.honest(), excused: map[*machine]bool{}}
	w.ctx, w.stop = context.WithCancel(context.Background())
	honest := w.all
	for i, m := range honest {
		to := []*machine{honest[(i+1)%len(honest)]}
		if i > 0 && i+1 < len(honest) {
			to = append(to, f.host())
		}
		w.work.Go(func() { w.application(m, to) })
	}
	f.tb.Cleanup(w.close)
	return w
}

func (w *witness) close() {
	w.stop()
	w.work.Wait()
}

// excuse stops counting events of m, and of applications that talk with it, until it
// is called with false.
func (w *witness) excuse(m *machine, excused bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.excused[m] = excused
}

// application is one node's, attached again whenever its daemon was gone.
func (w *witness) application(m *machine, to []*machine) {
	for w.ctx.Err() == nil {
		n, err := fabric.Attach(w.ctx, m.socket())
		if err != nil {
			w.rest(50 * time.Millisecond)
			continue
		}
		w.serve(n, m, to)
	}
}

// serve echoes, talks and watches until the daemon or the witness ends.
func (w *witness) serve(n *fabric.Node, m *machine, to []*machine) {
	var work sync.WaitGroup
	ctx, cancel := context.WithCancel(w.ctx)
	defer work.Wait()
	defer n.Close()
	defer cancel()
	cancelEvents := n.OnEvent(func(ev fabric.Event) {
		if ev.Kind == fabric.NodeRemoved {
			w.removed(m, addr.Incarnation{Node: ev.Node, Generation: ev.Generation}, ev.Reason)
		}
	})
	defer cancelEvents()
	l, err := n.Listen(talkPort)
	if err != nil {
		w.rest(50 * time.Millisecond)
		return
	}
	work.Go(func() {
		for {
			c, err := l.AcceptConn(ctx)
			if err != nil {
				return
			}
			work.Go(func() { echo(ctx, c.Endpoint()) })
		}
	})
	for _, peer := range to {
		work.Go(func() { w.talk(ctx, n, m, peer) })
	}
	select {
	case <-ctx.Done():
	case <-n.Done():
		w.reset(m, m, errors.New("the session with the daemon has ended"))
	}
}

// echo sends received bytes back.
func echo(ctx context.Context, ep *fabric.Endpoint) {
	defer ep.Close()
	p := make([]byte, 64)
	for {
		n, err := ep.Recv(ctx, p)
		if err != nil {
			return
		}
		if _, err := ep.Send(ctx, p[:n]); err != nil {
			return
		}
	}
}

// talk sends a message every few milliseconds and waits for each answer. Each end of
// the connection is counted, and a new one made.
func (w *witness) talk(ctx context.Context, n *fabric.Node, from, to *machine) {
	for ctx.Err() == nil {
		c, err := n.DialAddr(ctx, fabric.Addr{Node: to.incarnation().Node, Port: talkPort})
		if err != nil {
			w.rest(50 * time.Millisecond)
			continue
		}
		err = w.exchange(ctx, c.Endpoint())
		c.Close()
		if ctx.Err() == nil && n.Incarnation() == from.incarnation() {
			w.reset(from, to, err)
		}
	}
}

func (w *witness) exchange(ctx context.Context, ep *fabric.Endpoint) error {
	p := make([]byte, 64)
	for ctx.Err() == nil {
		began := time.Now()
		if _, err := ep.Send(ctx, p); err != nil {
			return err
		}
		if _, err := ep.Recv(ctx, p); err != nil {
			return err
		}
		w.mu.Lock()
		w.messages++
		w.pause = max(w.pause, time.Since(began))
		w.mu.Unlock()
		w.rest(20 * time.Millisecond)
	}
	return nil
}

// rest waits, but not beyond the witness's end.
func (w *witness) rest(d time.Duration) {
	select {
	case <-w.ctx.Done():
	case <-time.After(d):
	}
}

func (w *witness) reset(from, to *machine, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.excused[from] && !w.excused[to] && w.ctx.Err() == nil {
		w.resets = append(w.resets, fmt.Sprintf("%s with %s: %v", from.name, to.name, err))
	}
}

// removed takes note of an honest incarnation whose end at was notified of.
func (w *witness) removed(at *machine, incarnation addr.Incarnation, why string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range w.all {
		if m.incarnation() == incarnation && !w.excused[m] && !w.excused[at] {
			w.removals = append(w.removals, fmt.Sprintf("%s saw the removal of %s: %s", at.name, m.name, why))
		}
	}
}

// seen holds the events that the witness has seen since the last take.
type seen struct {
	Resets, Removals []string
	Messages         int
	Pause            time.Duration
}

func (w *witness) take() seen {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := seen{w.resets, w.removals, w.messages, w.pause}
	w.resets, w.removals, w.messages, w.pause = nil, nil, 0, 0
	return s
}

// err returns an error for the events that no attack may cause.
func (s seen) err() error {
	var errs []error
	if n := len(s.Removals); n > 0 {
		errs = append(errs, fmt.Errorf("%d removals of honest nodes, first: %s", n, s.Removals[0]))
	}
	if n := len(s.Resets); n > 0 {
		errs = append(errs, fmt.Errorf("%d resets among honest nodes, first: %s", n, s.Resets[0]))
	}
	return errors.Join(errs...)
}
