package engine

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/access"
	"github.com/fabricd/fabricd/internal/core"
)

// PortInfo is one bound port.
type PortInfo struct {
	Port    addr.Port `json:"port"`
	Holders int       `json:"holders"` // endpoints that share it
	State   string    `json:"state"`   // of the listener or the first holder
	PID     int32     `json:"pid"`
	UID     uint32    `json:"uid"`
	Waiting int       `json:"waiting"` // connect requests in the queue
	Backlog int       `json:"backlog"` // how many of them may wait; 0: the port does not listen
	// Overflows are the connects that found the queue full.
	Overflows uint64 `json:"overflows"`
	Refused   uint64 `json:"refused"` // connects to the listener, by access rules
	Access    string `json:"access"`  // the node's rule for the port, or its default
	Allow     string `json:"allow"`   // the callers that the listener allows; empty: those of the rule
}

// ConnInfo is one connection's end at this node.
type ConnInfo struct {
	ID          uint64 `json:"id"`
	State       string `json:"state"`
	Local       string `json:"local"`  // node:port
	Remote      string `json:"remote"` // node:port
	Incarnation string `json:"life"`   // of the peer, node.generation
	Provider    string `json:"provider"`
	PID         int32  `json:"pid"`
	Unread      int    `json:"unread"` // message bytes that wait for the application
	Sent        uint64 `json:"sent"`   // message bytes
	Received    uint64 `json:"received"`
	Windows     int    `json:"windows"`
	// Unsent are message bytes that wait because the peer does not take them, WaitingMS for
	// how long already; 0: the connection waits for nothing.
	Unsent    uint64 `json:"unsent"`
	WaitingMS int64  `json:"waiting_ms"`

	// Path is how the messages get from the application to here: "call" in this process, "socket",
	// or past the node to the other application directly, and then they are not counted: "channel"
	// for a shared-memory path, or "path", which Socket describes. Why is the reason for no faster
	// one.
	Path string `json:"path"`
	Why  string `json:"why"`
	// Socket is the connection's path; nil: it has none.
	Socket *PathInfo `json:"socket,omitempty"`

	// RMASocket is the path of this end's RMA operations; nil if they have none.
	RMASocket *PathInfo `json:"rma_socket,omitempty"`
	// RMA is "direct" where the application uses the peer's windows itself, "path" where
	// its operations go straight to the peer's node, by RMASocket, else "node", and
	// RMAWhy is the reason.
	RMA    string `json:"rma"`
	RMAWhy string `json:"rma_why"`
}

// PathInfo is the path of a connection.
type PathInfo struct {
	Local  string `json:"local"`  // addresses of the socket
	Remote string `json:"remote"` //
	TLS    bool   `json:"tls"`    // between the two applications
	// Unlocked: the kernel does not let this node lock the socket to its peer, so that the
	// application could connect it elsewhere.
	Unlocked      bool      `json:"unlocked,omitempty"`
	Since         time.Time `json:"since"`
	SentBytes     uint64    `json:"sent_bytes"` // as the kernel counts them, TLS's own included
	ReceivedBytes uint64    `json:"received_bytes"`
	RoundTripUS   int64     `json:"round_trip_us"` // smoothed, of the kernels
	// UnsentBytes wait because the peer takes none, WaitingMS for how long; UnreadBytes
	// have arrived and this end's application has not taken them.
	UnsentBytes uint64 `json:"unsent_bytes"`
	WaitingMS   int64  `json:"waiting_ms"`
	UnreadBytes uint64 `json:"unread_bytes"`
	// Retransmits are packets that were sent again.
	Retransmits uint64 `json:"retransmits"`
}

// WindowInfo is one window registered at this node.
type WindowInfo struct {
	Conn    uint64 `json:"conn"`
	Local   string `json:"local"`
	Remote  string `json:"remote"`
	Offset  int64  `json:"offset"`
	Length  int64  `json:"length"`
	Read    bool   `json:"read"`
	Write   bool   `json:"write"`
	Removed bool   `json:"removed"` // unregistered, and still in use
	PID     int32  `json:"pid"`
}

