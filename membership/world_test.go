package membership

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/test/bubble"
	"github.com/fabricd/fabricd/internal/test/netsim"
	"github.com/fabricd/fabricd/membership/control"
	"github.com/fabricd/fabricd/membership/gossip"
	"github.com/fabricd/fabricd/membership/state"
	"github.com/fabricd/fabricd/membership/trust"
	"github.com/fabricd/fabricd/membership/verdict"
)

// A world is a cluster of whole agents on a simulated network, in a bubble:
// real memberlist, real TLS, real state directories.
type world struct {
	t     *testing.T
	net   *netsim.Network
	dir   string
	token trust.Token
	all   []*node
	every []*node // also those of earlier starts
}

// A node is one start of one fabricd, at 10.0.0.i.
type node struct {
	w  *world
	i  int
	st *state.State
	a  *Agent

	mu     sync.Mutex
	events []stamped
	log    bytes.Buffer
}

type stamped struct {
	at time.Time
	Event
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func ip(i int) string         { return fmt.Sprintf("10.0.0.%d", i) }
func dataAddr(i int) string   { return ip(i) + ":7946" }
func gossipAddr(i int) string { return ip(i) + ":7947" }

// inWorld runs f in a bubble with a new world, and ends everything after it.
func inWorld(t *testing.T, f func(t *testing.T, w *world)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		w := &world{t: t, net: netsim.New(1), dir: t.TempDir()}
		w.net.SetDefaultRules(netsim.Rules{Delay: 250 * time.Microsecond})
		f(t, w)
		for _, n := range w.every {
			n.a.Close()
			n.st.Close()
		}
		w.net.Close()
		time.Sleep(20 * time.Second) // memberlist's probes end by their own timers
		synctest.Wait()
	})
}

// host makes the cluster and starts its host at 10.0.0.1.
func (w *world) host(change ...func(*Config)) *node {
	w.t.Helper()
	st, token, err := Init(filepath.Join(w.dir, "1"), state.InitOptions{Name: "n1"}, trust.TokenOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	w.token = token
	return w.start(1, st, change...)
}

// join makes the state directory of node i, joins with the token and starts.
func (w *world) join(i int, change ...func(*Config)) *node {
	w.t.Helper()
	st := must(state.Prepare(filepath.Join(w.dir, fmt.Sprint(i)), fmt.Sprintf("n%d", i), state.Options{}))
	if err := Join(w.t.Context(), w.joinConfig(i, st, w.token)); err != nil {
		w.t.Fatal(err)
	}
	return w.start(i, st, change...)
}

func (w *world) joinConfig(i int, st *state.State, token trust.Token) JoinConfig {
	return JoinConfig{State: st, Token: token, Addresses: []string{dataAddr(1)}, Dial: w.dial(i), Log: zerolog.Nop()}
}

func (w *world) dial(i int) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, to string) (net.Conn, error) { return w.net.Dial(ctx, ip(i), to) }
}

// again starts node i from its state directory.
func (w *world) again(i int, change ...func(*Config)) *node {
	w.t.Helper()
	return w.start(i, must(state.Open(filepath.Join(w.dir, fmt.Sprint(i)), state.Options{})), change...)
}

func (w *world) config(n *node) Config {
	i := n.i
	return Config{
		State:    n.st,
		Trust:    must(LoadTrust(n.st, time.Now)),
		Node:     NodeConfig{Name: fmt.Sprintf("n%d", i), Addresses: []string{dataAddr(i)}, Providers: []string{"quic"}},
		Listener: must(w.net.Listen(dataAddr(i))),
		Dial:     w.dial(i),
		Seeds:    []string{dataAddr(1)},
		Gossip: GossipConfig{
			Packets: must(w.net.ListenPacket(gossipAddr(i))),
			Streams: must(w.net.Listen(gossipAddr(i))),
			Dial:    w.dial(i),
		},
		Detection: gossip.Fast,
		OnEvent:   n.event,
		Seed:      uint64(i),
		Log:       zerolog.New(n).Level(zerolog.DebugLevel).With().Timestamp().Logger(),
	}
}

func (w *world) start(i int, st *state.State, change ...func(*Config)) *node {
	w.t.Helper()
	n := &node{w: w, i: i, st: st}
	c := w.config(n)
	for _, f := range change {
		f(&c)
	}
	a, err := Start(w.t.Context(), c)
	if err != nil {
		w.t.Fatal(err)
	}
	n.a = a
	w.every = append(w.every, n)
	w.all = slices.DeleteFunc(w.all, func(o *node) bool { return o.i == i })
	w.all = append(w.all, n)
	return n
}

