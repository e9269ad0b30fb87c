package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fabricd/fabricd/internal/lab/scenario"
)

// A filter breaks links by the kernel's packet filter, usually in the network namespace
// of the receiver: the sender does not notice. Each action is a table of its
// own there, which counts.
type filter struct {
	family string // of the tables, as nft names it
	// enter is the command that runs another one in the namespace of a node.
	enter func(node int) []string
	addr  func(node int) netip.Addr
}

// byKernel reports whether the filter can do all that a link asks for.
func byKernel(l *scenario.Link) bool {
	switch l.Plane {
	case "", "all", "gossip", "control", "link":
	default:
		return false // inside the encrypted packets of a link
	}
	return l.Delay == 0 && l.Jitter == 0 && l.Reorder == 0 && l.Duplicate == 0 && l.Rate == 0 &&
		!l.HalfOpen && !l.Hold && !l.Reset && l.Up == 0
}

// senders returns the set of the addresses from which packets are broken. With
// an end, the kernel itself takes them out then: a runner that is late does not
// make a fault longer than it is meant to be.
func (f *filter) senders(from []int, left time.Duration) string {
	var addrs []string
	for _, id := range from {
		addr := f.addr(id).String()
		if left > 0 {
			addr += fmt.Sprintf(" timeout %dms", max(1, left.Milliseconds()))
		}
		addrs = append(addrs, addr)
	}
	flags := ""
	if left > 0 {
		flags = "flags timeout; "
	}
	return fmt.Sprintf("set s { type ipv4_addr; %selements = { %s }; };", flags, strings.Join(addrs, ", "))
}

// rules returns the kernel's rules for the packets of an action from the senders, each
// a match with its verdict.
func (f *filter) rules(a scenario.Action) []string {
	const src = "ip saddr @s "
	if a.Link == nil {
		return []string{src + "counter drop"}
	}
	var rules []string
	for _, port := range planePorts(a.Link.Plane) {
		for _, effect := range linkEffects(a.Link) {
			rules = append(rules, src+port+effect)
		}
	}
	return rules
}

// planePorts returns the matches for the traffic of a plane.
func planePorts(p scenario.Plane) []string {
	switch p {
	case "gossip":
		return []string{fmt.Sprintf("meta l4proto { tcp, udp } th dport %d ", gossipPort), fmt.Sprintf("meta l4proto { tcp, udp } th sport %d th dport != %d ", gossipPort, gossipPort)}
	case "control":
		return []string{fmt.Sprintf("tcp dport %d ", dataPort), fmt.Sprintf("tcp sport %d ", dataPort)}
	case "link":
		return []string{fmt.Sprintf("udp dport %d ", dataPort)}
	}
	return []string{""}
}

// linkEffects returns the verdicts for a link's faults.
func linkEffects(l *scenario.Link) []string {
	var all []string
	share := func(p scenario.Percent) string {
		if p >= 100 {
			return ""
		}
		return fmt.Sprintf("numgen random mod 100000 < %d ", int(math.Round(float64(p)*1000)))
	}
	if l.Cut {
		all = append(all, "counter drop")
	}
	if l.BlockUDP {
		all = append(all, "meta l4proto udp counter drop")
	}
	if l.Drop > 0 {
		all = append(all, share(l.Drop)+"counter drop")
	}
	if l.MTU > 0 { // of the payload of UDP; headers are 28 bytes
		all = append(all, fmt.Sprintf("meta length > %d counter drop", l.MTU+28))
	}
	if l.Corrupt > 0 { // the thirteenth byte of the payload, behind headers that are checked otherwise
		all = append(all, "meta l4proto udp "+share(l.Corrupt)+"@th,160,8 set 0xff counter")
	}
	return all
}

// links are the directed links that an action touches.
func links(a scenario.Action) iter.Seq2[int, int] {
	return func(yield func(from, to int) bool) {
		for _, w := range a.Touches().Ways {
			for _, from := range w.From {
				for _, to := range w.To {
					if from != to && !yield(from, to) {
						return
					}
				}
			}
		}
	}
}

func tableName(a scenario.Action) string { return fmt.Sprintf("chaos%d", a.ID) }

