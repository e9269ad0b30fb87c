package fabricgrpc

import (
	"context"
	"fmt"
	"net"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/resolver"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/wait"
)

// Scheme begins the targets of this package: "fabric:///db".
const Scheme = "fabric"

// Options returns the options with which grpc.NewClient takes targets of the fabric and
// dials them through d:
//
//   - "fabric:///db" is every node that serves the name, one address for each. A node that
//     begins or ends to serve it changes the addresses. While no node does, for longer than a
//     second, calls fail with codes.Unavailable and `no node serves "db"`, or wait if they
//     are grpc.WaitForReady.
//   - "fabric:///db@web-1", "fabric:///web-1:2050" and "fabric:///3:2050" are one address.
//
// For a target that is no address of the fabric every call fails.
//
// While d's fabricd is away the addresses stay as they were, and d's dials wait for it.
// The fabric encrypts all bytes, so the options have no TLS of gRPC. An option after
// them, such as grpc.WithTransportCredentials, replaces theirs.
//
// The caller closes d after the last client. The Close of a client ends the goroutines of
// the options for it.
func Options(d *fabric.Dialer) []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithResolvers(builder{d}),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return d.DialContext(ctx, "scif", address)
		}),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
	}
}

// A builder makes a resolver for each client.
type builder struct{ dialer *fabric.Dialer }

func (b builder) Scheme() string { return Scheme }

func (b builder) Build(target resolver.Target, cc resolver.ClientConn, _ resolver.BuildOptions) (resolver.Resolver, error) {
	t, err := addr.ParseTarget(target.Endpoint())
	if err == nil && target.URL.Host != "" {
		err = fmt.Errorf("address %q: want %s:///%s, with three slashes", target, Scheme, target.Endpoint())
	}
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	w := &watch{dialer: b.dialer, cc: cc, cancel: cancel, changed: make(chan struct{}, 1), done: make(chan struct{})}
	if t.Service == "" || t.Node != "" {
		close(w.done)
		return w, cc.UpdateState(stateOf(target.Endpoint()))
	}
	w.service = t.Service
	go w.run(ctx) // until Close
	return w, nil
}

// A watch reports the nodes that serve a name to one client.
type watch struct {
	dialer  *fabric.Dialer
	cc      resolver.ClientConn
	service string
	cancel  context.CancelFunc
	changed chan struct{} // has a value when the services have to be checked
	done    chan struct{} // closed when run has returned
	sent    []string      // the addresses that the client has; run's
}

const (
	// attachEvery is the time between two attempts to attach.
	attachEvery = 250 * time.Millisecond
	// attachPatience bounds one: a fabricd that waits for its host is an error then, so
	// that a call without a deadline ends.
	attachPatience = 10 * time.Second
)

// run follows the service from one of the dialer's nodes to the next, until ctx is done.
func (w *watch) run(ctx context.Context) {
	defer close(w.done)
	for ctx.Err() == nil {
		node, err := w.attach(ctx)
		if err == nil {
			err = w.follow(ctx, node)
		}
		if err != nil && ctx.Err() == nil {
			w.cc.ReportError(err) // a client that has addresses keeps them
			wait.For(ctx.Done(), attachEvery)
		}
	}
}

func (w *watch) attach(ctx context.Context) (*fabric.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, attachPatience)
	defer cancel()
	return w.dialer.Node(ctx)
}

// knownWithin is how long a node that has just joined may take to learn a name.
const knownWithin = time.Second

// follow reports the service's addresses until node has ended or ctx is done.
func (w *watch) follow(ctx context.Context, node *fabric.Node) error {
	defer node.OnService(func(ev fabric.ServiceEvent) {
		if ev.Service.Name == w.service {
			w.check()
		}
	})()
	known := time.NewTimer(knownWithin)
	defer known.Stop()
	for all := false; ; {
		list, err := node.Services()
		if err != nil {
			return err
		}
		if now := w.addresses(list); len(now) > 0 || all {
			w.send(now)
		}
		select {
		case <-w.changed:
		case <-known.C:
			all = true
		case <-node.Done():
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}

// addresses returns the address of each node that serves the name: with the node, and not
// the port, so that a listener that comes back is found.
func (w *watch) addresses(all []fabric.ServiceInfo) (list []string) {
	for _, s := range all {
		if s.Name == w.service {
			list = append(list, fmt.Sprintf("%s@%d", s.Name, s.Node))
		}
	}
	return list
}

// send sends the client its addresses, or the reason why it has none.
func (w *watch) send(addresses []string) {
	if !slices.Equal(addresses, w.sent) {
		w.sent = addresses
		_ = w.cc.UpdateState(stateOf(addresses...)) // it fails for no address at all, and the reason comes next
	}
	if len(addresses) == 0 {
		w.cc.ReportError(fmt.Errorf("no node serves %q", w.service))
	}
}

func stateOf(addresses ...string) (s resolver.State) {
	for _, a := range addresses {
		s.Addresses = append(s.Addresses, resolver.Address{Addr: a})
	}
	return s
}

func (w *watch) check() { wait.Notify(w.changed) }

// ResolveNow does nothing: changes are reported as they happen.
func (w *watch) ResolveNow(resolver.ResolveNowOptions) {}

// Close ends the watch and waits for its end.
func (w *watch) Close() {
	w.cancel()
	<-w.done
}
