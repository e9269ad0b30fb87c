package engine

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/access"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/core"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/wire"
	"github.com/fabricd/fabricd/portmap"
)

// A Refusal is a connect, or a bind, that the access rules have refused.
type Refusal struct {
	Bind   bool // by an application of this node; else a connect
	Port   addr.Port
	Caller access.Caller
	Node   addr.UUID // of the caller
	By     string    // the rule or listener that has refused it; see access.Decision
}

// reportsPerMinute bounds the log lines of one rule's or listener's refusals.
const reportsPerMinute = 8

// refusals count the refusals of one rule or one listener. The zero value is
// ready to use. Guarded by its owner's lock.
type refusals struct {
	total, suppressed uint64
	lines             perMinute
}

// add counts one at now. If it is to be logged, it returns how many before it were not.
func (r *refusals) add(now time.Duration) (suppressed uint64, log bool) {
	r.total++
	if !r.lines.shown(now, reportsPerMinute) {
		r.suppressed++
		return 0, false
	}
	suppressed, r.suppressed = r.suppressed, 0
	return suppressed, true
}

// An admission is the node's access rules and their refusals.
type admission struct {
	mu      sync.Mutex // guards the fields below
	policy  *access.Policy
	refused map[string]*refusals // by each text that policy decides by
}

func (a *admission) get() *access.Policy {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.policy
}

// SetAccess makes p the access rules for connects and binds from now on; nil
// allows everything. Existing connections and bound ports stay.
func (n *Node) SetAccess(p *access.Policy) { n.access.set(p) }

// set keeps the counts of the rules that stay.
func (a *admission) set(p *access.Policy) {
	a.mu.Lock()
	defer a.mu.Unlock()
	counts := make(map[string]*refusals)
	for _, by := range deciders(p) {
		if counts[by] = a.refused[by]; counts[by] == nil {
			counts[by] = new(refusals)
		}
	}
	a.policy, a.refused = p, counts
}

// deciders returns the texts that p decides by, which bound the counters.
func deciders(p *access.Policy) []string {
	texts := []string{p.Default()}
	for _, r := range p.Rules() {
		texts = append(texts, r.String())
	}
	return texts
}

// A RuleCount is how many connects, binds and services a rule, or the default, has refused.
type RuleCount struct {
	Rule    string `json:"rule"`
	Refused uint64 `json:"refused"`
}

// AccessRules returns the node's access rules, the default last, with their
// refusals since they came into force.
func (n *Node) AccessRules() []RuleCount {
	a := &n.access
	a.mu.Lock()
	defer a.mu.Unlock()
	texts := deciders(a.policy)
	out := make([]RuleCount, 0, len(texts))
	for _, by := range append(texts[1:], texts[0]) {
		out = append(out, RuleCount{by, a.refused[by].total})
	}
	return out
}

// callerLocked returns the caller of a connect over l, as in the node table now. Requires mu.
func (n *Node) callerLocked(l *link, uid uint32) access.Caller {
	if l.otherEnd != nil {
		return access.Caller{Incarnation: l.peer.Incarnation, Name: n.self.Name, Labels: n.self.Labels, UID: uid, Local: true}
	}
	known := l.peer
	if p := n.peers[known.Incarnation.Node]; p != nil && p.Incarnation == known.Incarnation {
		known = p.Peer
	}
	return access.Caller{Incarnation: known.Incarnation, Name: known.Name, Labels: known.Labels, UID: uid}
}

// decide returns the decision of the rules and the listener e, nil if there is none,
// about a connect.
func (n *Node) decide(e *endpoint, port addr.Port, c access.Caller) access.Decision {
	owner, allow := access.UnknownUID, []access.Subject(nil)
	if e != nil {
		owner = e.s.cred.UID
		e.mu.Lock()
		allow = e.listening.allow
		e.mu.Unlock()
	}
	return n.access.get().Connect(port, c, owner, allow)
}

// admits reports whether a connect over l is allowed. One that is not is refused.
func (n *Node) admits(l *link, e *endpoint, port addr.Port, c access.Caller) bool {
	d := n.decide(e, port, c)
	if d.Allowed {
		return true
	}
	n.refuseBy(e, d, Refusal{Port: port, Caller: c, Node: l.peer.UUID, By: d.By})
	return false
}

// refuseBy counts a refusal by d for the rule, or for the listener if its list decided, and in any
// case at the port; reports it, and logs it if not too many are. e is the listener that was to be
// reached, nil if there is none.
func (n *Node) refuseBy(e *endpoint, d access.Decision, r Refusal) {
	now, suppressed, log := n.now(), uint64(0), false
	if e != nil {
		e.mu.Lock()
		e.listening.refused++
		if d.Listener {
			suppressed, log = e.listening.refusals.add(now)
		}
		e.mu.Unlock()
	}
	if !d.Listener {
		suppressed, log = n.access.count(d.By, now)
	}
	if log {
		what, c := "connect", r.Caller
		if r.Bind {
			what = "bind"
		}
		n.log.Warn().Str("op", "access").Uint16("port", uint16(r.Port)).Stringer("peer", c.Incarnation).Str("name", c.Name).Uint32("uid", c.UID).
			Str("rule", r.By).Uint64("suppressed", suppressed).Msg(what + " refused by an access rule")
	}
	if n.cfg.Refused != nil {
		n.cfg.Refused(r)
	}
}

