package check

import (
	"slices"
	"strings"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/lab/history"
	"github.com/fabricd/fabricd/internal/lab/scenario"
)

// An expecter judges one expectation of a scenario.
type expecter struct {
	judge
	s *scenario.Schedule
}

// expect judges one expectation. Times are made longer by the lab's slack.
func expect(w *world, s *scenario.Schedule, e *scenario.Expect) Judgement {
	x := &expecter{judge{w: w, j: Judgement{Claim: scenario.Line(e)}}, s}
	x.j.Name, _, _ = strings.Cut(strings.Trim(x.j.Claim, "{"), ":")
	switch {
	case e.Removed != nil:
		x.removed(e.Removed)
	case e.Added != nil:
		x.added(e.Added)
	case e.Errors != nil:
		x.errors(e.Errors)
	case e.Unharmed != nil:
		x.unharmed(s.NodesIn(e.Unharmed.Nodes))
	case e.Removals != nil:
		x.removals(e.Removals)
	case e.Mesh != nil:
		x.mesh(e.Mesh)
	case e.Connects != nil:
		x.connects(e.Connects)
	case e.Traffic != nil:
		x.traffic(e.Traffic)
	case e.Latency != nil:
		x.latency(e.Latency)
	case e.Exits != nil:
		x.exits(e.Exits)
	case e.CPU != nil:
		x.cpu(e.CPU)
	}
	return x.judgement()
}

// observers returns the sessions of applications in nodes; nil: in all but
// those of not.
func (x *expecter) observers(at scenario.NodeSet, not []int) []*session {
	var all []*session
	ids := x.s.NodesIn(at)
	for _, s := range x.w.sessions.list {
		if s.source.Role != history.RoleApp {
			continue
		}
		if at == nil && !slices.Contains(not, s.source.Node) || at != nil && slices.Contains(ids, s.source.Node) {
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b *session) int { return strings.Compare(a.source.String(), b.source.String()) })
	return all
}

func (x *expecter) removed(e *scenario.ExpectRemoved) {
	nodes := x.s.NodesIn(e.Node)
	observers := x.observers(e.At, nodes)
	all := notifiedAll{judge{w: x.w}}
	var times99 []int64
	for _, node := range nodes {
		for _, s := range observers {
			whole := true
			for _, lost := range x.w.losses(node, s) {
				a := lost.known
				if e.At == nil && lost.own {
					whole = whole && a.cleared <= lost.gone // else it is notified of the end, if it ever is, as of one that it knows
					continue
				}
				late := lost.placed + x.w.within(max(e.Within.Time(), x.w.bound.Silence))
				if e.At == nil && a.removed == never && !all.able(s, lost.incarnation, lost.since, late) {
					whole = false
					continue
				}
				if e.At == nil && a.removed > late && x.w.ailing(s.source.Node, node, lost.since, late) {
					continue
				}
				x.notified(s, lost.incarnation, a, lost.placed, e)
				times99 = append(times99, min(a.removed, x.w.finish())-lost.since)
			}
			if times := x.timesRemoved(e, s, node); e.Times > 0 && whole {
				x.unless(times == e.Times, x.w.finish(), nil, "%s is notified %d times that node %s was removed, want %d", s.source, times, x.w.begin.NodeLabel(node), e.Times)
			}
		}
	}
	if e.P99 > 0 && len(times99) > 0 {
		p := percentile(times99)
		x.unless(p <= int64(e.P99.Time()), x.w.finish(), nil, "99 of 100 observers are notified within %s (of %d), want %s", time.Duration(p), len(times99), e.P99)
	}
}

// timesRemoved returns how often an observer was notified that a node was removed: where the
// expectation names no observers, without notices that it got because it was itself cut off.
func (x *expecter) timesRemoved(e *scenario.ExpectRemoved, s *session, node int) (times int) {
	for _, l := range x.w.at(node).incarnations {
		for _, a := range s.ever(l.incarnation) {
			times += boolInt(a.removed < x.w.finish() && (e.At != nil || a.own == nil))
		}
	}
	return times
}

