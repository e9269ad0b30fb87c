package check

import (
	"time"

	"github.com/fabricd/fabricd/internal/lab/history"
)

// notified (I5): when the process of a node has ended, every survivor that knew the
// incarnation is notified of NODE_REMOVED, within the time of detection of a silent node (a
// crash is usually detected much sooner; a scenario says so where it must be).
//
// A survivor is a source that lives, has the same incarnation and is neither frozen
// nor cut off, from the end of the process until the time of detection. While
// the host is away there is the grace of a returning host on top.
//
// It needs process records of daemons, and event and view records.
type notifiedAll struct{ judge }

// hostGrace is the time that a host that is away adds to the time of detection.
const hostGrace = 12 * time.Second

func (m *notifiedAll) finish() {
	for _, l := range m.w.incarnations.list {
		if l.killed {
			for _, s := range m.w.sessions.list {
				m.survivor(l, s)
			}
		}
	}
}

// survivor judges one source for one incarnation that ended.
func (m *notifiedAll) survivor(l *incarnation, s *session) {
	a := s.known[l.incarnation]
	if a == nil || s.source.Node == l.node || a.since > l.gone && a.removed == never {
		return
	}
	late := l.gone + m.w.within(m.w.bound.Silence)
	if l.node != 0 && m.hostAway(l.gone, late) {
		late += int64(hostGrace)
	}
	late += m.w.stood(s.source.Node, l.gone, late)
	if a.removed <= late {
		m.good()
		return
	}
	if m.w.finish() <= late || !m.able(s, l, l.gone, late) {
		return
	}
	m.fail(l.gone, []int{a.sinceIndex, l.why, a.index}, "%s is not notified within %s that %s was removed%s",
		s.source, time.Duration(late-l.gone), l.incarnation, until(a.removed, l.gone))
	m.late(l.gone, late, a.removed)
}

// hostAway reports whether something was done to the host about then.
func (m *notifiedAll) hostAway(from, to int64) bool {
	for _, f := range m.w.faults {
		if f.Harm == history.HarmRemove && f.onNode(0) && f.begin <= to && (f.end == never || f.end+int64(hostGrace) >= from) {
			return true
		}
	}
	return !m.w.runs(0, from, to)
}

// able reports whether a source could be notified: it and its node lived and were
// reachable, as the same incarnation, from before the loss of the other until late.
func (m *notifiedAll) able(s *session, l *incarnation, lost, late int64) bool {
	node := s.source.Node
	from := lost - m.w.within(m.w.bound.Silence)
	if a := s.known[l.incarnation]; a.cleared <= late {
		return false
	}
	if !m.w.alive(s.source, lost, late) || m.w.nodes.get(node) == nil || len(m.w.at(node).daemons) > 0 && !m.w.runs(node, lost, late) {
		return false
	}
	for _, f := range m.w.faults {
		if f.Harm != history.HarmNone && f.begin <= late && f.end >= from &&
			(f.onNode(node) || f.onApp(node) || f.onWay(node, 0) || f.onWay(node, l.node)) {
			return false
		}
	}
	return true
}
