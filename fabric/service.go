package fabric

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/wait"
)

// Service makes a listener serve a name: [Node.Dial] on any node of the cluster then
// connects to it by that. A name has up to 63 letters and digits of ASCII, '.', '-' and
// '_', begins with a letter or a digit, and is not digits alone; "db" and "DB" are two
// names. One listener of a node serves a name; several nodes may serve the same one, and
// any application of any node may: [Conn.Peer] returns the node, and "db@web-1" selects
// one.
//
//	l, err := n.Listen(0, fabric.Service("db"))
//
// The other nodes learn the name within a second, and forget it as soon as the listener
// closes, its application ends, or its node is lost. Listen fails with EADDRINUSE if
// another listener of the node serves the name, with ENOMEM if the node serves 64 names,
// and with EINVAL for text that is no name.
//
// The host may have a rule for which nodes serve a name. If it is against this node, one Accept
// of the listener fails with EACCES, a temporary error, as soon as the host has answered: no
// other node learns the name until the rule allows it.
func Service(name string) ListenOption {
	return func(l *listening) { l.service, l.named = name, true }
}

// A ServiceInfo is a listener that serves a name.
type ServiceInfo struct {
	Name       string
	Node       NodeID
	Generation Generation
	NodeName   string
	Port       Port
	// RoundTrip is how far away the node is: 0 for this node, negative while it is not
	// known, as without a link to it.
	RoundTrip time.Duration
}

// Addr returns the listener's address.
func (s ServiceInfo) Addr() Addr { return Addr{Node: s.Node, Port: s.Port} }

// String returns the service as "name@node-name (node:port)".
func (s ServiceInfo) String() string { return fmt.Sprintf("%s@%s (%v)", s.Name, s.NodeName, s.Addr()) }

// incarnation distinguishes s from another listener.
func (s ServiceInfo) incarnation() Incarnation {
	return Incarnation{Node: s.Node, Generation: s.Generation}
}

func infoOf(s attach.Service) ServiceInfo {
	return ServiceInfo{Name: s.Name, Node: s.Incarnation.Node, Generation: s.Incarnation.Generation, NodeName: s.Node, Port: s.Port, RoundTrip: s.RoundTrip}
}

// Services returns the services of all live nodes, this one's included, by name and then
// by node. The caller owns the slice. It fails with EOPNOTSUPP if the node is too old to
// know names, and with EBADF after the end of n.
func (n *Node) Services() ([]ServiceInfo, error) {
	if wait.Over(n.session.Done()) {
		return nil, n.fail("services", status.BadFD)
	}
	list, err := n.session.Services()
	if err != nil {
		return nil, n.fail("services", err)
	}
	all := make([]ServiceInfo, len(list))
	for i, s := range list {
		all[i] = infoOf(s)
	}
	return all, nil
}

// A ServiceEventKind is a kind of change of a service.
type ServiceEventKind uint8

const (
	ServiceAdded   ServiceEventKind = 1 // a listener serves the name
	ServiceRemoved ServiceEventKind = 2 // it does not any more
)

// A ServiceEvent reports that a service was added or removed.
type ServiceEvent struct {
	Kind    ServiceEventKind
	Service ServiceInfo
}

// String returns the event as one line for logs.
func (ev ServiceEvent) String() string {
	verb := "removed"
	if ev.Kind == ServiceAdded {
		verb = "added"
	}
	return fmt.Sprintf("service %v %s", ev.Service, verb)
}

// servicesEvery is the time between two checks of the services.
const servicesEvery = 100 * time.Millisecond

// OnService calls fn for every service that there is now, as one that was added, and then
// for each change, one at a time, from a goroutine of its own. A service that comes and goes within a
// tenth of a second may not be reported. cancel does not wait for a call of fn that is under way or
// about to begin, and there is none after that. The end of n ends it too.
func (n *Node) OnService(fn func(ServiceEvent)) (cancel func()) {
	w := &serviceWatch{n: n, fn: fn}
	ctx, end := context.WithCancel(context.Background())
	changed := make(chan struct{}, 1)
	stop := n.session.NotifyServices(changed)
	list, err := n.Services()
	go w.run(ctx, list, err, changed) // until cancel, or the node's end
	return func() { stop(); end() }
}

// A serviceWatch reports services to one function.
type serviceWatch struct {
	n     *Node
	fn    func(ServiceEvent)
	known []ServiceInfo
}

// run reports the services of list, and then each change.
func (w *serviceWatch) run(ctx context.Context, list []ServiceInfo, err error, changed <-chan struct{}) {
	for ; ; list, err = w.n.Services() {
		if err == nil { // else nothing is known to have changed
			w.report(ctx, list)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		case <-w.n.Done():
			return
		}
		if !wait.For(ctx.Done(), servicesEvery) {
			return
		}
	}
}

// report calls fn for each difference in list.
func (w *serviceWatch) report(ctx context.Context, list []ServiceInfo) {
	for _, ev := range changes(w.known, list) {
		if ctx.Err() != nil {
			return
		}
		w.fn(ev)
	}
	w.known = list
}

// changes returns how after differs from before: removed services first.
func changes(before, after []ServiceInfo) (events []ServiceEvent) {
	same := func(a, b ServiceInfo) bool {
		return a.Name == b.Name && a.incarnation() == b.incarnation() && a.Port == b.Port
	}
	only := func(list, other []ServiceInfo, kind ServiceEventKind) {
		for _, s := range list {
			i, _ := slices.BinarySearchFunc(other, s, byName)
			if i == len(other) || !same(other[i], s) {
				events = append(events, ServiceEvent{kind, s})
			}
		}
	}
	only(before, after, ServiceRemoved)
	only(after, before, ServiceAdded)
	return events
}

// byName orders services as Services does: a node serves a name once.
func byName(a, b ServiceInfo) int {
	return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Node, b.Node))
}
