package fabric

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/status"
)

// Dial opens an endpoint and connects it to an address as people write it:
//
//	db           a listener of any node that serves the name "db" ([Service])
//	db@web-1     that of the node named web-1
//	db@3         that of node 3
//	web-1:2050   port 2050 of the node named web-1
//	3:2050       port 2050 of node 3
//
// Of the nodes that serve a name this one is tried first, then the nearest by round trip,
// then, in any order, those to which there is no link yet; one that refuses, or is lost
// meanwhile, is followed by the next. Otherwise Dial does as [Node.DialAddr]. It fails at
// once with ENODEV if no live node serves the name, or has it; with EINVAL for another
// text; with EOPNOTSUPP if this node is too old to know names.
func (n *Node) Dial(ctx context.Context, address string) (*Conn, error) {
	return n.dial(ctx, address, n.session.Resolve)
}

// dial is Dial that tries the endpoints which serve a name in the order of resolve.
func (n *Node) dial(ctx context.Context, address string, resolve resolver) (*Conn, error) {
	t, err := addr.ParseTarget(address)
	if err != nil {
		return nil, &OpError{Op: "connect", Local: n.local(), Err: badAddress{err}}
	}
	if a, ok := t.Addr(); ok {
		return n.DialAddr(ctx, a)
	}
	if t.Service != "" {
		return n.dialService(ctx, t, resolve)
	}
	nodes, err := n.session.Resolve(ctx, "", t.Node)
	if err != nil {
		return nil, n.fail("connect", contextError(ctx, err))
	}
	return n.DialAddr(ctx, Addr{Node: nodes[0].Incarnation.Node, Port: t.Port})
}

// DialAddr opens an endpoint and connects it to a from a free port. Of the dials of n to
// one address 128 at a time ask the listener; the others wait in order, and while
// the backlog of the listener is full DialAddr tries again, until ctx is done, or for 10 s
// if ctx has no deadline. It fails as [Endpoint.Connect] does.
func (n *Node) DialAddr(ctx context.Context, a Addr) (*Conn, error) {
	limit, cancel := patient(ctx)
	defer cancel()
	return untilNotBusy(limit, func() (*Conn, error) { return n.dialOnce(ctx, limit, a, "") })
}

// patient returns until when a dial waits for its slot and tries again.
func patient(ctx context.Context) (limit context.Context, cancel context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, dialPatience)
}

// dialOnce opens an endpoint, when it has a slot, and connects it to a, if that serves
// the name, unless that is empty.
func (n *Node) dialOnce(ctx, limit context.Context, a Addr, service string) (*Conn, error) {
	line := n.dials.join(a)
	defer n.dials.leave(a, line)
	if !line.enter(limit) {
		err := errListenerBusy
		if ctx.Err() != nil {
			err = contextEnd{ctx.Err()}
		}
		return nil, &OpError{Op: "connect", Local: n.local(), Remote: a, Err: err}
	}
	defer line.exit()
	opened, err := n.session.OpenContext(ctx)
	if err != nil {
		return nil, n.fail("open", contextError(ctx, err))
	}
	ep := newEndpoint(opened)
	if _, err := ep.ep.ConnectService(ctx, a, service); err != nil {
		err = ep.failTo("connect", a, contextError(ctx, err))
		ep.Close()
		return nil, err
	}
	return NewConn(ep), nil
}

const (
	// dialPatience is how long Dial waits for a slot and tries again without a deadline.
	dialPatience = 10 * time.Second

	// dialsAtOnce is how many dials of a Node ask one listener at a time. A listener
	// grants in order, and a request that waits there has only the node's time limit:
	// so many are accepted within it by a slow machine too, and the applications of
	// several nodes find room in one backlog.
	dialsAtOnce = 128
)

var errListenerBusy = fmt.Errorf("%w: the listener was busy with dials before this one", status.Refused)

// untilNotBusy calls dial, again and again while the backlog is full, until limit is
// done.
func untilNotBusy(limit context.Context, dial func() (*Conn, error)) (conn *Conn, err error) {
	err = again(limit, 20*time.Millisecond, time.Second, func() (err error, final bool) {
		conn, err = dial()
		return err, status.Of(err) != status.Busy
	})
	return conn, err
}

// dialQueues are the queues of a Node's dials, one for each address that is dialed.
type dialQueues struct {
	mu sync.Mutex
	to map[Addr]*dialQueue // those that a dial is in; guarded by mu
}

// A dialQueue lets dialsAtOnce dials go on at a time, in the order of their calls.
type dialQueue struct {
	joined int           // how many dials are in it; guarded by the queues' mu
	slots  chan struct{} // holds one for each dial that goes on
}

func (d *dialQueues) join(a Addr) *dialQueue {
	d.mu.Lock()
	defer d.mu.Unlock()
	l := d.to[a]
	if l == nil {
		if d.to == nil {
			d.to = make(map[Addr]*dialQueue)
		}
		l = &dialQueue{slots: make(chan struct{}, dialsAtOnce)}
		d.to[a] = l
	}
	l.joined++
	return l
}

func (d *dialQueues) leave(a Addr, l *dialQueue) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if l.joined--; l.joined == 0 {
		delete(d.to, a)
	}
}

// enter waits for a slot. It reports false if limit ends first.
func (l *dialQueue) enter(limit context.Context) bool {
	select {
	case l.slots <- struct{}{}: // also if limit is done
		return true
	default:
	}
	select {
	case l.slots <- struct{}{}:
		return true
	case <-limit.Done():
		return false
	}
}

func (l *dialQueue) exit() { <-l.slots }
