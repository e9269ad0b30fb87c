package fabric

import (
	"context"
	"net"
	"strings"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/hook"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/wait"
)

// A Node is an application's access to the node it runs on. All applications of
// a node share its ID and its port space. Its methods may be called from any
// goroutine.
//
// [Attach], [embed.Start] and [fabrictest.NewCluster] return Nodes, which
// behave the same.
//
// [embed.Start]: https://pkg.go.dev/github.com/fabricd/fabricd/fabric/embed#Start
// [fabrictest.NewCluster]: https://pkg.go.dev/github.com/fabricd/fabricd/fabric/fabrictest#NewCluster
type Node struct {
	session attach.Session
	dials   dialQueues
}

func newNode(s attach.Session) *Node { return &Node{session: s} }

func init() {
	hook.Node = func(s attach.Session) any { return newNode(s) }
	hook.Endpoint = func(of any) attach.Endpoint {
		return of.(interface{ Endpoint() *Endpoint }).Endpoint().ep
	}
}

// ID returns the node's ID. It is addr.NoNode while the node has no lease,
// which lasts from a node's removal until it has rejoined.
func (n *Node) ID() NodeID {
	self := n.session.Self()
	if self.Incarnation.Generation == 0 {
		return addr.NoNode
	}
	return self.Incarnation.Node
}

// Incarnation returns the node's ID and generation; the generation is 0 while the
// node has no lease.
func (n *Node) Incarnation() Incarnation { return n.session.Self().Incarnation }

// Name returns the name that the node was started with.
func (n *Node) Name() string { return n.session.Self().Name }

// Cluster returns the identity of the cluster.
func (n *Node) Cluster() UUID { return n.session.Self().Cluster }

// Nodes returns the IDs of all live nodes, this one included, ascending, and
// this node's own ID (scif_get_nodeIDs). The caller owns ids. After the end of
// n it fails with EBADF.
func (n *Node) Nodes() (ids []NodeID, self NodeID, err error) {
	if wait.Over(n.session.Done()) {
		return nil, 0, n.fail("get_nodeIDs", status.BadFD)
	}
	ids, self, err = n.session.Nodes()
	return ids, self, n.fail("get_nodeIDs", err)
}

// Open returns a new, unbound endpoint (scif_open). It fails with ENOMEM when
// the application's quota of endpoints is used up, ENODEV when the node went
// away, and EBADF after Close.
func (n *Node) Open() (*Endpoint, error) {
	ep, err := n.session.Open()
	if err != nil {
		return nil, n.fail("open", err)
	}
	return newEndpoint(ep), nil
}

const (
	// MaxBacklog is the most requests that may wait at a listening endpoint.
	MaxBacklog = 1024
	// DefaultBacklog is how many may wait at a [Listener] without [Backlog].
	DefaultBacklog = MaxBacklog
)

// Listen opens an endpoint, binds it to port (0: a free one) and listens with
// [DefaultBacklog], or that of the option [Backlog]. It fails as [Endpoint.Bind] and [Endpoint.Listen] do.
//
//	l, err := n.Listen(2050, fabric.Allow("web-1", "label:db"))
func (n *Node) Listen(port Port, opts ...ListenOption) (*Listener, error) {
	return n.listen(context.Background(), port, opts)
}

// listen is Listen that the end of ctx ends, also while the node does not respond.
func (n *Node) listen(ctx context.Context, port Port, opts []ListenOption) (*Listener, error) {
	opened, err := n.session.OpenContext(ctx)
	if err != nil {
		return nil, n.fail("open", contextError(ctx, err))
	}
	ep := newEndpoint(opened)
	stop := context.AfterFunc(ctx, func() { ep.Close() })
	if _, err = ep.Bind(port); err == nil {
		err = ep.Listen(backlogOf(opts), opts...)
	}
	if !stop() {
		err = n.fail("listen", contextEnd{ctx.Err()})
	}
	if err != nil {
		ep.Close()
		return nil, err
	}
	return &Listener{ep: ep, local: ep.LocalAddr()}, nil
}

func backlogOf(opts []ListenOption) int {
	if l := listeningOf(opts); l.backlog != 0 {
		return l.backlog
	}
	return DefaultBacklog
}

// DialContext is Dial with the signature that http.Transport and others take: network
// is "scif" or any other name. In an address from a URL,
// "NAME.fabric:PORT", NAME is a service whatever PORT is: http://shop.fabric/ asks the
// service shop. A [Dialer] outlives its fabricd.
func (n *Node) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := n.Dial(ctx, ofURL(address))
	if err != nil {
		return nil, err
	}
	return c, nil
}

// ofURL returns the service that a URL's host below .fabric names, or address.
func ofURL(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	if service, ok := strings.CutSuffix(host, ".fabric"); ok {
		return service
	}
	return address
}

// badAddress is an address that does not parse: EINVAL.
type badAddress struct{ error }

func (e badAddress) Unwrap() []error { return []error{e.error, status.Invalid} }

// Done is closed when the node can no longer be used: Close was called or the
// node's fabricd went away.
func (n *Node) Done() <-chan struct{} { return n.session.Done() }

// Close ends every endpoint that was opened through n and waits until nothing of
// them is left; blocked calls return. The peer of a connection that is still open
// gets the bytes sent, and then ECONNRESET: close connections before, if they are to
// end well. It does not stop the fabricd.
// A second Close does nothing.
func (n *Node) Close() error { return n.fail("close", n.session.Close()) }

func (n *Node) local() Addr { return Addr{Node: n.session.Self().Incarnation.Node} }

func (n *Node) fail(op string, err error) error {
	if err == nil {
		return nil
	}
	return &OpError{Op: op, Local: n.local(), Err: err}
}
