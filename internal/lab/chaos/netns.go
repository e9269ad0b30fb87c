package chaos

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/fabricd/fabricd/internal/lab/scenario"
)

// namespaces is the site of the netns lab: one network namespace for each node,
// all on a bridge in a namespace of its own. The machine's own namespace, and
// its firewall, have no part in it.
type namespaces struct {
	*machine // starts the processes
	name     Name
	filter   filter
	count    int // of nodes; set by open

	mu    sync.Mutex  // guards the fields below
	rates map[int]int // rate limits in place at the bridge's ports, by node
	made  []string
}

func newNamespaces(exe string, name Name, spawn *spawner) *namespaces {
	n := &namespaces{machine: newMachine(exe, name, spawn, 0), name: name, rates: make(map[int]int)}
	n.filter = filter{
		family: "inet",
		enter:  func(node int) []string { return []string{"ip", "netns", "exec", n.namespace(node)} },
		addr:   func(node int) netip.Addr { return n.place(node).bind },
	}
	return n
}

// namespace is the name of a node's namespace, bridge that of the bridge's.
func (n *namespaces) namespace(node int) string { return fmt.Sprintf("%s-n%d", n.name, node) }
func (n *namespaces) bridge() string            { return string(n.name) + "-sw" }
func port(node int) string                      { return fmt.Sprintf("p%d", node) }

func (n *namespaces) check(ctx context.Context, s *scenario.Schedule) error {
	if os.Geteuid() != 0 {
		return refusef("the netns lab needs root, to make network namespaces")
	}
	for _, tool := range []string{"ip", "nft", "tc"} {
		if _, err := exec.LookPath(tool); err != nil {
			return refusef("the netns lab needs %s, which is not installed", tool)
		}
	}
	probe := string(n.name) + "-probe"
	if err := command(ctx, "ip", "netns", "add", probe); err != nil {
		return &Refusal{text: "this machine makes no network namespaces", err: err}
	}
	if err := command(ctx, "ip", "netns", "del", probe); err != nil {
		return err
	}
	return n.group.check(s)
}

// Segments are not joined: a packet of the network is one for the filter too.
const oneSegment = "gso_max_segs 1 gso_max_size 1500"

func (n *namespaces) open(ctx context.Context, nodes int) error {
	n.count = nodes
	sw := n.bridge()
	if err := n.add(ctx, sw); err != nil {
		return err
	}
	if err := ipAll(ctx, "-n "+sw+" link add br0 type bridge", "-n "+sw+" link set br0 up"); err != nil {
		return err
	}
	for node := range nodes {
		ns := n.namespace(node)
		if err := n.add(ctx, ns); err != nil {
			return err
		}
		err := ipAll(ctx,
			fmt.Sprintf("-n %s link add %s type veth peer name eth0 netns %s", sw, port(node), ns),
			fmt.Sprintf("-n %s link set %s master br0 up", sw, port(node)),
			fmt.Sprintf("-n %s link set dev %s %s", sw, port(node), oneSegment),
			fmt.Sprintf("-n %s link set dev eth0 %s", ns, oneSegment),
			fmt.Sprintf("-n %s addr add %s/24 dev eth0", ns, n.place(node).bind),
			fmt.Sprintf("-n %s link set eth0 up", ns),
			fmt.Sprintf("-n %s link set lo up", ns))
		if err != nil {
			return err
		}
	}
	return nil
}

// ipAll runs ip with each of the argument lists.
func ipAll(ctx context.Context, lines ...string) error {
	for _, line := range lines {
		if err := command(ctx, "ip", strings.Fields(line)...); err != nil {
			return err
		}
	}
	return nil
}

func (n *namespaces) add(ctx context.Context, ns string) error {
	n.mu.Lock()
	n.made = append(n.made, ns)
	n.mu.Unlock()
	return command(ctx, "ip", "netns", "add", ns)
}

