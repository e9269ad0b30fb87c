package spec

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/fabricd/fabricd/internal/attach"
)

// MaxGateways bounds the gateways of one node.
const MaxGateways = 256

// Check returns an error if one node cannot run the gateways together: too many, two that listen
// in one place, or one whose connections come back to it; kind is that of the one that cannot run.
// self are the node's name and ID, as far as they are known.
func Check(all []Gateway, self ...string) (kind Kind, err error) {
	if len(all) > MaxGateways {
		return all[MaxGateways].Kind, fmt.Errorf("%d gateways, want at most %d on one node", len(all), MaxGateways)
	}
	taken := make(map[string]Gateway)
	services := 0
	for _, g := range all {
		if _, port := Port(g.Listen); g.Kind == Expose && !port {
			services++
		}
		place := g.place()
		if other, ok := taken[place]; ok {
			return g.Kind, fmt.Errorf("%s is taken on this node: by %s %s", g.Listen, other.Kind, other)
		}
		if place != "" {
			taken[place] = g
		}
	}
	if services > attach.MaxServices {
		return Expose, fmt.Errorf("%d names, want at most %d on one node", services, attach.MaxServices)
	}
	for _, g := range all {
		if err := g.Check(all, self...); err != nil {
			return g.Kind, err
		}
	}
	return "", nil
}

// Check reports whether the connections of g would come back to it through all of a node.
func (g Gateway) Check(all []Gateway, self ...string) error {
	if g.returns(all, self) {
		return fmt.Errorf("%s=%s: its connections would come back to it by way of this node's gateways; want another target", g.Listen, g.To)
	}
	return nil
}

// place is where a gateway listens, in one form for one place; empty: at a port that the
// kernel chooses.
func (g Gateway) place() string {
	switch {
	case g.Kind == Expose:
		return "fabric " + g.Listen
	case strings.HasSuffix(g.Listen, ":0"):
		return ""
	}
	return "machine " + g.Listen
}

// returns reports whether the connections of g lead back to it through all: those of a service to
// the one gateway that listens at its target, those of a forward to the one that serves its name.
func (g Gateway) returns(all []Gateway, self []string) bool {
	at := g
	for range all {
		next, ok := at.Next(all, self)
		if !ok {
			return false
		}
		if next.Kind == g.Kind && next.Listen == g.Listen {
			return true
		}
		at = next
	}
	return false // a ring that g is not in: another one finds it
}

// Next returns the gateway of all to which the connections of g lead.
func (g Gateway) Next(all []Gateway, self []string) (Gateway, bool) {
	for _, n := range all {
		switch {
		case g.Kind == Expose && n.Kind == Forward && sameAddress(n.Listen, g.To),
			g.Kind == Forward && n.Kind == Expose && serviceOf(g.To, self) == n.Listen:
			return n, true
		}
	}
	return Gateway{}, false
}

// serviceOf returns the service or the port that an address of the fabric has on this node:
// "db" of "db" and of "db@web-1", if that is its name; empty: it is of another one.
func serviceOf(address string, self []string) string {
	if node, port, ok := strings.Cut(address, ":"); ok {
		return onNode(port, node, self)
	}
	if name, node, ok := strings.Cut(address, "@"); ok {
		return onNode(name, node, self)
	}
	return address // others may serve it too, but this node does
}

func onNode(service, node string, self []string) string {
	if slices.Contains(self, node) {
		return service
	}
	return ""
}

// sameAddress reports whether dialing target reaches the listener at listen on this
// machine, as far as the texts show.
func sameAddress(listen, target string) bool {
	if IsPath(listen) || IsPath(target) {
		return listen == target
	}
	lhost, lport, lerr := net.SplitHostPort(listen)
	thost, tport, terr := net.SplitHostPort(target)
	if lerr != nil || terr != nil || lport != tport {
		return false
	}
	return lhost == thost || everywhere(lhost) && own(thost) || loopback(lhost) && loopback(thost)
}

// own reports whether host is an address of this machine.
func own(host string) bool {
	addrs, _ := net.InterfaceAddrs() // without them only loopback is known
	return loopback(host) || slices.ContainsFunc(addrs, func(a net.Addr) bool {
		n, ok := a.(*net.IPNet)
		return ok && n.IP.Equal(net.ParseIP(host))
	})
}

func loopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback() || everywhere(host)
}

func everywhere(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "" || err == nil && ip.IsUnspecified()
}
