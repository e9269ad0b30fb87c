package check_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/lab/history"
	"github.com/fabricd/fabricd/internal/lab/scenario"
)

// A model makes histories of clusters that do everything right: nodes that talk,
// die, come back, stand still for a moment, and end. One record follows another
// with a little time between them, so a history is in order as it is made.
type model struct {
	rng     *rand.Rand
	now     int64
	records []history.Record
	seq     map[history.Source]uint64
	nodes   []*modelNode
	conns   []*modelConn
	fault   int
	call    uint64
	window  uint64
}

type modelNode struct {
	node        int
	run         int // of the daemon
	incarnation addr.Incarnation
	uuid        addr.UUID
	alive       bool
	knows       map[int]addr.Incarnation // by node
}

// A modelConn is a connection with a stream and RMA from its client to its
// server, and a parked receive at its client.
type modelConn struct {
	nonce          uint64
	client, server *modelNode
	cl, sl         addr.Incarnation
	sent, received int64
	offered        int64
	sentAt         int64 // when something was sent last
	op, fenced     uint64
	signalled      []uint64
	window         uint64
	parked         uint64
	open           bool
}

const (
	ms  = int64(time.Millisecond)
	sec = int64(time.Second)
)

func newModel(seed uint64, nodes int) *model {
	m := &model{rng: rand.New(rand.NewPCG(seed, 1)), seq: map[history.Source]uint64{}}
	m.put(history.Lab, &history.Begin{Version: history.Version, Scenario: "model", Seed: seed, Lab: "sim", Detection: "normal", Nodes: nodes, Duration: 60 * sec})
	for node := range nodes {
		n := &modelNode{node: node, uuid: addr.UUID{byte(node + 1)}, knows: map[int]addr.Incarnation{}}
		m.nodes = append(m.nodes, n)
		m.put(history.Lab, &history.Process{Target: history.App(node, 1), Did: history.DidStart})
		m.start(n)
	}
	for _, n := range m.nodes {
		m.resources(n, history.PhaseBaseline)
	}
	return m
}

// put adds a record a little later.
func (m *model) put(s history.Source, b history.Body) {
	m.now += int64(m.rng.IntN(20_000)) + 1000
	m.seq[s]++
	m.records = append(m.records, history.Record{At: m.now, Source: s, Seq: m.seq[s], Body: b})
}

func (m *model) app(n *modelNode) history.Source    { return history.App(n.node, 1) }
func (m *model) daemon(n *modelNode) history.Source { return history.Daemon(n.node, n.run) }

// start starts the daemon of a node.
func (m *model) start(n *modelNode) {
	n.run++
	m.put(history.Lab, &history.Process{Target: m.daemon(n), Did: history.DidStart})
	m.rejoin(n)
}

// rejoin gives a node its next incarnation, which is reported to all.
func (m *model) rejoin(n *modelNode) {
	n.incarnation = addr.Incarnation{Node: addr.NodeID(n.node), Generation: n.incarnation.Generation + 1}
	n.alive = true
	m.put(m.app(n), &history.Event{What: history.EventSelf, Observer: n.incarnation, Subject: n.incarnation, UUID: n.uuid})
	view := &history.View{Observer: n.incarnation, Live: []history.Member{{Incarnation: n.incarnation, UUID: n.uuid}}}
	n.knows = map[int]addr.Incarnation{}
	for _, o := range m.nodes {
		if o != n && o.alive {
			view.Live = append(view.Live, history.Member{Incarnation: o.incarnation, UUID: o.uuid})
			n.knows[o.node] = o.incarnation
		}
	}
	m.put(m.app(n), view)
	for _, o := range m.others(n) {
		m.put(m.app(o), &history.Event{What: history.EventAdded, Observer: o.incarnation, Subject: n.incarnation, UUID: n.uuid})
		o.knows[n.node] = n.incarnation
	}
}

func (m *model) others(n *modelNode) []*modelNode {
	var all []*modelNode
	for _, o := range m.nodes {
		if o != n && o.alive {
			all = append(all, o)
		}
	}
	return all
}

