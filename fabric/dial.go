package fabric

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/status"
)

// Dial is DialAddr to an address as people write it: "node:port", as in "3:2050". It
// fails with EINVAL for another text.
func (n *Node) Dial(ctx context.Context, address string) (*Conn, error) {
	a, err := addr.Parse(address)
	if err != nil {
		return nil, &OpError{Op: "connect", Local: n.local(), Err: badAddress{err}}
	}
	return n.DialAddr(ctx, a)
}

// DialAddr opens an endpoint and connects it to a from a free port. Of the dials of n to
// one address 128 at a time ask the listener; the others wait for their turn, and while
// the backlog of the listener is full DialAddr tries again, until ctx is done, or for 10 s
// if ctx has no deadline. It fails as [Endpoint.Connect] does.
func (n *Node) DialAddr(ctx context.Context, a Addr) (*Conn, error) {
	limit, cancel := ctx, context.CancelFunc(func() {})
	if _, ok := ctx.Deadline(); !ok {
		limit, cancel = context.WithTimeout(ctx, dialPatience)
	}
	defer cancel()
	line := n.dials.join(a)
	defer n.dials.leave(a, line)
	if !line.enter(limit) {
		err := errNoTurn
		if ctx.Err() != nil {
			err = withdrawn{ctx.Err()}
		}
		return nil, &OpError{Op: "connect", Local: n.local(), Remote: a, Err: err}
	}
	defer line.exit()
	opened, err := n.session.OpenContext(ctx)
	if err != nil {
		return nil, n.fail("open", withdraw(ctx, err))
	}
	ep := newEndpoint(opened, &n.memory)
	if err := connectInTurn(ctx, limit, ep, a); err != nil {
		ep.Close()
		return nil, err
	}
	return NewConn(ep), nil
}

const (
	// dialPatience is how long Dial waits for a turn and tries again without a deadline.
	dialPatience = 10 * time.Second

	// dialsAtOnce is how many dials of a Node ask one listener at a time. A listener
	// grants in turn, and a request that waits there has only the node's time limit:
	// so many are accepted within it by a slow machine too, and the applications of
	// several nodes find room in one backlog.
	dialsAtOnce = 128
)

var errNoTurn = fmt.Errorf("%w: the listener was busy with dials before this one", status.Refused)

// connectInTurn connects ep, again and again while the backlog is full, until limit is
// done. The pauses grow, and each is another one, so that many that dial at once do not
// come back at once, nor keep the listener from those it has granted.
func connectInTurn(ctx, limit context.Context, ep *Endpoint, a Addr) error {
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		_, err := ep.Connect(ctx, a)
		if status.Of(err) != status.Busy {
			return err
		}
		select {
		case <-time.After(pause/2 + rand.N(pause)):
		case <-limit.Done():
			return err
		}
	}
}

// dialLines are the lines of a Node's dials, one for each address that is dialed.
type dialLines struct {
	mu sync.Mutex
	to map[Addr]*dialLine // those that a dial is in; guarded by mu
}

// A dialLine lets dialsAtOnce dials go on at a time, in the order of their calls.
type dialLine struct {
	joined int           // how many dials are in it; guarded by the lines' mu
	turns  chan struct{} // holds one for each dial that goes on
}

func (d *dialLines) join(a Addr) *dialLine {
	d.mu.Lock()
	defer d.mu.Unlock()
	l := d.to[a]
	if l == nil {
		if d.to == nil {
			d.to = make(map[Addr]*dialLine)
		}
		l = &dialLine{turns: make(chan struct{}, dialsAtOnce)}
		d.to[a] = l
	}
	l.joined++
	return l
}

func (d *dialLines) leave(a Addr, l *dialLine) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if l.joined--; l.joined == 0 {
		delete(d.to, a)
	}
}

// enter waits for a turn. It reports false if limit ends first.
func (l *dialLine) enter(limit context.Context) bool {
	select {
	case l.turns <- struct{}{}: // also if limit is done
		return true
	default:
	}
	select {
	case l.turns <- struct{}{}:
		return true
	case <-limit.Done():
		return false
	}
}

func (l *dialLine) exit() { <-l.turns }