// count counts a refusal by the text that decided. There is no such text if another goroutine
// has replaced the rules in this moment.
func (a *admission) count(by string, now time.Duration) (suppressed uint64, log bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if r := a.refused[by]; r != nil {
		return r.add(now)
	}
	return 0, false
}

// ServeRefused counts a name that a rule of this host has kept another node from serving.
func (n *Node) ServeRefused(by string) { n.access.count(by, n.now()) }

// mayBind returns why the session's user may not bind port, nil if it may.
func (e *endpoint) mayBind(port addr.Port) error {
	if err := portmap.CheckPrivilege(port, e.s.cred.Admin); err != nil {
		return err
	}
	if port == 0 {
		return nil
	}
	d := e.n.access.get().Bind(port, e.s.cred.UID, e.s.cred.GID)
	if d.Allowed {
		return nil
	}
	self := e.n.Self()
	e.n.refuseBy(nil, d, Refusal{Bind: true, Port: port, Node: self.UUID, By: d.By,
		Caller: access.Caller{Incarnation: self.Incarnation, Name: self.Name, Labels: self.Labels, UID: e.s.cred.UID, Local: true}})
	return fmt.Errorf("%w: port %d, by the access rule %q", status.Access, port, d.By)
}

// choosable returns which ports the node may choose for the session's user; nil is all.
func (e *endpoint) choosable() func(addr.Port) bool {
	p := e.n.access.get()
	if !p.RestrictsBind() {
		return nil
	}
	return func(port addr.Port) bool { return p.Bind(port, e.s.cred.UID, e.s.cred.GID).Allowed }
}

// Peer is attach.NodeEndpoint's. An acceptor's is from the moment of the request.
func (e *endpoint) Peer() (attach.Peer, error) {
	e.mu.Lock()
	state, who, c := e.state, e.peer, e.conn
	e.mu.Unlock()
	switch {
	case state == core.Closed:
		return attach.Peer{}, status.BadFD
	case state != core.Connected && state != core.Disconnected:
		return attach.Peer{}, status.NotConn
	case who == nil: // a connector
		who = e.acceptor(c)
	}
	return attach.Peer{Incarnation: who.Incarnation, Name: who.Name, Labels: who.Labels, UID: who.UID}, nil
}

// acceptor returns the peer of a connector. Its user is known on this node only.
func (e *endpoint) acceptor(c *conn) *access.Caller {
	uid := access.UnknownUID
	if otherEnd := c.otherEnd.Load(); otherEnd != nil {
		uid = otherEnd.ep.s.cred.UID
	}
	e.n.mu.Lock()
	who := e.n.callerLocked(c.link, uid)
	e.n.mu.Unlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.peer == nil {
		e.peer = &who
	}
	return e.peer
}

// A Preview is the expected result of a connect to a port.
type Preview struct {
	Allowed   bool   `json:"allowed"`   // by the rules and the listener
	By        string `json:"by"`        // the rule or listener that has decided
	Listening bool   `json:"listening"` // there is a listener
	Waiting   int    `json:"waiting"`   // requests in the queue
	Backlog   int    `json:"backlog"`   // its size
}

// preview returns the expected result of a connect over l to this node. It changes nothing.
func (n *Node) preview(l *link, port addr.Port, uid uint32) Preview {
	n.mu.Lock()
	e, c := n.listeners[port], n.callerLocked(l, uid)
	n.mu.Unlock()
	d := n.decide(e, port, c)
	p := Preview{Allowed: d.Allowed, By: d.By}
	if e == nil {
		return p
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.state == core.Listening {
		p.Listening, p.Waiting, p.Backlog = true, e.listening.Len(), e.listening.Limit()
	}
	return p
}

// Preview returns the expected result of a connect to dst by an application of this node
// that the user uid runs. For another node it asks that node, over the link.
func (n *Node) Preview(ctx context.Context, dst addr.Addr, uid uint32) (Preview, error) {
	if dst.Port == 0 {
		return Preview{}, status.Invalid
	}
	l, err := n.linkTo(ctx, dst.Node)
	if err != nil {
		return Preview{}, err
	}
	if l.otherEnd != nil {
		return n.preview(l, dst.Port, uid), nil
	}
	return l.ask(ctx, dst.Port, uid)
}

// ask asks the peer for the expected result of a connect there.
func (l *link) ask(ctx context.Context, port addr.Port, uid uint32) (Preview, error) {
	f, err := exchange(ctx, l, &l.requests.asks, func(id uint64) {
		l.sendFrameInTurn(wire.Ask{Request: id, To: port, UID: uid}.AppendTo(nil))
	})
	return Preview{Allowed: f.Allowed, By: f.By, Listening: f.Listening, Waiting: int(f.Waiting), Backlog: int(f.Backlog)}, err
}

// asked answers the peer's Ask.
func (l *link) asked(f wire.Ask) error {
	l.use()
	p := l.n.preview(l, f.To, f.UID)
	l.sendFrame(wire.Answer{Request: f.Request, Allowed: p.Allowed, Listening: p.Listening,
		Waiting: uint16(p.Waiting), Backlog: uint16(p.Backlog), By: p.By}.AppendTo(nil))
	return nil
}