// notified judges when and why one observer was notified of one end.
func (x *expecter) notified(s *session, l *incarnation, a *knownPeer, since int64, e *scenario.ExpectRemoved) {
	late := since + x.w.within(e.Within.Time())
	proof := []int{l.why, a.index}
	if e.Within > 0 {
		x.inTime(since, late, a.removed, proof, "%s is not notified within %s that %s was removed%s", s.source, time.Duration(late-since), l.incarnation, until(a.removed, since))
	} else {
		x.unless(a.removed != never, since, proof, "%s is not notified that %s was removed", s.source, l.incarnation)
	}
	if e.Reason != "" && a.index >= 0 {
		b := x.w.records[a.index].Body.(*history.Event)
		x.unless(b.Reason == string(e.Reason), a.removed, proof, "%s is notified that %s was removed for %q, want %q", s.source, l.incarnation, b.Reason, e.Reason)
	}
}

func (x *expecter) added(e *scenario.ExpectAdded) {
	nodes := x.s.NodesIn(e.Node)
	for _, node := range nodes {
		late := slices.Contains(x.s.Scenario.Late(), node)
		for _, s := range x.observers(e.At, nodes) {
			times, whole := 0, true
			for i, l := range x.w.at(node).incarnations {
				if i > 0 || late {
					n, able := x.addedOne(e, s, node, l)
					times, whole = times+n, whole && able
				}
			}
			if e.Times > 0 && whole && x.w.runs(s.source.Node, x.begun(), x.w.finish()) && x.w.alive(s.source, x.begun(), x.w.finish()) {
				x.unless(times == e.Times, x.w.finish(), nil, "%s is notified %d times that node %s was added, want %d", s.source, times, x.w.begin.NodeLabel(node), e.Times)
			}
		}
	}
}