func (m *model) resources(n *modelNode, p history.Phase) {
	m.put(history.Lab, &history.Resources{Target: m.daemon(n), Phase: p,
		Count: map[string]int64{"fds": 20, "goroutines": 30, "memfds": 0, "windows": 0, "conns": 0, "ports": 1, "links": int64(len(m.nodes) - 1), "rss": 20 << 20}})
}

// connect opens a connection, with a window at the server.
func (m *model) connect(client, server *modelNode) *modelConn {
	c := &modelConn{nonce: m.rng.Uint64() | 1, client: client, server: server, cl: client.incarnation, sl: server.incarnation, open: true}
	began := m.now
	m.call++
	call := history.Call{ID: m.call, Name: "connect", Began: began, Deadline: began + 10*sec, Conn: c.nonce, Side: history.Client, Peer: c.sl, To: &server.node}
	m.put(m.app(client), &call)
	m.put(m.app(server), &history.Opened{ConnEnd: c.end(history.Server), Local: c.sl, Remote: c.cl})
	m.put(m.app(client), &history.Return{Call: call})
	m.put(m.app(client), &history.Opened{ConnEnd: c.end(history.Client), Local: c.cl, Remote: c.sl})
	m.window++
	c.window = m.window
	m.put(m.app(server), &history.Window{ConnEnd: c.end(history.Server), ID: c.window, Owner: c.sl, Len: 65536})
	m.call++
	c.parked = m.call
	m.put(m.app(client), &history.Call{ID: c.parked, Name: "recv", Began: m.now, Conn: c.nonce, Side: history.Client, Peer: c.sl, Idle: true})
	m.conns = append(m.conns, c)
	return c
}

func (c *modelConn) end(s history.Side) history.ConnEnd {
	return history.ConnEnd{Conn: c.nonce, Side: s}
}

// talk does something on a connection.
func (m *model) talk(c *modelConn) {
	client, server := m.app(c.client), m.app(c.server)
	ce, se := c.end(history.Client), c.end(history.Server)
	switch m.rng.IntN(7) {
	case 0, 1: // a message
		m.send(c, int64(m.rng.IntN(4000)+1))
		fallthrough
	case 2:
		if c.received < c.sent {
			n := 1 + m.rng.Int64N(c.sent-c.received)
			m.receive(c, n)
		}
	case 3: // an operation
		c.op++
		m.put(client, &history.RMA{ConnEnd: ce, Op: c.op, Name: "vwriteto", Window: c.window, Len: 64})
		m.put(client, &history.RMADone{ConnEnd: ce, Op: c.op})
	case 4: // a fence, and the view of the target
		if c.op > 0 {
			m.call++
			m.put(client, &history.Return{Call: history.Call{ID: m.call, Name: "fence_wait", Began: m.now, Conn: c.nonce, Side: history.Client, Peer: c.sl}})
			m.put(client, &history.Fenced{ConnEnd: ce, Upto: c.op})
			c.fenced = c.op
			m.put(server, &history.Checked{ConnEnd: se, Upto: c.fenced})
		}
	case 5: // a signal
		if c.op > 0 && !slices.Contains(c.signalled, c.op) {
			m.put(client, &history.Signal{ConnEnd: ce, Value: c.op})
			c.signalled = append(c.signalled, c.op)
			m.put(server, &history.SignalSeen{ConnEnd: se, Value: c.op})
		}
	case 6:
		m.scan(c, c.op)
	}
}

// send lets the client send n bytes.
func (m *model) send(c *modelConn, n int64) {
	m.put(m.app(c.client), &history.Offered{ConnEnd: c.end(history.Client), Range: history.Range{From: c.offered, To: c.offered + n}})
	c.offered += n
	m.put(m.app(c.client), &history.Sent{ConnEnd: c.end(history.Client), Range: history.Range{From: c.sent, To: c.sent + n}})
	c.sent += n
	c.sentAt = m.now
}

