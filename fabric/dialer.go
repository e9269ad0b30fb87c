package fabric

import (
	"cmp"
	"context"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/status"
)

// A Dialer dials for a program that is to outlive its fabricd: it attaches by itself,
// again after its fabricd has gone away, and waits for the service that it dials. A connection that
// was open ends with ECONNRESET, as always; pools of database drivers, http.Transport and
// gRPC then dial again. The zero Dialer attaches to $FABRIC_SOCKET. Its methods may be
// called from any goroutine; its fields must not be changed once it has dialed.
//
//	d := &fabric.Dialer{Wait: 5 * time.Second}
//	client := &http.Client{Transport: &http.Transport{DialContext: d.DialContext}}
//	resp, err := client.Get("http://shop.fabric/items")
type Dialer struct {
	// Attach attaches to a node; nil: [Attach] to $FABRIC_SOCKET. Its context ends with
	// Close. The Dialer closes the Node.
	Attach func(context.Context) (*Node, error)
	// Wait bounds a dial as a whole, as the context does: every attempt to attach and to
	// connect, and the pauses between them. 0: 10 s; negative: it dials once, with a second
	// to attach and the time of [Node.Dial] to connect.
	Wait time.Duration
	// RoundRobin takes the nodes that serve a name one after the other, by ID, one further for each
	// dial. Without it the nearest is taken, as by [Node.Dial].
	RoundRobin bool

	kept keeper
	next atomic.Uint64
}

// Dial is [Node.Dial] that waits: while no fabricd answers or no live node serves the name,
// and while the connect is refused, it tries again, after pauses of up to 2 s, until Wait
// is over or ctx is done, and then fails with the last error, which is ETIMEDOUT if that
// ends a connect. It fails at once with EINVAL, EACCES, and everything that waiting does not
// mend, and with EBADF after Close.
func (d *Dialer) Dial(ctx context.Context, address string) (*Conn, error) {
	limit, cancel := context.WithTimeout(ctx, d.wait())
	defer cancel()
	connect := limit
	if d.Wait < 0 {
		connect = ctx
	}
	n := d.next.Add(1) - 1
	var conn *Conn
	err := again(limit, leastPause, mostPause, func() (err error, final bool) {
		conn, err = d.try(limit, connect, address, n)
		return err, !mayComeBack(err) || d.Wait < 0
	})
	return conn, err
}

// attachOnce is how long a fabricd that is there may take to let a Dialer in that does not
// wait for one.
const attachOnce = time.Second

func (d *Dialer) wait() time.Duration {
	switch {
	case d.Wait == 0:
		return dialPatience
	case d.Wait < 0:
		return attachOnce
	}
	return d.Wait
}

// try dials once. The contexts end the attaching and the connect.
func (d *Dialer) try(attach, connect context.Context, address string, first uint64) (*Conn, error) {
	node, err := d.kept.get(attach, d.Attach)
	if err != nil {
		return nil, err
	}
	resolve := node.session.Resolve
	if d.RoundRobin {
		resolve = roundRobin(resolve, first)
	}
	conn, err := node.dial(connect, address, resolve)
	if status.Of(err) == status.BadFD { // it goes away meanwhile; Close is for get to see
		err = &OpError{Op: "connect", Local: Addr{Node: NoNode}, Err: status.NoDevice}
	}
	return conn, err
}

// roundRobin returns resolve's answers by node, beginning with the one at that index.
func roundRobin(resolve resolver, turn uint64) resolver {
	return func(ctx context.Context, service, node string) ([]attach.Service, error) {
		list, err := resolve(ctx, service, node)
		if len(list) == 0 {
			return list, err
		}
		slices.SortFunc(list, func(a, b attach.Service) int { return cmp.Compare(a.Incarnation.Node, b.Incarnation.Node) })
		first := int(turn % uint64(len(list)))
		return append(list[first:len(list):len(list)], list[:first]...), err
	}
}

// DialContext is Dial with the signature that http.Transport and others take; network is
// ignored. In an address from a URL, "NAME.fabric:PORT", NAME is a service
// whatever PORT is: http://shop.fabric/ asks the service shop.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := d.Dial(ctx, ofURL(address))
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Node returns the Node that dials go through now, attached if need be. It is the
// Dialer's: it ends with its fabricd, and another one follows.
func (d *Dialer) Node(ctx context.Context) (*Node, error) { return d.kept.get(ctx, d.Attach) }

// Close ends the Node, an attaching, and all connections that are still open: close these before.
// A second Close does nothing.
func (d *Dialer) Close() error { return d.kept.close() }