// LinkInfo is one link.
type LinkInfo struct {
	Node       addr.NodeID     `json:"node"`
	Generation addr.Generation `json:"generation"`
	Name       string          `json:"name"`
	Local      string          `json:"local"`
	Remote     string          `json:"remote"`
	Dialed     bool            `json:"dialed"` // by this node
	Provider   string          `json:"provider"`
	Conns      int             `json:"conns"`
	Since      time.Time       `json:"since"`
	SilentMS   int64           `json:"silent_ms"` // since something came
	Serving    bool            `json:"serving"`   // both incarnations confirmed lately

	// Bytes of packets, see [transport.Traffic].
	SentBytes     uint64 `json:"sent_bytes"`
	ReceivedBytes uint64 `json:"received_bytes"`
	// Packets were sent and Lost of them did not arrive, since the link began; zeros over
	// a provider that does not count them. LossPercent is of the last ten seconds or so.
	Packets     uint64  `json:"packets"`
	Lost        uint64  `json:"lost"`
	LossPercent float64 `json:"loss_percent"`

	// Round trips of heartbeats, in microseconds: the smoothed one, how far they are from it
	// on average, and the shortest. Zeros before the first.
	RoundTripUS int64 `json:"round_trip_us"`
	DeviationUS int64 `json:"deviation_us"`
	ShortestUS  int64 `json:"shortest_us"`

	// Why is the reason for the link's provider, in a line; Considered is the result for each.
	Why        string       `json:"why"`
	Considered []Considered `json:"considered"`
}

// endpoints returns the endpoints of all sessions.
func (n *Node) endpoints() []*endpoint {
	n.mu.Lock()
	sessions := slices.Collect(maps.Keys(n.sessions))
	n.mu.Unlock()
	var out []*endpoint
	for _, s := range sessions {
		out = append(out, s.all()...)
	}
	return out
}

// Ports returns the bound ports, ascending.
func (n *Node) Ports() []PortInfo {
	found := make(map[addr.Port]PortInfo)
	policy := n.access.get()
	for _, e := range n.endpoints() {
		e.mu.Lock()
		info := PortInfo{Port: e.port, Holders: 1, State: e.state.String(), PID: e.s.cred.PID, UID: e.s.cred.UID}
		holds, listening := e.holds, e.state == core.Listening
		if listening {
			info.Waiting, info.Backlog, info.Overflows = e.listening.Len(), e.listening.Limit(), e.listening.overflow
			info.Refused, info.Allow = e.listening.refused, access.Join(e.listening.allow)
		}
		e.mu.Unlock()
		if !holds {
			continue
		}
		if old, ok := found[info.Port]; ok {
			info.Holders += old.Holders
			if !listening {
				old.Holders = info.Holders
				info = old
			}
		}
		info.Access = policy.For(info.Port)
		found[info.Port] = info
	}
	out := slices.AppendSeq(make([]PortInfo, 0, len(found)), maps.Values(found))
	slices.SortFunc(out, func(a, b PortInfo) int { return cmp.Compare(a.Port, b.Port) })
	return out
}

// connected calls f for every endpoint that has a connection, open or ended by
// the peer, in the order of their addresses.
func (n *Node) connected(f func(e *endpoint, c *conn, state core.State, local, remote addr.Addr)) {
	self := n.Self().Incarnation.Node
	all := n.endpoints()
	slices.SortFunc(all, func(a, b *endpoint) int {
		return cmp.Or(cmp.Compare(a.LocalAddr().Port, b.LocalAddr().Port), cmp.Compare(a.id, b.id))
	})
	for _, e := range all {
		e.mu.Lock()
		c, state, remote, local := e.conn, e.state, e.remote, addr.Addr{Node: self, Port: e.port}
		e.mu.Unlock()
		if c != nil && (state == core.Connected || state == core.Disconnected) {
			f(e, c, state, local, remote)
		}
	}
}

