package daemon

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/faults"
	"github.com/fabricd/fabricd/internal/faults/failpoint"
	"github.com/fabricd/fabricd/internal/faults/inject"
	"github.com/fabricd/fabricd/internal/segment"
	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/membership"
)

// A breaker breaks a node's links on purpose. A nil *breaker breaks nothing and wraps nothing: it
// adds no step to the way of a packet.
type breaker struct {
	plane *faults.Plane // decides
	layer *inject.Layer // does it
	log   zerolog.Logger

	resolving chan struct{} // holds a token per name being looked up
}

const (
	// maxResolving bounds the host names that are looked up at once.
	maxResolving = 16
	// resolveTimeout bounds one of them.
	resolveTimeout = 5 * time.Second
)

// openLinks makes the breaker, if the configuration allows faults.
func (d *Daemon) openLinks(context.Context) error {
	if !d.cfg.EnableFaults {
		return nil
	}
	plane := faults.NewPlane(faults.Options{Seed: uint64(d.started.UnixNano())})
	d.links = &breaker{
		plane: plane, layer: inject.New(plane), log: d.log,
		resolving: make(chan struct{}, maxResolving),
	}
	d.log.Warn().Str("op", "faults").Msg("faults are enabled: every user of the admin socket can break this node on purpose")
	return nil
}

// close ends all faults of links.
func (b *breaker) close() {
	if b != nil {
		b.layer.Close()
	}
}

// packets, provider, streams and dial put the faults between the node and its sockets and
// providers.
func (b *breaker) packets(c net.PacketConn, on faults.Traffic) net.PacketConn {
	if b == nil {
		return c
	}
	return b.layer.PacketConn(c, on)
}

func (b *breaker) provider(p transport.Provider, packets bool) transport.Provider {
	if b == nil {
		return p
	}
	return b.layer.Provider(p, packets)
}

func (b *breaker) streams(l net.Listener, on faults.Traffic) net.Listener {
	if b == nil {
		return l
	}
	return b.layer.Listener(l, on)
}

func (b *breaker) dial(on faults.Traffic) inject.DialFunc {
	if b == nil {
		return nil // the dialer's own
	}
	return b.layer.Dial(func(ctx context.Context, address string) (net.Conn, error) {
		return segment.Dialer().DialContext(ctx, "tcp", address)
	}, on)
}

// sighted returns the function that gets the gossip addresses of other nodes.
func (b *breaker) sighted() func(addr.UUID, netip.AddrPort) {
	if b == nil {
		return nil
	}
	return func(node addr.UUID, at netip.AddrPort) { b.plane.Names.SetPlace(node, at.String()) }
}

// meet learns from an event which node is where. spawn runs a function on a
// goroutine that its owner waits for.
func (b *breaker) meet(ctx context.Context, ev membership.Event, spawn func(func())) {
	if b == nil {
		return
	}
	n := ev.Node
	switch ev.Kind {
	case membership.EventSelf, membership.EventLocal:
		b.plane.Names.SetID(n.UUID, n.Incarnation.Node)
		b.plane.SetSelf(n.Incarnation.Node)
	case membership.EventAdded, membership.EventUpdated:
		b.plane.Names.SetID(n.UUID, n.Incarnation.Node)
		for _, address := range n.Addresses() {
			b.plane.Names.SetPlace(n.UUID, address)
			if _, err := netip.ParseAddrPort(address); err != nil {
				b.resolve(ctx, n.UUID, address, spawn)
			}
		}
	}
}

// resolve looks up an address with a host name: packets have none.
func (b *breaker) resolve(ctx context.Context, node addr.UUID, address string, spawn func(func())) {
	host, port, err := net.SplitHostPort(address)
	number, portErr := strconv.ParseUint(port, 10, 16)
	if err != nil || portErr != nil {
		return
	}
	select {
	case b.resolving <- struct{}{}:
	default:
		b.log.Warn().Str("op", "faults").Str("address", address).Msg("too many names to look up; packet faults do not know this address")
		return
	}
	spawn(func() {
		defer func() { <-b.resolving }()
		ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
		defer cancel()
		ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		if err != nil {
			b.log.Warn().Str("op", "faults").Str("address", address).Err(err).Msg("packet faults do not know this address")
			return
		}
		var at []netip.AddrPort
		for _, ip := range ips {
			at = append(at, netip.AddrPortFrom(ip, uint16(number)))
		}
		b.plane.Names.SetPlace(node, address, at...)
	})
}

// warnings returns the active faults, one line for each.
func (d *Daemon) warnings() (all []string) {
	if d.links == nil {
		return nil
	}
	for _, st := range d.links.plane.List(false) {
		name := st.Rule.String()
		if st.Rule.Name != "" {
			name = strconv.Quote(st.Rule.Name) + " " + name
		}
		all = append(all, fmt.Sprintf("link fault %d (%s): %s", st.Rule.ID, st.State, name))
	}
	for _, r := range d.nodeFaults.List() {
		if r.State != failpoint.Ended {
			all = append(all, fmt.Sprintf("node fault %d (%s): %s", r.ID, r.State, r.Fault))
		}
	}
	return all
}

// faultText reports for `fabricd health` that something is broken on purpose.
func faultText(warnings []string) string {
	switch len(warnings) {
	case 0:
		return ""
	case 1:
		return "; 1 fault is active (`fabricd faults list`)"
	}
	return fmt.Sprintf("; %d faults are active (`fabricd faults list`)", len(warnings))
}
