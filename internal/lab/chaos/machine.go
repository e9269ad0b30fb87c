package chaos

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/fabricd/fabricd/internal/lab/scenario"
)

// Ports that every node has: each has an address of its own. In the local lab another
// cluster of the machine may listen there at every address: then it takes the next two
// that are free.
const (
	dataPort   = 7700
	gossipPort = 7701
	portTries  = 100
)

// A machine is the site of the local lab: processes of this machine, each
// node on a loopback address of its own.
type machine struct {
	exe   string // fabricd
	spawn *spawner
	net   netip.Addr // of node 0; the others follow
	above uint16     // how far its ports are above those of other labs; open sets it
	group group
}

// newMachine returns the local site. Addresses follow from the process and the
// worker, so that no two runs share one.
func newMachine(exe string, name Name, spawn *spawner, worker int) *machine {
	return &machine{
		exe:   exe,
		spawn: spawn,
		net:   loopback(os.Getpid(), worker),
		group: group{name: name},
	}
}

// loopback returns the address of node 0: four runs share the last byte.
func loopback(pid, worker int) netip.Addr {
	const each = 256 / maxNodes
	return netip.AddrFrom4([4]byte{127, byte(64 + 63*(worker/each) + pid>>8%63), byte(pid), byte(1 + worker%each*maxNodes)})
}

func (m *machine) check(_ context.Context, s *scenario.Schedule) error {
	for _, a := range s.Actions {
		if a.Network != nil && a.Network.Do != scenario.Garbage {
			return refusef("%s: the local lab cannot do it; netns and compose can", a.What())
		}
	}
	return m.group.check(s)
}

const (
	// maxNodes bounds the nodes of a real lab.
	maxNodes = 60
	// MaxParallel bounds the runs that a real lab makes at a time.
	MaxParallel = 8
)

// open looks for ports that are free at the addresses of all nodes.
func (m *machine) open(_ context.Context, nodes int) error {
	var taken error
	for range portTries {
		if taken = m.portsFree(nodes); taken == nil {
			return nil
		}
		m.above += 2
	}
	return fmt.Errorf("none of %d pairs of ports is free: %w", portTries, taken)
}

// portsFree returns why the nodes could not listen at their ports, nil if they could.
func (m *machine) portsFree(nodes int) error {
	for node := range nodes {
		p := m.place(node)
		for _, port := range []uint16{p.data, p.gossip} {
			at := netip.AddrPortFrom(p.bind, port)
			u, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
			if err != nil {
				return err
			}
			defer u.Close()
			l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(at))
			if err != nil {
				return err
			}
			defer l.Close()
		}
	}
	return nil
}

func (m *machine) close(context.Context) error { return m.group.close() }

func (m *machine) place(node int) place {
	b := m.net.As4()
	b[3] += byte(node)
	a := netip.AddrFrom4(b)
	return place{bind: a, advertise: a, data: dataPort + m.above, gossip: gossipPort + m.above}
}

// environ is the environment of every fabricd: without settings of the user's. A
// panic that serving a peer meets ends the process, which the checker sees.
func environ() []string {
	var own []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "FABRIC_") {
			own = append(own, kv)
		}
	}
	return append(own, "GOTRACEBACK=all", "FABRICD_PANIC=crash")
}

func (m *machine) start(_ context.Context, s *node, name string, args ...string) (child, error) {
	return m.spawn.start(append([]string{m.exe}, args...), s.file(name+".log"))
}

func (m *machine) path(s *node, name string) string { return filepath.Join(s.dir, name) }

func (m *machine) breaks(scenario.Action) bool { return false }

func (m *machine) breakNetwork(context.Context, scenario.Action) (effect, error) {
	return nil, errors.New("this lab has no network of its own")
}

func (m *machine) enter(int) error { return nil }

func (m *machine) breakPaths(context.Context, scenario.Action, []pathEnds) (effect, error) {
	return nil, errors.New("this lab does not distinguish the packets of paths")
}

func (m *machine) squeeze(ctx context.Context, s *node, a scenario.Action) (effect, error) {
	return m.group.squeeze(ctx, s, a)
}
