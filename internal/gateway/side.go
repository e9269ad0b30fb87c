package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/gateway/spec"
	"github.com/fabricd/fabricd/internal/hook"
	"github.com/fabricd/fabricd/internal/sockfile"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/wait"
)

const (
	targetTimeout = 8 * time.Second // to dial the target of an expose; a caller waits for 10 s
	firstPause    = 50 * time.Millisecond
	lastPause     = time.Second
)

// A side implements the differences between the kinds of gateways.
type side interface {
	// listen begins to take connections.
	listen(ctx context.Context) (net.Listener, error)
	// dial dials the target of a client's connection, and sets it in info.
	dial(ctx context.Context, client conn, info *spec.Conn) (ends, error)
}

// ends are the two connections that a gateway copies between: the client's, perhaps with
// bytes that were read from it before, and the one that was dialed for it.
type ends struct{ client, server conn }

// A nodeFunc returns the node that gateways run on.
type nodeFunc func(ctx context.Context) (*fabric.Node, error)

// asConn returns an accepted or dialed connection as a conn, which is closed if it cannot be one.
// The kernel resets one over TCP if this process dies, and does not end it: only finish does.
func asConn(c net.Conn) (conn, error) {
	if far, ok := c.(*fabric.Conn); ok {
		return far, nil
	}
	raw, err := c.(syscall.Conn).SyscallConn() // TCP and Unix connections have it
	if err != nil {
		c.Close()
		return nil, err
	}
	s := newSocket(c.(halves), raw)
	_ = s.SetLinger(0) // it fails only for a connection that has ended
	return s, nil
}

// exposed serves a TCP or Unix address on the fabric.
type exposed struct {
	spec.Gateway
	node  nodeFunc
	owner *Gateways
}

func (e exposed) listen(ctx context.Context) (net.Listener, error) {
	node, err := e.node(ctx)
	if err != nil {
		return nil, err
	}
	var options []fabric.ListenOption
	if len(e.From) > 0 {
		options = append(options, fabric.Allow(e.From...))
	}
	port, isPort := spec.Port(e.Listen)
	if !isPort {
		options = append(options, fabric.Service(e.Listen))
	}
	l, err := node.Listen(port, options...)
	if err != nil {
		return nil, err // and no interface that holds a nil
	}
	if h := hook.Endpoint(l).NodesEnd(); h != nil {
		h.Hold() // a request that comes before is granted before its target is dialed
	}
	return l, nil
}

func (e exposed) dial(ctx context.Context, client conn, info *spec.Conn) (ends, error) {
	info.To = e.To
	caller := client.(*fabric.Conn)
	peer, err := caller.Peer()
	if err != nil {
		return ends{}, err
	}
	info.Node, info.User, info.Client = peer.Name, peer.UID, callerName(peer)
	held := hook.Endpoint(caller).NodesEnd()
	server, err := e.dialTarget(ctx, peer, held)
	if err != nil {
		err = fmt.Errorf("target %w", err)
	}
	if held != nil {
		if serr := held.Settle(refusal(err)); serr != nil && err == nil {
			err = fmt.Errorf("%s has given up: %w", info.Client, serr)
			abort(err, server)
		}
	}
	return ends{client, server}, err
}

// dialTarget dials the target for a caller, whose request may be held: then the caller may
// give up meanwhile.
func (e exposed) dialTarget(ctx context.Context, caller fabric.Peer, held attach.NodeEndpoint) (conn, error) {
	ctx, cancel := context.WithTimeout(ctx, targetTimeout)
	var watch sync.WaitGroup
	defer watch.Wait()
	defer cancel()
	if held != nil {
		watch.Go(func() {
			select {
			case <-held.HungUp():
				cancel()
			case <-ctx.Done():
			}
		})
	}
	d := net.Dialer{Control: e.checkResolved}
	c, err := d.DialContext(ctx, spec.Network(e.To), e.To)
	if err != nil {
		return nil, err
	}
	server, err := asConn(c)
	if err == nil && e.ProxyProtocol {
		if _, err = server.Write(callerHeader(caller)); err != nil {
			abort(err, server)
		}
	}
	return server, err
}

// checkResolved refuses an address of the target that leads back to e by the node's other gateways.
// A target that is a name shows that only when it is dialed.
func (e exposed) checkResolved(_, address string, _ syscall.RawConn) error {
	e.To = address
	return e.Check(e.owner.lines(), e.owner.self()...)
}

// refusal returns the code with which a caller is refused whose target could not be dialed.
func refusal(err error) status.Code {
	switch code := status.Of(err); {
	case code == status.OK, code == status.TimedOut:
		return code
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return status.NoDevice
	}
	return status.Refused
}

// callerName names the application at the other end of a connection.
func callerName(p fabric.Peer) string {
	if p.UID < 0 {
		return fmt.Sprintf("%s (node %d)", p.Name, p.Node)
	}
	return fmt.Sprintf("%s (node %d), user %d", p.Name, p.Node, p.UID)
}

// forwarded listens on a TCP or Unix address for a service of the fabric.
type forwarded struct {
	spec.Gateway
	dialer
}

func (f forwarded) listen(ctx context.Context) (net.Listener, error) { return listenAt(ctx, f.Listen) }

func (f forwarded) dial(ctx context.Context, client conn, info *spec.Conn) (ends, error) {
	info.To = f.To
	server, err := f.dialer.dial(ctx, []string{f.To}, client, info)
	return ends{client, server}, err
}