// close removes the namespaces, and with them everything in them.
func (n *namespaces) close(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	errs := []error{n.machine.close(ctx)}
	for _, ns := range n.made {
		if _, err := os.Stat(filepath.Join(netnsDir, ns)); err == nil {
			errs = append(errs, command(ctx, "ip", "netns", "del", ns))
		}
	}
	n.made = nil
	return errors.Join(errs...)
}

func (n *namespaces) place(node int) place {
	a := netip.AddrFrom4([4]byte{10, 77, 0, byte(node + 1)})
	return place{bind: a, advertise: a, data: dataPort, gossip: gossipPort}
}

// start runs fabricd in the node's namespace.
func (n *namespaces) start(_ context.Context, s *node, name string, args ...string) (child, error) {
	return n.spawn.start(slices.Concat(n.filter.enter(s.index), []string{n.exe}, args), s.file(name+".log"))
}

// The mechanisms that break a link.
const (
	byPlane  = iota // the fault plane of the daemons
	byFilter        // nft at the receiver
	byRate          // tc at the bridge
	byCopies        // nft at the bridge
)

// how returns the best mechanism to break a link.
func how(l *scenario.Link) int {
	only := *l
	only.Rate, only.Buffer, only.Duplicate = 0, 0, 0
	alone := byKernel(&only) && len(linkEffects(&only)) == 0 && (l.Plane == "" || l.Plane == "all")
	switch {
	case alone && l.Rate != 0 && l.Duplicate == 0:
		return byRate
	case alone && l.Rate == 0 && l.Duplicate != 0:
		return byCopies
	case byKernel(l):
		return byFilter
	}
	return byPlane
}

func (n *namespaces) breaks(a scenario.Action) bool {
	switch {
	case a.Link != nil:
		return how(a.Link) != byPlane
	case a.Partition != nil:
		return true
	}
	return a.Network != nil && a.Network.Do != scenario.Garbage
}

func (n *namespaces) breakNetwork(ctx context.Context, a scenario.Action) (effect, error) {
	switch {
	case a.Partition != nil:
		return n.filter.apply(ctx, a)
	case a.Network != nil && a.Network.Do == scenario.Disconnect:
		return n.disconnect(ctx, a)
	case a.Network != nil && a.Network.Do == scenario.Forge:
		return n.forge(a)
	case a.Network != nil:
		return n.filter.reject(ctx, a)
	}
	switch how(a.Link) {
	case byRate:
		return n.limit(ctx, a)
	case byCopies:
		return n.duplicate(ctx, a)
	}
	return n.filter.apply(ctx, a)
}

func (n *namespaces) breakPaths(ctx context.Context, a scenario.Action, paths []pathEnds) (effect, error) {
	return n.filter.applyPaths(ctx, a, paths)
}

// disconnect pulls the cables of nodes.
func (n *namespaces) disconnect(ctx context.Context, a scenario.Action) (effect, error) {
	ids := a.Network.Node.IDs()
	set := func(ctx context.Context, state string) error {
		return everywhere(ids, func(node int) error {
			return command(ctx, "ip", "-n", n.bridge(), "link", "set", port(node), state)
		})
	}
	err := set(ctx, "down")
	return undoBy(func(ctx context.Context) (uint64, string, error) {
		proof := ""
		for _, id := range ids {
			state, err := output(ctx, "ip", "-n", n.bridge(), "-o", "link", "show", port(id))
			if err != nil || !bytes.Contains(state, []byte("state DOWN")) {
				return 0, oneLine(state), errors.Join(err, set(ctx, "up"))
			}
			proof = "the ports were in state DOWN"
		}
		return uint64(len(ids)), proof, set(ctx, "up")
	}), err
}

// in runs a program in the bridge's namespace.
func (n *namespaces) in(ctx context.Context, argv ...string) ([]byte, error) {
	return output(ctx, "ip", append([]string{"netns", "exec", n.bridge()}, argv...)...)
}

func (n *namespaces) tc(ctx context.Context, format string, args ...any) error {
	_, err := n.in(ctx, append([]string{"tc"}, strings.Fields(fmt.Sprintf(format, args...))...)...)
	return err
}