// Conns returns the connections' ends at this node.
func (n *Node) Conns() []ConnInfo {
	out := []ConnInfo{}
	n.connected(func(e *endpoint, c *conn, state core.State, local, remote addr.Addr) {
		info := ConnInfo{ID: uint64(c.id), State: state.String(), Local: local.String(), Remote: remote.String(),
			Incarnation: c.link.peer.Incarnation.String(), Provider: c.link.provider, PID: e.s.cred.PID, Sent: c.out.total()}
		info.Path, info.Why = e.path()
		info.Socket = c.path.info()
		info.RMASocket = c.rma.out.info()
		info.wait(c)
		c.in.mu.Lock()
		info.Unread, info.Received = c.in.flow.Unread(), c.in.flow.Arrived()
		c.in.mu.Unlock()
		c.mu.Lock()
		info.Windows = len(c.core.Windows())
		c.mu.Unlock()
		info.RMA, info.RMAWhy = c.rmaPath(info.RMASocket != nil)
		out = append(out, info)
	})
	return out
}

// wait sets WaitingMS and Unsent, for the link and the path together.
func (info *ConnInfo) wait(c *conn) {
	d, unsent := c.out.waiting()
	info.WaitingMS, info.Unsent = d.Milliseconds(), unsent
	if p := info.Socket; p != nil {
		info.WaitingMS, info.Unsent = max(info.WaitingMS, p.WaitingMS), unsent+p.UnsentBytes
	}
}

// Windows returns the windows registered at this node.
func (n *Node) Windows() []WindowInfo {
	out := []WindowInfo{}
	n.connected(func(e *endpoint, c *conn, _ core.State, local, remote addr.Addr) {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, w := range c.core.Windows() {
			out = append(out, WindowInfo{Conn: uint64(c.id), Local: local.String(), Remote: remote.String(),
				Offset: w.Offset, Length: w.Length, Read: w.Prot&1 != 0, Write: w.Prot&2 != 0,
				Removed: !w.Registered(), PID: e.s.cred.PID})
		}
	})
	return out
}

// Links returns the links to other nodes, by node.
func (n *Node) Links() []LinkInfo {
	out := []LinkInfo{}
	now := n.now()
	for _, l := range n.allLinks() {
		if l.otherEnd != nil {
			continue
		}
		l.mu.Lock()
		if l.end.begun {
			l.mu.Unlock()
			continue
		}
		t, trips := l.sess.Traffic(), l.quality.trips
		out = append(out, LinkInfo{Node: l.peer.Incarnation.Node, Generation: l.peer.Incarnation.Generation, Name: l.peer.Name,
			Local: l.sess.LocalAddr(), Remote: l.sess.RemoteAddr(), Dialed: l.dialed, Provider: l.provider, Why: why(l.weighed), Considered: l.weighed,
			Conns: len(l.conns.all),
			Since: l.since, SilentMS: l.keepalive.Silent(now).Milliseconds(), Serving: int64(now) <= l.freshUntil.Load(),
			SentBytes: t.Sent, ReceivedBytes: t.Received, Packets: t.Packets, Lost: t.Lost, LossPercent: l.quality.loss.percent(t),
			RoundTripUS: trips.smoothed.Microseconds(), DeviationUS: trips.deviation.Microseconds(), ShortestUS: trips.shortest.Microseconds()})
		l.mu.Unlock()
	}
	slices.SortFunc(out, func(a, b LinkInfo) int { return cmp.Compare(a.Node, b.Node) })
	return out
}

// Paths returns how many paths there are, those that are being made or drained included.
func (n *Node) Paths() int {
	n.paths.mu.Lock()
	defer n.paths.mu.Unlock()
	return n.paths.count
}

// ConnMemory returns how many bytes of memory connections have been promised, and of
// how many; 0, 0 without a bound.
func (n *Node) ConnMemory() (used, limit int64) { return n.budget.state() }