// listenAt listens on a TCP address or the path of a Unix socket, which every user of the
// machine may use as they may loopback: the directory's permissions bound that. A socket
// there without a listener is replaced, such as one that a killed process has left.
func listenAt(ctx context.Context, address string) (net.Listener, error) {
	var lc net.ListenConfig
	if !spec.IsPath(address) {
		return lc.Listen(ctx, "tcp", address)
	}
	listen := func() (net.Listener, error) {
		l, err := lc.Listen(ctx, "unix", address)
		if err == nil {
			if err = sockfile.SetRights(address, 0o666, -1); err != nil {
				l.Close()
				return nil, err
			}
		}
		return l, err
	}
	l, err := listen()
	if !errors.Is(err, syscall.EADDRINUSE) {
		return l, err
	}
	// Of two processes that find a socket abandoned, the second must not remove the first's.
	dir, oerr := os.Open(filepath.Dir(address))
	if oerr != nil {
		return nil, err
	}
	defer dir.Close() // and with it the lock
	if syscall.Flock(int(dir.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil || !abandoned(ctx, address) {
		return nil, err
	}
	if err := os.Remove(address); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return listen()
}

// abandoned reports whether path is a socket that no process serves.
func abandoned(ctx context.Context, path string) bool {
	info, err := os.Lstat(path)
	if err != nil || info.Mode().Type() != fs.ModeSocket {
		return false
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", path)
	if err == nil {
		c.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// A dialer dials addresses of the fabric for the clients of one gateway.
type dialer struct {
	node    nodeFunc
	wait    time.Duration
	waiting chan struct{} // has a place for each client that may wait
}

// newDialer lets half of the gateway's connections wait: a service that is away must not take
// all connections from clients of other services.
func newDialer(g spec.Gateway, node nodeFunc) dialer {
	return dialer{node, g.Wait, make(chan struct{}, (g.Max+1)/2)}
}

// dial dials the first of some addresses that answers, for a client. While none does it tries
// again, the last time when d.wait is over. Each try has until then, and lastPause at least.
func (d dialer) dial(ctx context.Context, addresses []string, client conn, info *spec.Conn) (conn, error) {
	if client.LocalAddr().Network() == "unix" {
		info.Client = client.LocalAddr().String() // the other end has no name
	}
	until, began := ctx, time.Now()
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		c, err := d.try(until, addresses, d.wait-time.Since(began))
		if err == nil {
			if peer, err := c.Peer(); err == nil {
				info.Node = peer.Name
			}
			return c, nil
		}
		left := d.wait - time.Since(began)
		again := !errors.Is(err, syscall.EINVAL) && ctx.Err() == nil && left > 0
		if again && pause == firstPause {
			select {
			case d.waiting <- struct{}{}:
				defer func() { <-d.waiting }()
			default:
				return nil, fmt.Errorf("%d connections wait already: %w", cap(d.waiting), err)
			}
			var stop func()
			until, stop = untilGone(until, client.(*socket)) // as asConn made it of TCP or Unix
			defer stop()
		}
		if !again || !wait.For(until.Done(), min(pause, left)) {
			if gone, ok := errors.AsType[*net.OpError](context.Cause(until)); ok {
				err = fmt.Errorf("the client has gone away: %w", gone)
			}
			return nil, fmt.Errorf("waited %v for %s: %w", time.Since(began).Round(time.Millisecond), info.To, err)
		}
	}
}

// try is one try of dial, which has left to go.
func (d dialer) try(ctx context.Context, addresses []string, left time.Duration) (*fabric.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, max(left, lastPause))
	defer cancel()
	return dialOnce(ctx, d.node, addresses)
}

// untilGone returns a context that ends when the client goes away, with the reason as its
// cause. stop ends the watch; meanwhile nothing else reads from the client.
func untilGone(ctx context.Context, client *socket) (until context.Context, stop func()) {
	until, cancel := context.WithCancelCause(ctx)
	_ = client.SetReadDeadline(time.Time{}) // it fails only for a connection that has ended, as below
	var watch sync.WaitGroup
	watch.Go(func() { cancel(client.gone()) })
	return until, func() {
		_ = client.SetReadDeadline(time.Unix(0, 0))
		watch.Wait()
		_ = client.SetReadDeadline(time.Time{})
	}
}

// dialOnce dials the first of some addresses that exists. If none does, the error is
// that of the first one.
func dialOnce(ctx context.Context, node nodeFunc, addresses []string) (*fabric.Conn, error) {
	n, err := node(ctx)
	if err != nil {
		return nil, err
	}
	var first error
	for _, a := range addresses {
		c, err := n.Dial(ctx, a)
		if err == nil || !errors.Is(err, syscall.ENODEV) {
			return c, err
		}
		first = cmp.Or(first, err)
	}
	return nil, first
}

// sideOf returns the side of g's kind.
func sideOf(g spec.Gateway, owner *Gateways) side {
	node := owner.attached
	switch g.Kind {
	case spec.Expose:
		return exposed{g, node, owner}
	case spec.SOCKS:
		return proxy{g, newDialer(g, node), askSOCKS}
	case spec.HTTPProxy:
		return proxy{g, newDialer(g, node), askHTTP}
	}
	return forwarded{g, newDialer(g, node)}
}

// nodeName names a node, as in "1 (web-1)".
func nodeName(n *fabric.Node) string {
	return fmt.Sprintf("%d (%s)", n.ID(), n.Name())
}