// kill ends a node as kill -9 would.
func (w *world) kill(n *node) {
	w.net.Crash(ip(n.i))
	n.a.Close()
	n.st.Close()
	w.all = slices.DeleteFunc(w.all, func(o *node) bool { return o == n })
}

func (n *node) event(e Event) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.events = append(n.events, stamped{time.Now(), e})
}

// Write takes the log.
func (n *node) Write(p []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.log.Write(p)
}

func (n *node) logged() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.log.String()
}

// since returns the events after a moment, without updates.
func (n *node) since(at time.Time) []stamped {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []stamped
	for _, e := range n.events {
		if e.at.After(at) && e.Kind != verdict.EventUpdated {
			out = append(out, e)
		}
	}
	return out
}

// words writes events as "added 1.1", "removed 2.1 crashed", "self 1.2".
func words(list []stamped) []string {
	var out []string
	for _, e := range list {
		switch e.Kind {
		case verdict.EventAdded:
			out = append(out, "added "+e.Node.Incarnation.String())
		case verdict.EventRemoved:
			out = append(out, "removed "+e.Node.Incarnation.String()+" "+string(e.Reason))
		case verdict.EventSelf:
			out = append(out, "self "+e.Node.Incarnation.String())
		case verdict.EventReset:
			out = append(out, "reset")
		case verdict.EventLocal:
			out = append(out, "local "+e.Node.Incarnation.String())
		case verdict.EventHost:
			out = append(out, "host "+e.Detail)
		}
	}
	return out
}

// removals returns the events of removals in words.
func removals(list []stamped) []string {
	return slices.DeleteFunc(words(list), func(s string) bool { return !strings.HasPrefix(s, "removed ") })
}

func (n *node) incarnation() addr.Incarnation { return n.a.Self().Incarnation }

// within waits until ok holds and returns how long it took; beyond limit it
// fails and shows the logs.
func (w *world) within(limit time.Duration, want string, ok func() bool) time.Duration {
	w.t.Helper()
	began := time.Now()
	for !ok() {
		if time.Since(began) > limit {
			w.t.Errorf("after %v: expected that %s", limit, want)
			for _, n := range w.all {
				var sees []string
				for _, o := range n.a.Nodes() {
					sees = append(sees, o.Incarnation.String()+" "+o.State.String())
				}
				w.t.Logf("node %d as %v sees %v, events %v, last lines of its log:\n%s",
					n.i, n.incarnation(), sees, words(n.since(began)), lastLines(n.logged(), 12))
			}
			break
		}
		time.Sleep(time.Millisecond)
	}
	return time.Since(began)
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(len(lines)-n, 0):], "\n")
}

// mesh reports whether every node has an incarnation and sees exactly the others alive.
func mesh(list []*node) bool {
	for _, n := range list {
		if n.incarnation() == noIncarnation {
			return false
		}
		seen := make(map[addr.Incarnation]verdict.State)
		for _, o := range n.a.Nodes() {
			seen[o.Incarnation] = o.State
		}
		if len(seen) != len(list)-1 {
			return false
		}
		for _, o := range list {
			if o != n && seen[o.incarnation()] != verdict.Alive {
				return false
			}
		}
	}
	return true
}

// cluster starts a host and count-1 nodes and waits for the mesh.
func (w *world) cluster(count int) {
	w.t.Helper()
	w.host()
	for i := 2; i <= count; i++ {
		w.join(i)
	}
	w.within(5*time.Second, "all see all", func() bool { return mesh(w.all) })
	time.Sleep(2 * time.Second) // lifelines and gossip settle
}

func (w *world) node(i int) *node {
	for _, n := range w.all {
		if n.i == i {
			return n
		}
	}
	w.t.Fatalf("node %d does not run", i)
	return nil
}

// isolate cuts node i off from all others, in silence.
func (w *world) isolate(i int) {
	var others []string
	for _, n := range w.all {
		if n.i != i {
			others = append(others, ip(n.i))
		}
	}
	w.net.Partition([]string{ip(i)}, others)
}

// openState opens the state directory of node i.
func openState(w *world, i int) (*state.State, error) {
	return state.Open(filepath.Join(w.dir, fmt.Sprint(i)), state.Options{})
}

// claims returns the identity that an honest node at this end claims.
func claims(end control.End, name, address string) verdict.Identity {
	return verdict.Identity{UUID: end.UUID, Epoch: end.Epoch, Claims: must(verdict.NewClaims(name, []string{address}, []string{"quic"}))}
}
