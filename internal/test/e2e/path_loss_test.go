package e2e

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/fabric/addr"
)

// stamp fills p with words that say when it was sent.
func stamp(p []byte, at time.Time) {
	for i := 0; i+8 <= len(p); i += 8 {
		binary.BigEndian.PutUint64(p[i:], uint64(at.UnixNano()))
	}
}

// torrent is an application that sends on args[2] connections to an address, with a pause
// of args[3] behind each message, and stamps its messages, until it is killed or they end.
func torrent(args []string) error {
	to, err := addr.Parse(args[1])
	if err != nil {
		return err
	}
	var count int
	if _, err := fmt.Sscan(args[2], &count); err != nil {
		return err
	}
	pause, err := time.ParseDuration(args[3])
	if err != nil {
		return err
	}
	ctx := context.Background()
	n, err := fabric.Attach(ctx, args[0])
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	for range count {
		c, err := n.DialAddr(ctx, to)
		if err != nil {
			return err
		}
		wg.Go(func() {
			for p := make([]byte, 16<<10); err == nil; {
				stamp(p, time.Now())
				_, err = c.Endpoint().Send(ctx, p)
				time.Sleep(pause)
			}
		})
	}
	wg.Wait()
	fmt.Println("ended")
	select {} // its node may learn that it is alive
}

// A mouth is an application's end of a connection that it reads at its own pace. One
// goroutine reads, and looks before each call whether NODE_REMOVED was delivered.
type mouth struct {
	conn *fabric.Conn
	slow bool          // it leaves most arrived bytes unread
	done chan struct{} // closed at its error
	got  atomic.Int64  // bytes

	// Read after done.
	late   int    // bytes of calls that began after NODE_REMOVED was delivered: they had arrived
	newest int64  // the highest stamp
	part   []byte // of a stamp
	ended  time.Time
	err    error
}

// look reads the stamps in received bytes.
func (m *mouth) look(p []byte) {
	m.part = append(m.part, p...)
	for len(m.part) >= 8 {
		m.newest = max(m.newest, int64(binary.BigEndian.Uint64(m.part)))
		m.part = m.part[8:]
	}
}

func (m *mouth) read(removed *atomic.Bool) {
	defer close(m.done)
	size := 64 << 10
	if m.slow {
		size = 512
	}
	p := make([]byte, size)
	for {
		after := removed.Load() // before the call
		n, err := m.conn.Endpoint().Recv(context.Background(), p)
		if after {
			m.late += n
		}
		m.got.Add(int64(n))
		m.look(p[:n])
		if err != nil {
			m.ended, m.err = time.Now(), err
			return
		}
		if m.slow && !after { // the rest is asked for at once
			time.Sleep(2 * time.Millisecond)
		}
	}
}

// A feast is an application that receives from another one through paths, and the events
// of its node.
type feast struct {
	l         *lab
	app       *fabric.Node
	mouths    []*mouth
	removed   atomic.Bool
	removedAt atomic.Int64 // UnixNano
	source    *application
}

// feastAt lets an application at eater receive count torrents from one at feeder, half
// of them slowly if they have no pause, and waits until all go through paths.
func (l *lab) feastAt(eater, feeder *node, count int, pause time.Duration) *feast {
	t := l.t
	t.Helper()
	f := &feast{l: l, app: eater.attach()}
	lost := feeder.incarnation()
	t.Cleanup(f.app.OnEvent(func(ev fabric.Event) {
		if ev.Kind == fabric.NodeRemoved && (fabric.Incarnation{Node: ev.Node, Generation: ev.Generation}) == lost {
			f.removedAt.Store(time.Now().UnixNano())
			f.removed.Store(true)
		}
	}))
	listener, err := f.app.Listen(0)
	if err != nil {
		t.Fatal(err)
	}
	f.source = l.application(fmt.Sprintf("torrent-%d", time.Now().UnixNano()), "torrent", feeder.socket(), listener.Addr().String(), fmt.Sprint(count), pause.String())
	for i := range count {
		c, err := listener.AcceptConn(within(t, stepLimit))
		if err != nil {
			t.Fatal(err)
		}
		m := &mouth{conn: c, slow: pause == 0 && i%2 == 1, done: make(chan struct{})}
		f.mouths = append(f.mouths, m)
		go m.read(&f.removed)
	}
	eventually(t, stepLimit, "all go through paths", func() error { return eater.onPaths(count) })
	for _, m := range f.mouths { // and the path carries them
		before := m.got.Load()
		eventually(t, stepLimit, "bytes come through the path", func() error {
			if m.got.Load() == before {
				return errors.New("none")
			}
			return nil
		})
	}
	return f
}

