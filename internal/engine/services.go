package engine

import (
	"cmp"
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/core"
	"github.com/fabricd/fabricd/internal/status"
)

// serviceVersion is the first version of the link's protocol in which Connect can name a service.
const serviceVersion = 5

// A Named is a name that an endpoint serves, and its port.
type Named struct {
	Name string
	Port addr.Port
}

// A namespace is the services of this node. Node.mu guards own.
type namespace struct {
	own    map[string]*endpoint // by name; announced once it listens
	barred map[string]bool      // names of own that the host does not announce
	lines  perMinute            // about those
	notes  attach.Notes         // of changes of any node's services
}

// Serve takes the name. Listen announces it to other nodes.
func (e *endpoint) Serve(service string) error {
	if !addr.ValidService(service) {
		return attach.Failure(status.Invalid, "%.80q is no name of a service: want up to %d letters, digits, '.', '-' and '_', not digits alone",
			service, addr.MaxService)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := core.Check(core.CallListen, e.state); err != nil {
		return err
	}
	if e.listening.service != "" {
		return attach.Failure(status.Invalid, "the endpoint serves %q already", e.listening.service)
	}
	e.n.mu.Lock()
	defer e.n.mu.Unlock()
	switch own := e.n.services.own; {
	case own[service] != nil:
		return attach.Failure(status.InUse, "an endpoint of this node serves %q already", service)
	case len(own) >= attach.MaxServices:
		return attach.Failure(status.NoMemory, "this node serves %d names already", len(own))
	}
	e.n.services.own[service] = e
	e.listening.service = service
	return nil
}

// servesLocked announces the endpoint's name, if it has one. The caller holds e.mu and not Node.mu.
func (e *endpoint) servesLocked() {
	if e.listening.service != "" {
		e.n.servesAnew()
		e.barLocked()
	}
}

// barLocked has one Accept of the listener fail if the host does not announce its name. The
// caller holds e.mu and not Node.mu.
func (e *endpoint) barLocked() {
	e.n.mu.Lock()
	e.listening.barred = e.state == core.Listening && e.n.services.barred[e.listening.service]
	e.n.mu.Unlock()
	if e.listening.barred {
		e.listening.waits.signal()
		e.changed()
	}
}

// takeBar returns the failure that barLocked has left, once. The listener stays: its port can be
// connected to, and so can its name when the host's rules allow it.
func (e *endpoint) takeBar() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.listening.barred {
		return nil
	}
	e.listening.barred = false
	e.listening.waits.signal() // for another acceptor
	return attach.Failure(status.Access, "the host does not let this node serve %q: %s", e.listening.service, WhyBarred)
}

// WhyBarred is the reason for which a host does not announce a name, as far as a node can know.
const WhyBarred = "a rule of its setting access decides which nodes may, or the cluster serves as many names as it can"

// dropNameLocked gives the endpoint's name back. The caller holds e.mu and Node.mu. It
// reports whether there was one, which servesAnew is to report.
func (e *endpoint) dropNameLocked() bool {
	name := e.listening.service
	if name == "" || e.n.services.own[name] != e {
		return false
	}
	delete(e.n.services.own, name)
	return true
}

// servesAnew reports that this node serves other names than before.
func (n *Node) servesAnew() {
	n.services.notes.Send()
	if n.cfg.ServesAnew != nil {
		n.cfg.ServesAnew()
	}
}

// Serves returns the services of this node's endpoints, by name. The caller owns the slice.
func (n *Node) Serves() []Named {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.servesLocked()
}