// addedOne judges when one observer was notified of one incarnation, and returns how often it was, and whether
// it could be: it is not notified of incarnations that come and go while it is itself cut off.
func (x *expecter) addedOne(e *scenario.ExpectAdded, s *session, node int, l *incarnation) (times int, able bool) {
	base := x.servesSince(node, l.born)
	a := s.known[l.incarnation]
	if e.After == scenario.AfterLast {
		base = x.w.lastEnd()
		if base == never || l.gone <= x.w.finish() {
			return boolInt(a != nil), true
		}
	}
	limit := base + x.w.within(e.Within.Time())
	ailing := x.w.ailing(s.source.Node, node, base, limit)
	own := x.w.current(s.source.Node, limit)
	fit := x.w.runs(s.source.Node, base, limit) && x.w.alive(s.source, base, limit) && own != nil && own.born <= base && l.gone > limit
	if !fit || ailing || x.w.finish() <= limit {
		return boolInt(a != nil), a != nil || !ailing
	}
	if a == nil {
		x.fail(base, []int{l.why}, "%s is never notified that %s was added", s.source, l.incarnation)
		return 0, true
	}
	if e.Within > 0 {
		x.inTime(base, limit, a.since, []int{a.sinceIndex}, "%s is notified after %s that %s was added, want %s", s.source, time.Duration(a.since-base), l.incarnation, time.Duration(limit-base))
	} else {
		x.good()
	}
	return 1, true
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// servesSince returns the moment from which a node could have the incarnation that was
// born at a time: its daemon was started, went on, or a fault of it ended.
func (x *expecter) servesSince(node int, born int64) int64 {
	base := int64(-1)
	if p, _ := x.w.procAt(node, born); p != nil {
		base = min(p.start, born)
		for _, s := range p.stops {
			if s.to <= born {
				base = max(base, s.to)
			}
		}
	}
	for _, f := range x.w.faults {
		if f.end <= born && (f.onNode(node) || f.onAnyWay(node)) && f.begin != f.end && f.end-f.begin > int64(time.Millisecond) && f.Harm != history.HarmNone && f.Cut {
			base = max(base, f.end)
		}
	}
	if base < 0 {
		return born
	}
	return base
}

// begun returns when the workload began: the first record of an application.
func (x *expecter) begun() int64 {
	first := never
	for _, s := range x.w.sessions.list {
		if s.source.Role == history.RoleApp && len(s.self) > 0 {
			first = min(first, s.self[0].at)
		}
	}
	return first
}

// ownDoing are errnos by which a call ends that its own program has ended.
var ownDoing = []string{"EBADF", "ECANCELED", "EINTR", "EAGAIN"}

func (x *expecter) errors(e *scenario.ExpectErrors) {
	to := x.s.NodesIn(e.To)
	from := x.s.NodesIn(e.From)
	allowed := []string{"ECONNRESET", "ENODEV"}
	if len(e.Status) > 0 {
		allowed = nil
		for _, s := range e.Status {
			allowed = append(allowed, string(s))
		}
	}
	var took []int64
	for i, r := range x.w.records {
		b, ok := r.Body.(*history.Return)
		if !ok || b.Status == "" || b.Peer == (addr.Incarnation{}) || r.At > x.w.finish() {
			continue
		}
		node, own := x.w.nodeOf(b.Peer), r.Source.Node
		if !slices.Contains(to, node) || e.From == nil && slices.Contains(to, own) || e.From != nil && !slices.Contains(from, own) || slices.Contains(ownDoing, b.Status) {
			continue
		}
		f := x.w.resettable(own, node, r.At)
		if f == nil || e.From == nil && x.w.ails(f, own) && !x.w.ails(f, node) {
			continue // where no callers are named, one that is itself cut off says nothing of the node
		}
		since := max(f.begin, b.Began)
		x.unless(slices.Contains(allowed, b.Status), r.At, []int{f.index, i}, "%s of %s towards node %s fails with %s, want one of %v", b.Name, r.Source, x.w.begin.NodeLabel(node), b.Status, allowed)
		if e.Within > 0 {
			late := max(since, x.w.placed(f, node)) + x.w.within(e.Within.Time())
			x.unless(r.At <= late, r.At, []int{f.index, i}, "%s of %s towards node %s fails %s after the fault", b.Name, r.Source, x.w.begin.NodeLabel(node), time.Duration(r.At-since))
			x.late(since, late, r.At)
		}
		took = append(took, r.At-since)
	}
	if e.P99 > 0 && len(took) > 0 {
		p := percentile(took)
		x.unless(p <= int64(e.P99.Time()), x.w.finish(), nil, "99 of 100 calls fail within %s (of %d), want %s", time.Duration(p), len(took), e.P99)
	}
}

func (x *expecter) unharmed(ids []int) {
	for i, r := range x.w.records {
		b, ok := r.Body.(*history.Event)
		if !ok || r.At > x.w.finish() || !slices.Contains(ids, r.Source.Node) {
			continue
		}
		switch b.What {
		case history.EventRemoved, history.EventReset:
			if node := x.w.nodeOf(b.Subject); slices.Contains(ids, node) {
				x.fail(r.At, []int{i}, "%s is notified that %s of node %s was removed", r.Source, b.Subject, x.w.begin.NodeLabel(node))
			}
		case history.EventSelf:
			x.good()
		}
	}
	for _, c := range x.w.conns.list {
		a, b := x.w.nodesOf(c)
		if !slices.Contains(ids, a) || !slices.Contains(ids, b) {
			continue
		}
		for side := range c.ends {
			x.unharmedEnd(c, side, a, b)
		}
	}
}

func (x *expecter) unharmedEnd(c *conn, side, a, b int) {
	e, other := &c.ends[side], &c.ends[1-side]
	if e.opened == never || e.closed > x.w.finish() && e.closed != never {
		return
	}
	x.unless(x.w.unharmed(c, side), e.closed, []int{e.openIndex, e.closeIndex, other.closeIndex}, "connection %d between nodes %s and %s ends with %s at %s", c.nonce, x.w.begin.NodeLabel(a), x.w.begin.NodeLabel(b), e.how, e.source)
}

func (x *expecter) removals(e *scenario.ExpectRemovals) {
	n := 0
	var proof []int
	for _, s := range x.w.sessions.list {
		for _, a := range s.known {
			if a.index >= 0 {
				proof = append(proof, a.index)
			}
		}
	}
	for _, l := range x.w.incarnations.list {
		if slices.ContainsFunc(l.notices, func(a *knownPeer) bool { return a.own == nil && a.removed < x.w.finish() }) {
			n++
		}
	}
	slices.Sort(proof)
	x.unless(n >= e.Min && n <= e.Max, x.w.finish(), proof, "%d incarnations were removed, want %d to %d", n, e.Min, e.Max)
}

// base returns the moment that after names; false: it never came.
func (x *expecter) base(after scenario.After) (int64, bool) {
	if after == scenario.AfterBegin {
		at := x.begun()
		return at, at != never
	}
	at := x.w.lastEnd()
	return at, at != never
}

func (x *expecter) mesh(e *scenario.ExpectMesh) {
	base, ok := x.base(e.After)
	limit := base + x.w.within(e.Within.Time())
	if !ok || x.w.finish() < limit {
		return
	}
	var ids []int
	if e.Nodes != nil {
		ids = x.s.NodesIn(e.Nodes)
	}
	at, whole := meshSince(x.w, ids, base)
	if !whole {
		x.fail(base, nil, "not every node knows every other at the end, %s later", time.Duration(x.w.finish()-base))
		return
	}
	x.inTime(base, limit, at, nil, "every node knows every other after %s, want %s", time.Duration(at-base), time.Duration(limit-base))
}

func (x *expecter) connects(e *scenario.ExpectConnects) {
	base, ok := x.base(e.After)
	limit := base + x.w.within(e.Within.Time())
	if !ok || x.w.finish() < limit {
		return
	}
	among := x.s.NodesIn(e.Among)
	worked := connectsSince(x.w, base)
	for _, pair := range x.s.Scenario.Workload.Pairs.Of(x.s.Scenario.Cluster.Nodes) {
		a, b := pair[0], pair[1]
		if e.Among != nil && (!slices.Contains(among, a) || !slices.Contains(among, b)) || !x.w.runs(a, base, limit) || !x.w.runs(b, base, limit) {
			continue
		}
		first := never
		for _, p := range [][2]int{{a, b}, {b, a}} {
			if at, ok := worked[p]; ok {
				first = min(first, at)
			}
		}
		x.inTime(base, limit, first, nil, "no connection between nodes %s and %s opens within %s%s", x.w.begin.NodeLabel(a), x.w.begin.NodeLabel(b), time.Duration(limit-base), until(first, base))
	}
}

func (x *expecter) exits(e *scenario.ExpectExits) {
	for _, node := range x.s.NodesIn(e.Node) {
		for _, p := range x.w.at(node).daemons {
			if p.endedBy != history.DidExit || p.end > x.w.finish() {
				continue
			}
			b := x.w.records[p.endIndex].Body.(*history.Process)
			since := int64(-1)
			for _, f := range x.w.faults {
				if f.onNode(node) && f.begin <= p.end+x.w.order() {
					since = f.begin
				}
			}
			if since < 0 {
				continue
			}
			x.unless(b.Code == e.Code, p.end, []int{p.endIndex}, "%s has ended with the code %d, want %d", p.source, b.Code, e.Code)
			x.unless(p.end-since <= x.w.within(e.Within.Time()), p.end, []int{p.endIndex}, "%s has ended after %s, want %s", p.source, time.Duration(p.end-since), e.Within)
			x.late(since, since+x.w.within(e.Within.Time()), p.end)
		}
	}
}
