package check

import "github.com/fabricd/fabricd/internal/lab/history"

// paths: where daemons run without --enable-faults, connections go over to paths: the tested build
// is the deployed one. A connection to another node that has sent enough, and stayed for long
// enough behind it that the lab has looked, is a reason to expect one.
//
// It needs paths records of a real lab.
type paths struct {
	judge
	sent map[history.ConnEnd]int64 // when an end had sent enough
	used bool                      // a connection was used for long enough
	look int                       // the last paths record; -1: none
}

// How much an end has to send, and for how long its connection has to go on, until
// there is a path.
const (
	pathBytes = 256 << 10
	pathTime  = 3_000_000_000 // ns
)

func (m *paths) see(i int, r *history.Record) {
	switch b := r.Body.(type) {
	case *history.Paths:
		m.look = i
	case *history.Sent:
		at, enough := m.sent[b.ConnEnd]
		switch {
		case b.To < pathBytes:
		case !enough:
			m.sent[b.ConnEnd] = r.At
		case r.At-at >= pathTime:
			end := m.w.connEnd(history.ConnEnd{Conn: b.Conn, Side: history.Client})
			m.used = m.used || end.local.Node != end.remote.Node
		}
	}
}

func (m *paths) finish() {
	if m.w.begin.Paths != history.PathsLazy || !m.used {
		return
	}
	m.unless(m.w.pathEnds > 0, m.w.end, []int{m.look}, "no connection went over to a path")
	m.j.Checked = max(m.j.Checked, m.w.pathEnds)
}
