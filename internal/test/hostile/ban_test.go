package hostile

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/fabric/addr"
)

// banRuns is how often the figure is measured.
const banRuns = 5

// banPort is where the applications listen that talk with the banned node's.
const banPort fabric.Port = 2051

// attackBanned: a real node is banned while its applications talk with those of all
// others. The figure is the time from the command to the last socket, link,
// connection and window of the banned identity.
func attackBanned(a *arena) error {
	out := a.f.member("outcast")
	out.spare = true
	defer func() { a.f.nodes = slices.DeleteFunc(a.f.nodes, func(m *machine) bool { return m == out }) }()
	a.ends = append(a.ends, out.kill)
	var took, commands []time.Duration
	var errs []error
	for range banRuns {
		t, command, err := a.banOnce(out)
		if err != nil {
			errs = append(errs, err)
			break
		}
		took, commands = append(took, t), append(commands, command)
	}
	if len(took) > 0 {
		slices.Sort(took)
		slices.Sort(commands)
		p50, most := took[len(took)/2], took[len(took)-1]
		a.note("ban at %d nodes, %d runs: command → last socket, link, connection and window dead: p50 %v, max %v; the command returns after %v at most",
			len(a.f.nodes), len(took), p50.Round(time.Millisecond), most.Round(time.Millisecond), commands[len(commands)-1].Round(time.Millisecond))
		if most > tookBack {
			errs = append(errs, fmt.Errorf("a ban took %v", most.Round(time.Millisecond)))
		}
	}
	return errors.Join(errs...)
}

// banOnce lets the node in, has it talk, bans it and allows it again.
func (a *arena) banOnce(out *machine) (took, command time.Duration, err error) {
	if err := a.letIn(out); err != nil {
		return 0, 0, err
	}
	stop, err := a.converse(out)
	if err != nil {
		return 0, 0, err
	}
	defer stop()
	incarnation, sockets := out.incarnation(), out.sockets()
	if err := a.seenAt(out); err != nil {
		return 0, 0, err
	}
	began := time.Now()
	done := make(chan error, 1)
	go func() {
		err := a.operator("nodes", "ban", out.name)
		command = time.Since(began)
		done <- err
	}()
	took, err = a.lastOf(incarnation, sockets, began, done)
	if err != nil {
		return took, command, err
	}
	if err := a.operator("nodes", "allow", out.name); err != nil {
		return took, command, err
	}
	return took, command, nil
}