// servesLocked is Serves. The caller holds mu.
func (n *Node) servesLocked() []Named {
	var all []Named
	for name, e := range n.services.own {
		if port, ok := n.portOfLocked(e); ok {
			all = append(all, Named{name, port})
		}
	}
	slices.SortFunc(all, func(a, b Named) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// portOfLocked returns the port at which e listens. The caller holds mu, and e.mu does not
// have to be held: a listener keeps its port until it is closed.
func (n *Node) portOfLocked(e *endpoint) (addr.Port, bool) {
	return e.listening.port, e.listening.port != 0 && n.listeners[e.listening.port] == e
}

// NodeServices sets the services of a live incarnation. For another incarnation it is ignored: that one
// cannot be connected to.
func (n *Node) NodeServices(incarnation addr.Incarnation, serves []Named) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if p := n.peers[incarnation.Node]; p != nil && p.Incarnation == incarnation {
		p.serves = serves
		n.services.notes.Send()
	}
}

// Barred sets the names of this node that the host does not announce, because a rule limits
// which nodes serve them. On this node they are not found either: no connect by name succeeds.
// One Accept of the listener of each fails.
func (n *Node) Barred(names []string) {
	n.mu.Lock()
	before, own := n.services.barred, maps.Clone(n.services.own)
	n.services.barred = make(map[string]bool)
	for _, name := range names {
		n.services.barred[name] = true
	}
	n.services.notes.Send()
	if len(names) > 0 && n.services.lines.shown(n.now(), reportsPerMinute) {
		n.log.Warn().Str("op", "access").Strs("services", names).Str("reason", WhyBarred).Msg("the host does not let this node serve these names")
	}
	n.mu.Unlock()
	for name, e := range own {
		if before[name] != slices.Contains(names, name) {
			e.mu.Lock()
			e.barLocked()
			e.mu.Unlock()
		}
	}
}

// BarredServices returns the services of this node that the host does not announce, by name.
func (n *Node) BarredServices() []Named {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.DeleteFunc(n.servesLocked(), func(s Named) bool { return !n.services.barred[s.Name] })
}

// served reports whether a connect that names service, if it is not empty, is for e. The
// caller holds mu.
func (n *Node) servedLocked(e *endpoint, service string) bool {
	return service == "" || n.services.own[service] == e && !n.services.barred[service]
}

// measured notes how far away a peer is: it is known beyond the link.
func (n *Node) measured(incarnation addr.Incarnation, roundTrip time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if p := n.peers[incarnation.Node]; p != nil && p.Incarnation == incarnation && roundTrip > 0 {
		p.roundTrip = roundTrip
	}
}

// Services returns the services of this node and all live ones, by name and then by node.
func (n *Node) Services() []attach.Service {
	n.mu.Lock()
	var all []attach.Service
	n.eachLocked(func(at attach.Service, serves []Named) {
		for _, s := range serves {
			at.Name, at.Port = s.Name, s.Port
			all = append(all, at)
		}
	})
	n.mu.Unlock() // before they are sorted, which takes long where there are thousands
	slices.SortFunc(all, func(a, b attach.Service) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Incarnation.Node, b.Incarnation.Node))
	})
	return all
}

// eachLocked calls f for this node, if it has an incarnation, and for each live peer, with its
// services. The caller holds mu.
func (n *Node) eachLocked(f func(at attach.Service, serves []Named)) {
	if n.self.Incarnation.Generation == 0 {
		return
	}
	own := slices.DeleteFunc(n.servesLocked(), func(s Named) bool { return n.services.barred[s.Name] })
	f(attach.Service{Incarnation: n.self.Incarnation, Node: n.self.Name}, own)
	for _, p := range n.peers {
		f(attach.Service{Incarnation: p.Incarnation, Node: p.Name, RoundTrip: p.distance()}, p.serves)
	}
}

// distance is the round trip to p, -1 while it is not known.
func (p *peerState) distance() time.Duration {
	if p.roundTrip == 0 {
		return -1
	}
	return p.roundTrip
}

// Resolve is attach.Directory's.
func (n *Node) Resolve(service, node string) ([]attach.Service, error) {
	id, byID := addr.ParseNode(node)
	n.mu.Lock()
	var found []attach.Service
	known := false
	n.eachLocked(func(at attach.Service, serves []Named) {
		if node != "" && !(byID && at.Incarnation.Node == id || !byID && at.Node == node) {
			return
		}
		known = true
		if service == "" {
			found = append(found, at)
		}
		for _, s := range serves {
			if s.Name == service {
				at.Name, at.Port = s.Name, s.Port
				found = append(found, at)
			}
		}
	})
	n.mu.Unlock()
	if len(found) == 0 {
		return nil, notFound(service, node, known)
	}
	nearestFirst(found)
	return found[:min(len(found), attach.MaxCandidates)], nil
}

func notFound(service, node string, known bool) error {
	switch {
	case node != "" && !known:
		return attach.Failure(status.NoDevice, "no live node has the ID or name %.80q", node)
	case node != "":
		return attach.Failure(status.NoDevice, "node %.80s does not serve %.80q", node, service)
	}
	return attach.Failure(status.NoDevice, "no node serves %.80q", service)
}

// nearestFirst sorts candidates as Resolve returns them.
func nearestFirst(all []attach.Service) {
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	slices.SortStableFunc(all, func(a, b attach.Service) int {
		if (a.RoundTrip < 0) != (b.RoundTrip < 0) {
			return cmp.Compare(b.RoundTrip, a.RoundTrip) // the unknown one last
		}
		return cmp.Compare(a.RoundTrip, b.RoundTrip)
	})
}

func (s *session) Services() ([]attach.Service, error) {
	select {
	case <-s.done:
		return nil, status.BadFD
	default:
		return s.n.Services(), nil
	}
}

func (s *session) Resolve(_ context.Context, service, node string) ([]attach.Service, error) {
	return s.n.Resolve(service, node)
}

func (s *session) NotifyServices(ch chan<- struct{}) (stop func()) {
	return s.n.services.notes.Add(ch)
}

// ConnectService is attach.NodeEndpoint's.
func (e *endpoint) ConnectService(ctx context.Context, dst addr.Addr, service string) (addr.Port, error) {
	if service != "" && !addr.ValidService(service) {
		return 0, status.Invalid
	}
	return e.connect(ctx, dst, service)
}