// apply puts an action in place at every receiver of its links.
func (f *filter) apply(ctx context.Context, a scenario.Action) (effect, error) {
	senders := make(map[int][]int) // by receiver
	for from, to := range links(a) {
		if !slices.Contains(senders[to], from) {
			senders[to] = append(senders[to], from)
		}
	}
	left := time.Duration(0)
	if a.Until != 0 {
		left = (a.Until - a.At).Time()
	}
	script := func(node int) string {
		return fmt.Sprintf("table inet %s { %s chain c { type filter hook prerouting priority -300; %s; }; }",
			tableName(a), f.senders(senders[node], left), strings.Join(f.rules(a), "; "))
	}
	return f.install(ctx, a, slices.Sorted(maps.Keys(senders)), script)
}

// applyPaths breaks paths at the nodes of both ends.
func (f *filter) applyPaths(ctx context.Context, a scenario.Action, paths []pathEnds) (effect, error) {
	rules := make(map[int][]string) // by receiver
	for _, p := range paths {
		rules[p.toNode] = append(rules[p.toNode], pathRule(a.Path.Do, p.from, p.to))
		if a.Path.Do != scenario.PathOneWay {
			rules[p.fromNode] = append(rules[p.fromNode], pathRule(a.Path.Do, p.to, p.from))
		}
	}
	script := func(node int) string {
		return fmt.Sprintf("table inet %s { chain c { type filter hook prerouting priority -300; %s; }; }", tableName(a), strings.Join(rules[node], "; "))
	}
	return f.install(ctx, a, slices.Sorted(maps.Keys(rules)), script)
}

// fullPacket is how long a packet is at least that does not pass where full ones vanish.
const fullPacket = 600

// pathRule returns the kernel's rule for the packets of one direction of a path.
func pathRule(do scenario.PathDo, from, to netip.AddrPort) string {
	effect := "counter drop"
	switch do {
	case scenario.PathFull:
		effect = fmt.Sprintf("meta length > %d counter drop", fullPacket)
	case scenario.PathReset:
		effect = "counter reject with tcp reset"
	}
	return fmt.Sprintf("ip saddr %s tcp sport %d ip daddr %s tcp dport %d %s", from.Addr(), from.Port(), to.Addr(), to.Port(), effect)
}

// reject makes the kernels of nodes answer every packet with an error.
func (f *filter) reject(ctx context.Context, a scenario.Action) (effect, error) {
	return f.install(ctx, a, a.Network.Node.IDs(), func(int) string {
		return fmt.Sprintf("table inet %s { chain c { type filter hook input priority -300; iif != lo counter reject with icmp port-unreachable; }; }", tableName(a))
	})
}

// install loads a script in the namespaces of nodes, all at once, and returns the
// effect, which removes it and counts.
func (f *filter) install(ctx context.Context, a scenario.Action, nodes []int, script func(int) string) (effect, error) {
	err := everywhere(nodes, func(node int) error { return f.nft(ctx, node, script(node)) })
	e := undoBy(func(ctx context.Context) (uint64, string, error) {
		var mu sync.Mutex
		var packets uint64
		err := everywhere(nodes, func(node int) error {
			n, err := f.packets(ctx, node, tableName(a))
			mu.Lock()
			packets += n
			mu.Unlock()
			return errors.Join(err, f.nft(ctx, node, "delete table "+f.family+" "+tableName(a)))
		})
		return packets, fmt.Sprintf("met %d packets", packets), err
	})
	return e, err
}

// everywhere does something for all of a list at once.
func everywhere[T any](all []T, do func(T) error) error {
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, one := range all {
		wg.Go(func() { errs[i] = do(one) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (f *filter) nft(ctx context.Context, node int, script string) error {
	argv := append(f.enter(node), "nft", script)
	return command(ctx, argv[0], argv[1:]...)
}

// packets returns how many packets the rules of a table have met.
func (f *filter) packets(ctx context.Context, node int, table string) (uint64, error) {
	argv := append(f.enter(node), "nft", "-j", "list", "table", f.family, table)
	text, err := output(ctx, argv[0], argv[1:]...)
	if err != nil {
		return 0, err
	}
	return countPackets(text)
}

// countPackets adds up the counters in nft's JSON listing.
func countPackets(text []byte) (uint64, error) {
	var list struct {
		Nftables []struct {
			Rule struct {
				Expr []struct {
					Counter struct{ Packets uint64 }
				}
			}
		}
	}
	if err := json.Unmarshal(text, &list); err != nil {
		return 0, fmt.Errorf("nft: %w", err)
	}
	var sum uint64
	for _, item := range list.Nftables {
		for _, e := range item.Rule.Expr {
			sum += e.Counter.Packets
		}
	}
	return sum, nil
}