// duplicate sends a share of the packets twice, at the bridge's port of the
// sender.
func (n *namespaces) duplicate(ctx context.Context, a scenario.Action) (effect, error) {
	var rules []string
	for from, to := range links(a) {
		rules = append(rules, fmt.Sprintf("chain c%d_%d { type filter hook ingress device \"%s\" priority 0; ip daddr %s numgen random mod 100000 < %d counter dup to \"%s\"; }",
			from, to, port(from), n.place(to).bind, int(a.Link.Duplicate*1000), port(to)))
	}
	atBridge := filter{family: "netdev", enter: func(int) []string { return []string{"ip", "netns", "exec", n.bridge()} }}
	return atBridge.install(ctx, a, []int{0}, func(int) string {
		return fmt.Sprintf("table netdev %s { %s; }", tableName(a), strings.Join(rules, "; "))
	})
}

// limit bounds the bandwidth of each direction of each pair at the bridge's
// port of the receiver.
func (n *namespaces) limit(ctx context.Context, a scenario.Action) (effect, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	var all several
	for from, to := range links(a) {
		e, err := n.limitOne(ctx, a.Link, from, to)
		if e != nil {
			all = append(all, e)
		}
		if err != nil {
			return all, err
		}
	}
	return all, nil
}

// limitOne bounds one direction. mu is held.
func (n *namespaces) limitOne(ctx context.Context, l *scenario.Link, from, to int) (effect, error) {
	dev, class := port(to), fmt.Sprintf("1:%x", from+1)
	if n.rates[to] == 0 {
		if err := n.tc(ctx, "qdisc add dev %s root handle 1: htb default 0", dev); err != nil {
			return nil, err
		}
	}
	n.rates[to]++
	buffer := int64(l.Buffer)
	if buffer == 0 {
		buffer = 64 << 10
	}
	release := func(ctx context.Context) error {
		if n.rates[to]--; n.rates[to] == 0 {
			return n.tc(ctx, "qdisc del dev %s root", dev)
		}
		return errors.Join(
			n.tc(ctx, "filter del dev %s parent 1: prio %d", dev, from+1),
			n.tc(ctx, "class del dev %s classid %s", dev, class))
	}
	err := n.tc(ctx, "class add dev %s parent 1: classid %s htb rate %dbps burst 16k", dev, class, int64(l.Rate))
	if err == nil {
		err = n.tc(ctx, "qdisc add dev %s parent %s handle %x: bfifo limit %d", dev, class, from+0x11, buffer)
	}
	if err == nil {
		err = n.tc(ctx, "filter add dev %s parent 1: protocol ip prio %d u32 match ip src %s/32 flowid %s", dev, from+1, n.place(from).bind, class)
	}
	return undoBy(func(ctx context.Context) (uint64, string, error) {
		n.mu.Lock()
		defer n.mu.Unlock()
		held, err := n.held(ctx, dev, class)
		return held, fmt.Sprintf("%d→%d: %d packets waited or were dropped", from, to, held), errors.Join(err, release(ctx))
	}), err
}

// held returns how many packets of a class the limit has held up or dropped. tc
// has no JSON for it: the line of the class is followed by "Sent … (dropped N,
// overlimits M …".
func (n *namespaces) held(ctx context.Context, dev, class string) (uint64, error) {
	text, err := n.in(ctx, "tc", "-s", "class", "show", "dev", dev)
	if err != nil {
		return 0, err
	}
	_, rest, ok := strings.Cut(string(text), "class htb "+class+" ")
	if !ok {
		return 0, fmt.Errorf("tc: no class %s at %s", class, dev)
	}
	var dropped, over uint64
	_, counts, ok := strings.Cut(rest, "(dropped ")
	if !ok {
		return 0, fmt.Errorf("tc: no counters of class %s at %s", class, dev)
	}
	if _, err := fmt.Sscanf(counts, "%d, overlimits %d", &dropped, &over); err != nil {
		return 0, fmt.Errorf("tc: counters of class %s at %s: %w", class, dev, err)
	}
	return dropped + over, nil
}