// receive lets the server receive n bytes.
func (m *model) receive(c *modelConn, n int64) {
	m.put(m.app(c.server), &history.Received{ConnEnd: c.end(history.Server), Range: history.Range{From: c.received, To: c.received + n}})
	c.received += n
}

// deliver lets everything arrive that was sent longer ago than some time.
func (m *model) deliver(ago int64) {
	for _, c := range m.conns {
		if c.open && c.received < c.sent && m.now-c.sentAt >= ago {
			m.receive(c, c.sent-c.received)
		}
	}
}

func (m *model) scan(c *modelConn, sum uint64) {
	s := &history.Scan{ID: c.window, Words: 8192, Sum: sum + 1}
	if c.op > 0 {
		s.Writers = []history.WindowWriter{{Conn: c.nonce, Incarnation: c.cl, First: 1, Last: c.op, Words: 8}}
	}
	m.put(m.app(c.server), s)
}

// close closes a connection in order: everything arrives.
func (m *model) close(c *modelConn) {
	client, server := m.app(c.client), m.app(c.server)
	m.put(client, &history.Return{Call: history.Call{ID: c.parked, Name: "recv", Began: m.now - 1000, Conn: c.nonce, Side: history.Client, Peer: c.sl, Idle: true}, Status: "EBADF"})
	m.put(client, &history.Closed{ConnEnd: c.end(history.Client), How: history.HowClose})
	if c.received < c.sent {
		m.receive(c, c.sent-c.received)
	}
	m.put(server, &history.Closed{ConnEnd: c.end(history.Server), How: history.HowEOF})
	m.unwindow(c)
}

func (m *model) unwindow(c *modelConn) {
	m.put(m.app(c.server), &history.WindowGone{ID: c.window})
	m.scan(c, c.op)
	m.scan(c, c.op)
	c.open = false
}

// die ends a node and notifies its survivors.
func (m *model) die(n *modelNode) {
	m.fault++
	fault := &history.Fault{ID: m.fault, Step: m.fault - 1, What: "node kill", Nodes: []int{n.node}, Harm: history.HarmRemove}
	m.put(history.Lab, fault)
	m.put(history.Lab, &history.Process{Target: m.daemon(n), Did: history.DidKill})
	m.put(history.Lab, &history.FaultEnd{ID: m.fault, Fired: 1, Proof: "gone"})
	lost := n.incarnation
	n.alive = false
	for _, c := range m.conns {
		if c.open && (c.cl == lost || c.sl == lost) {
			m.lose(c)
		}
	}
	m.deliver(0)
	m.now += ms
	for _, o := range m.others(n) {
		m.put(m.app(o), &history.Event{What: history.EventRemoved, Observer: o.incarnation, Subject: lost, UUID: n.uuid, Reason: "crashed"})
		delete(o.knows, n.node)
	}
}

// lose ends a connection whose one end is gone.
func (m *model) lose(c *modelConn) {
	m.put(m.app(c.client), &history.Return{Call: history.Call{ID: c.parked, Name: "recv", Began: m.now - 1000, Conn: c.nonce, Side: history.Client, Peer: c.sl, Idle: true}, Status: "ECONNRESET"})
	m.call++
	m.put(m.app(c.client), &history.Return{Call: history.Call{ID: m.call, Name: "fence_wait", Began: m.now - 1000, Conn: c.nonce, Side: history.Client, Peer: c.sl}, Status: "ECONNRESET"})
	m.put(m.app(c.client), &history.Fenced{ConnEnd: c.end(history.Client), Upto: c.op, Status: "ECONNRESET"})
	m.put(m.app(c.client), &history.Closed{ConnEnd: c.end(history.Client), How: "ECONNRESET"})
	m.put(m.app(c.server), &history.Closed{ConnEnd: c.end(history.Server), How: "ECONNRESET"})
	m.unwindow(c)
}

