package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The addresses of the two namespaces of wired.
const wiredHost, wiredMember = "10.213.7.1", "10.213.7.2"

// TestConnectionsOutliveLocalSendErrors makes the kernel of one node refuse to send
// for 300 ms, over QUIC: its interface is down, and its firewall drops outgoing packets.
// The connection goes on, and no node event is seen.
func TestConnectionsOutliveLocalSendErrors(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	host, member, inside := l.wired("--providers", "quic")
	watchers := []*watcher{host.watch(), member.watch()}
	both := []*echo{l.pair(host, member), l.pair(member, host)}
	for name, fault := range map[string][2]string{
		"the interface is down": {"ip link set eth0 down", "ip link set eth0 up"},
		"the firewall drops": {"nft add table inet t { chain o { type filter hook output priority 0; drop; }; }",
			"nft delete table inet t"},
	} {
		waiting := make(chan error, len(both))
		inside(fault[0])
		for _, e := range both {
			go func() { waiting <- e.trip() }()
		}
		time.Sleep(300 * time.Millisecond) // the fault itself
		inside(fault[1])
		for range both {
			if err := <-waiting; err != nil {
				t.Errorf("%s: a round trip over it: %v", name, err)
			}
		}
		for _, e := range both {
			if err := e.trip(); err != nil {
				t.Errorf("%s: a round trip behind it: %v", name, err)
			}
		}
	}
	for _, w := range watchers {
		w.saw("")
	}
}

// wired starts a host and a member in network namespaces of their own, with a cable
// between them. inside runs a command in the member's.
func (l *lab) wired(args ...string) (host, member *node, inside func(command string)) {
	l.t.Helper()
	if os.Geteuid() != 0 {
		l.t.Skip("network namespaces need root")
	}
	for _, tool := range []string{"ip", "nft"} {
		if _, err := exec.LookPath(tool); err != nil {
			l.t.Skip(err)
		}
	}
	a, b := fmt.Sprintf("fe2e-%d-a", os.Getpid()), fmt.Sprintf("fe2e-%d-b", os.Getpid())
	l.command("ip netns add " + a)
	l.t.Cleanup(func() { l.command("ip netns del " + a) })
	l.command("ip netns add " + b)
	l.t.Cleanup(func() { l.command("ip netns del " + b) })
	l.command(fmt.Sprintf("ip -n %s link add eth0 type veth peer name eth0 netns %s", a, b))
	for ns, ip := range map[string]string{a: wiredHost, b: wiredMember} {
		l.command(fmt.Sprintf("ip -n %s addr add %s/24 dev eth0", ns, ip))
		l.command(fmt.Sprintf("ip -n %s link set eth0 up", ns))
		l.command(fmt.Sprintf("ip -n %s link set lo up", ns))
	}
	host = l.prepare("host-node", append([]string{"--role", "host", "--bind", wiredHost}, args...)...)
	l.token = filepath.Join(l.dir, "join.token")
	if _, err := l.fabricd("init", "--name", host.name, "--state-dir", host.stateDir(), "--token-file", l.token); err != nil {
		l.t.Fatal(err)
	}
	member = l.prepare("member-1", append([]string{"--join", fmt.Sprintf("%s:%d", wiredHost, host.data),
		"--token-file", l.token, "--bind", wiredMember}, args...)...)
	for ns, n := range map[string]*node{a: host, b: member} {
		n.prefix = []string{"ip", "netns", "exec", ns}
	}
	host.start()
	member.start()
	l.agree(host, member)
	return host, member, func(command string) { l.command("ip netns exec " + b + " " + command) }
}

// command runs a command, whose words are divided by spaces.
func (l *lab) command(line string) {
	l.t.Helper()
	argv := strings.Fields(line)
	if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
		l.t.Fatalf("%s: %v: %s", line, err, out)
	}
}