// letIn starts a node that does not run, and waits until it has an incarnation that
// it had not before.
func (a *arena) letIn(out *machine) error {
	before := out.incarnation()
	if !out.running() {
		if err := out.launch(); err != nil {
			return err
		}
	}
	err := eventually(patience, func() error {
		if err := out.joinedWithin(patience); err != nil {
			return err
		}
		if out.incarnation() == before {
			return fmt.Errorf("%s still says that it is %v", out.name, before)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return a.f.agree(patience)
}

// seenAt waits until every honest node has a link, connections and windows with m, and
// m has TCP connections.
func (a *arena) seenAt(m *machine) error {
	if len(m.sockets()) == 0 {
		return fmt.Errorf("%s has no TCP connection", m.name)
	}
	for _, o := range a.f.honest() {
		err := eventually(patience, func() error {
			t, err := o.traces(m.incarnation())
			if err == nil && (t.links == 0 || t.conns == 0 || t.windows == 0) {
				err = fmt.Errorf("%s has %+v with %s", o.name, t, m.name)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// lastOf returns how long after began the last trace of incarnation was gone at every
// honest node. done brings the end of the command.
func (a *arena) lastOf(incarnation addr.Incarnation, sockets map[string]bool, began time.Time, done <-chan error) (time.Duration, error) {
	var mu sync.Mutex
	var last time.Duration
	var errs []error
	var work sync.WaitGroup
	watch := func(what string, left func() (int, error)) {
		work.Go(func() {
			n, err := 1, error(nil)
			for n > 0 && time.Since(began) < 5*time.Second {
				if n, err = left(); err != nil {
					break
				}
				time.Sleep(20 * time.Millisecond)
			}
			mu.Lock()
			defer mu.Unlock()
			last = max(last, time.Since(began))
			if n > 0 || err != nil {
				errs = append(errs, fmt.Errorf("5 s after the ban: %s: %d left, %v", what, n, err))
			}
		})
	}
	for _, m := range a.f.honest() {
		watch(m.name, func() (int, error) {
			t, err := m.traces(incarnation)
			return t.links + t.conns + t.windows, err
		})
	}
	watch("sockets", func() (int, error) { return established(sockets) })
	err := <-done
	work.Wait()
	return last, errors.Join(append(errs, err)...)
}

// traces are the numbers of objects that a node holds for an incarnation.
type traces struct{ links, conns, windows int }

// traces counts the objects that a node holds for incarnation.
func (m *machine) traces(incarnation addr.Incarnation) (n traces, err error) {
	ctx, cancel := during(2 * time.Second)
	defer cancel()
	for _, table := range []string{"links", "conns", "windows"} {
		text, err := m.admin.Get(ctx, table)
		if err != nil {
			return n, err
		}
		var rows map[string][]struct {
			Node        addr.NodeID
			Generation  addr.Generation
			Incarnation string `json:"life"`
			State       string
			Remote      string
		}
		if err := json.Unmarshal(text, &rows); err != nil {
			return n, err
		}
		for _, r := range rows[table] {
			switch {
			case table == "links" && r.Node == incarnation.Node && r.Generation == incarnation.Generation:
				n.links++
			case table == "conns" && r.Incarnation == incarnation.String() && r.State == "connected":
				n.conns++
			case table == "windows" && strings.HasPrefix(r.Remote, fmt.Sprintf("%d:", incarnation.Node)):
				n.windows++
			}
		}
	}
	return n, nil
}

// A tcpRow is one established connection of the kernel's table.
type tcpRow struct{ local, remote, inode string }

// tcpTable returns the established connections.
func tcpTable() (rows []tcpRow, err error) {
	b, err := os.ReadFile("/proc/net/tcp")
	for line := range strings.Lines(string(b)) {
		if field := strings.Fields(line); len(field) > 9 && field[3] == "01" { // TCP_ESTABLISHED
			rows = append(rows, tcpRow{field[1], field[2], field[9]})
		}
	}
	return rows, err
}

// sockets returns the daemon's connections with others of its fleet, as the table
// names them from either end.
func (m *machine) sockets() map[string]bool {
	own := map[string]bool{}
	links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", m.pid())) // a pattern that is right
	for _, l := range links {
		if to, err := os.Readlink(l); err == nil && strings.HasPrefix(to, "socket:[") {
			own[strings.Trim(strings.TrimPrefix(to, "socket:"), "[]")] = true
		}
	}
	found := map[string]bool{}
	rows, _ := tcpTable() // none: the caller has found nothing
	for _, r := range rows {
		if own[r.inode] && addressOf(r.remote) == m.f.ip {
			found[r.local+" "+r.remote], found[r.remote+" "+r.local] = true, true
		}
	}
	return found
}

// addressOf returns the IPv4 address of "0100007F:1F90".
func addressOf(s string) string {
	var n uint32
	if _, err := fmt.Sscanf(s[:strings.IndexByte(s, ':')], "%X", &n); err != nil {
		return ""
	}
	return netip.AddrFrom4([4]byte(binary.LittleEndian.AppendUint32(nil, n))).String()
}

// established counts which of sockets are.
func established(sockets map[string]bool) (n int, err error) {
	rows, err := tcpTable()
	for _, r := range rows {
		if sockets[r.local+" "+r.remote] {
			n++
		}
	}
	return n, err
}

// converse connects an application of m with one of every honest node; both ends
// have a window, and messages and writes go all the while. stop ends them.
func (a *arena) converse(m *machine) (stop func(), err error) {
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	var nodes []*fabric.Node
	stop = func() {
		cancel()
		for _, n := range nodes {
			_ = n.Close() // its daemon may have ended the session
		}
		work.Wait()
	}
	attach := func(at *machine) (*fabric.Node, error) {
		n, err := fabric.Attach(ctx, at.socket())
		if err == nil {
			nodes = append(nodes, n)
		}
		return n, err
	}
	own, err := attach(m)
	if err != nil {
		stop()
		return nil, err
	}
	for _, peer := range a.f.honest() {
		n, err := attach(peer)
		var l *fabric.Listener
		if err == nil {
			l, err = n.Listen(banPort)
		}
		if err != nil {
			stop()
			return nil, fmt.Errorf("an application of %s: %w", peer.name, err)
		}
		work.Go(func() {
			if c, err := l.AcceptConn(ctx); err == nil {
				window(n, c.Endpoint())
				echo(ctx, c.Endpoint())
			}
		})
		dialing, cancelDial := during(patience)
		c, err := own.DialAddr(dialing, fabric.Addr{Node: peer.incarnation().Node, Port: banPort})
		cancelDial()
		if err != nil {
			stop()
			return nil, fmt.Errorf("%s connects with %s: %w", m.name, peer.name, err)
		}
		window(own, c.Endpoint())
		work.Go(func() { chatter(ctx, c.Endpoint()) })
	}
	return stop, nil
}

// window registers a page of new memory. Errors are ignored: they mean that the connection has ended.
func window(n *fabric.Node, ep *fabric.Endpoint) {
	if mem, err := n.Alloc(4096); err == nil {
		_, _ = ep.Register(mem.Bytes(), 0, fabric.ProtRead|fabric.ProtWrite, 0)
	}
}

// chatter sends and receives until the connection ends.
func chatter(ctx context.Context, ep *fabric.Endpoint) {
	p := make([]byte, 64)
	for ctx.Err() == nil {
		if _, err := ep.Send(ctx, p); err != nil {
			return
		}
		if _, err := ep.Recv(ctx, p); err != nil {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}