// onPaths fails unless n has so many connections that went over to a path.
func (n *node) onPaths(count int) error {
	ctx, cancel := context.WithTimeout(context.Background(), stepLimit)
	defer cancel()
	text, err := n.admin.Get(ctx, "conns")
	if err != nil {
		return err
	}
	var all struct {
		Conns []struct{ Path, Why string }
	}
	if err := json.Unmarshal(text, &all); err != nil {
		return err
	}
	got, why := 0, ""
	for _, c := range all.Conns {
		if c.Path == "path" {
			got++
		} else {
			why = c.Why
		}
	}
	if got != count {
		return fmt.Errorf("%d connections have gone over to a path, want %d; why not: %s", got, count, why)
	}
	return nil
}

// check waits for the end of every connection, and fails t if one has received a byte that
// was sent after NODE_REMOVED. It returns how long after the loss each ended, and how many
// bytes that had arrived were received after NODE_REMOVED.
func (f *feast) check(loss time.Time, limit time.Duration) (took []time.Duration, late int) {
	t := f.l.t
	t.Helper()
	over := time.After(limit)
	for i, m := range f.mouths {
		select {
		case <-m.done:
		case <-over:
			t.Fatalf("connection %d has not ended %v after the loss", i, limit)
		}
		took = append(took, m.ended.Sub(loss))
		if !errors.Is(m.err, syscall.ECONNRESET) {
			t.Errorf("connection %d ended with %v, want ECONNRESET", i, m.err)
		}
		if n, err := m.conn.Endpoint().TryRecv(make([]byte, 1)); n != 0 || !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("connection %d: a receive behind its end: %d, %v", i, n, err)
		}
	}
	eventually(t, limit, "NODE_REMOVED", func() error {
		if !f.removed.Load() {
			return errors.New("not yet")
		}
		return nil
	})
	for i, m := range f.mouths {
		if after := m.newest - f.removedAt.Load(); after > 0 {
			t.Errorf("connection %d (slow: %v) received bytes that were sent %v after NODE_REMOVED", i, m.slow, time.Duration(after))
		}
		late += m.late
	}
	return took, late
}

// A disaster is a way in which a node is lost to the others.
type disaster struct {
	name   string
	rounds int
	pause  time.Duration // between messages
	bound  time.Duration // from the loss to the error
	do     func(host, victim *node) time.Time
	undo   func(host, victim *node)
	args   []string // of the nodes
}

// hard is by how much more than its bound a loss may take in a test, on a machine that
// does other things too.
const hard = 2 * time.Second

// TestNothingSentAfterNodeRemovedIsReceived loses a node in several ways while its
// application sends at full speed through paths, and goes on where its fabricd stands still
// or is banned. No byte that was sent after NODE_REMOVED was delivered is ever received;
// earlier bytes may be (I2), and then ECONNRESET comes.
func TestNothingSentAfterNodeRemovedIsReceived(t *testing.T) {
	for _, x := range []disaster{
		{"kill", scale(4, 2, 40), 0, 50 * time.Millisecond, killNode, startNode, nil},
		{"silent", scale(2, 1, 10), 0, 2 * time.Second, stopNode, contNode, nil},
		{"ban", scale(3, 1, 20), 0, time.Second, banNode, allowNode, nil},
		{"removal", scale(3, 1, 20), 0, time.Second, removeNode, replaceNode, nil},
	} {
		t.Run(x.name, func(t *testing.T) { newLab(t).lose(x) })
	}
}

