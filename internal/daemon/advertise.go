package daemon

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"
)

// lookUpTimeout bounds the name server queries for this node's own address.
const lookUpTimeout = 5 * time.Second

// publicAddress is one that no machine has (RFC 5737): the way there is the
// default route. Nothing is ever sent to it.
const publicAddress = "192.0.2.1:9"

// publicAddress6 is the same for IPv6 (RFC 3849).
const publicAddress6 = "[2001:db8::1]:9"

// advertised returns the host that others dial to reach this node: the
// configured one; else the one it is bound to; else, if it is bound to all, the
// address from which this machine reaches the members that it is to join, or
// the rest of the world, or else its first. So a container on several networks
// names the one that its cluster is on, and a machine with containers not the
// network of these.
func advertised(ctx context.Context, c NetworkConfig, join []string) (string, error) {
	if c.Advertise != "" {
		return c.Advertise, nil
	}
	if !c.Bind.IsUnspecified() {
		return c.Bind.String(), nil
	}
	for _, member := range append(join[:len(join):len(join)], publicAddress, publicAddress6) {
		if a, ok := sourceTowards(ctx, member, c.Bind.Is4()); ok {
			return a.String(), nil
		}
	}
	a, err := machineAddress(c.Bind.Is4())
	return a.String(), err
}

// sourceTowards returns the address from which the kernel would send to
// "host:port", without sending. It must be one that other machines can use.
func sourceTowards(ctx context.Context, member string, only4 bool) (netip.Addr, bool) {
	network := "udp"
	if only4 {
		network = "udp4"
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, network, member)
	if err != nil {
		return netip.Addr{}, false // no such name yet, or no way there
	}
	defer c.Close()
	a := c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap()
	return a, a.IsGlobalUnicast()
}

// machineAddress returns the first global unicast address of an interface that
// is up, and a loopback address for a machine that has no other.
func machineAddress(only4 bool) (netip.Addr, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return netip.Addr{}, fmt.Errorf("addresses of this machine: %w", err)
	}
	for _, a := range all {
		prefix, err := netip.ParsePrefix(a.String())
		if err != nil {
			continue
		}
		if ip := prefix.Addr().Unmap(); ip.IsGlobalUnicast() && (ip.Is4() || !only4) {
			return ip, nil
		}
	}
	if only4 {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1}), nil
	}
	return netip.IPv6Loopback(), nil
}

// addressesOf returns the addresses of a node's ports for other nodes. Gossip needs IP addresses: a
// name is looked up now, once.
func addressesOf(ctx context.Context, host string, data, gossip uint16) (addresses, error) {
	join := func(host string, port uint16) string { return net.JoinHostPort(host, strconv.Itoa(int(port))) }
	p := addresses{data: join(host, data), gossip: join(host, gossip)}
	if _, err := netip.ParseAddr(host); err == nil {
		return p, nil
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return addresses{}, problem("advertise", host, "cannot be looked up: "+err.Error(), err)
	}
	p.gossip = join(ips[0].Unmap().String(), gossip)
	return p, nil
}

// findAddresses finds out under which addresses others reach this node.
func (d *Daemon) findAddresses(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lookUpTimeout)
	defer cancel()
	host, err := advertised(ctx, d.cfg.Network, d.cfg.Join)
	if err != nil {
		return err
	}
	at, err := addressesOf(ctx, host, d.ports.data.address().Port(), d.ports.gossip.address().Port())
	if err != nil {
		return err
	}
	d.live.set(func(p *parts) { p.addresses = at })
	return nil
}