// nap freezes a node for a moment that must stay unnoticed.
func (m *model) nap(n *modelNode) {
	m.deliver(0)
	m.fault++
	m.put(history.Lab, &history.Fault{ID: m.fault, Step: m.fault - 1, What: "node stop", Nodes: []int{n.node}, Harm: history.HarmNone})
	m.put(history.Lab, &history.Process{Target: m.daemon(n), Did: history.DidStop})
	m.now += 200 * ms
	m.put(history.Lab, &history.Process{Target: m.daemon(n), Did: history.DidContinue})
	m.put(history.Lab, &history.FaultEnd{ID: m.fault, Fired: 1, Proof: "state T"})
}

// calm lets two nodes talk before anything breaks.
func (m *model) calm() {
	c := m.connect(m.nodes[0], m.nodes[1])
	for range 2 {
		m.send(c, 100)
		m.deliver(0)
		m.now += 500 * ms
	}
}

// live lets the cluster live for some steps, and break.
func (m *model) live(steps int) {
	for range steps {
		m.now += m.rng.Int64N(5 * ms)
		m.deliver(100 * ms)
		a, b := m.nodes[m.rng.IntN(len(m.nodes))], m.nodes[m.rng.IntN(len(m.nodes))]
		switch dice := m.rng.IntN(100); {
		case dice < 20 && a != b && a.alive && b.alive:
			m.connect(a, b)
		case dice < 22 && a.node >= 2 && a.alive:
			m.die(a)
			m.now += 500 * ms
		case dice < 26 && !a.alive:
			m.start(a)
		case dice < 28 && a.alive:
			m.nap(a)
		case dice < 32 && len(m.conns) > 0:
			if c := m.conns[m.rng.IntN(len(m.conns))]; c.open {
				m.close(c)
			}
		default:
			if len(m.conns) > 0 {
				if c := m.conns[m.rng.IntN(len(m.conns))]; c.open {
					m.talk(c)
				}
			}
		}
	}
}

// finish brings everybody back, lets it be quiet, and ends the run.
func (m *model) finish() []history.Record {
	for _, n := range m.nodes {
		if !n.alive {
			m.start(n)
		}
	}
	m.deliver(0)
	m.now += 100 * ms
	for _, a := range m.nodes { // new connections after the last fault
		b := m.nodes[(a.node+1)%len(m.nodes)]
		if a != b {
			m.connect(a, b)
		}
	}
	m.now += 7 * sec
	for _, c := range m.conns {
		if c.open {
			m.close(c)
		}
	}
	for _, n := range m.nodes {
		m.resources(n, history.PhaseEnd)
	}
	m.put(history.Lab, &history.End{Complete: true})
	return m.records
}

// correct returns a history in which everything is right.
func correct(seed uint64, nodes, steps int) []history.Record {
	m := newModel(seed, nodes)
	m.calm()
	m.live(steps)
	if m.fault == 0 { // at least one loss
		m.die(m.nodes[len(m.nodes)-1])
		m.now += 500 * ms
	}
	return m.finish()
}

// renumber makes a history in order again after records were moved, added or
// taken out: the checker needs the order of time, and takes numbers as they are.
func renumber(records []history.Record) []history.Record {
	slices.SortStableFunc(records, func(a, b history.Record) int { return int(max(-1, min(1, a.At-b.At))) })
	seq := map[history.Source]uint64{}
	for i := range records {
		seq[records[i].Source]++
		records[i].Seq = seq[records[i].Source]
	}
	return records
}

// modelScenario is a scenario to which a model's history can be held.
func modelScenario(nodes int, expect string) *scenario.Scenario {
	return modelScenarioOn(scenario.Sim, nodes, expect)
}

func modelScenarioOn(lab scenario.Lab, nodes int, expect string) *scenario.Scenario {
	if expect != "" {
		expect = "expect:\n" + expect
	}
	s, err := scenario.Decode("model", fmt.Appendf(nil, `version: 1
name: model
on: [%s]
cluster: {nodes: %d}
workload: {pairs: ring, messages: {size: 64, rate: 1}, connects: 1}
duration: 60s
%s`, lab, nodes, expect))
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return s
}