// TestLossesEndPathsInTime measures from the loss of a node to the error of a receive on a
// path that carries little.
func TestLossesEndPathsInTime(t *testing.T) {
	for _, x := range []disaster{
		{"kill", scale(8, 3, 100), 5 * time.Millisecond, 50 * time.Millisecond, killNode, startNode, nil},
		{"silent, fast", scale(2, 1, 10), 5 * time.Millisecond, 2 * time.Second, stopNode, contNode, nil},
		{"silent, normal", scale(1, 1, 10), 5 * time.Millisecond, 3 * time.Second, stopNode, contNode, []string{"--detection", "normal"}},
		{"ban", scale(3, 1, 20), 5 * time.Millisecond, time.Second, banNode, allowNode, nil},
	} {
		t.Run(x.name, func(t *testing.T) { newLab(t).lose(x) })
	}
}

// lose loses a node as often as x says, and logs how long that took.
func (l *lab) lose(x disaster) {
	t := l.t
	t.Helper()
	nodes := l.cluster(2, append([]string{"--paths", "lazy"}, x.args...)...)
	var took []time.Duration
	late := 0
	for range x.rounds {
		more, n := l.loseOnPaths(nodes, x)
		took, late = append(took, more...), late+n
	}
	slices.Sort(took)
	n := len(took)
	t.Logf("%s: from the loss to the error on %d paths: p50 %v, p99 %v, max %v; the bound is %v; %d bytes that had arrived were read after NODE_REMOVED",
		x.name, n, took[n/2], took[(n*99)/100], took[n-1], x.bound, late)
}

// loseOnPaths loses the last node once.
func (l *lab) loseOnPaths(nodes []*node, x disaster) ([]time.Duration, int) {
	t := l.t
	t.Helper()
	host, eater, victim := nodes[0], nodes[1], nodes[2]
	old := victim.incarnation()
	f := l.feastAt(eater, victim, 6, x.pause)
	at := x.do(host, victim)
	took, late := f.check(at, x.bound+hard)
	f.source.kill()
	for _, m := range f.mouths {
		m.conn.Close()
	}
	if err := f.app.Close(); err != nil {
		t.Error(err)
	}
	x.undo(host, victim)
	eventually(t, stepLimit, "the node comes back", func() error {
		st, err := victim.status()
		if err == nil && (st.State != "joined" || st.Generation == old.Generation && st.ID == old.Node) {
			err = fmt.Errorf("it is %s: %s", st.State, st.Detail)
		}
		victim.place = st
		return err
	})
	l.agree(nodes...)
	return took, late
}

func killNode(_, victim *node) time.Time { return victim.kill() }

func startNode(_, victim *node) { victim.start() }

func stopNode(_, victim *node) time.Time {
	at := time.Now()
	victim.stop(victim.l.t)
	return at
}

func contNode(_, victim *node) { victim.cont(victim.l.t) }

func banNode(host, victim *node) time.Time {
	at := time.Now()
	if _, err := host.admin.BanNode(within(host.l.t, stepLimit), victim.name, "", stepLimit); err != nil {
		host.l.t.Fatal(err)
	}
	return at
}

func allowNode(host, victim *node) {
	if _, err := host.admin.AllowNode(within(host.l.t, stepLimit), victim.name, false, stepLimit); err != nil {
		host.l.t.Fatal(err)
	}
}

func removeNode(host, victim *node) time.Time {
	at := time.Now()
	if _, err := host.admin.RemoveNode(within(host.l.t, stepLimit), victim.name, stepLimit); err != nil {
		host.l.t.Fatal(err)
	}
	return at
}

// replaceNode lets another machine come in the place of one that was removed.
func replaceNode(_, victim *node) {
	victim.kill()
	if err := os.RemoveAll(victim.stateDir()); err != nil {
		victim.l.t.Fatal(err)
	}
	victim.start()
}
