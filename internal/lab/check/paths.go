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
	over int                       // ends that have gone over
	look int                       // the last paths record; -1: none
}

// How much an end has to send, and for how long its connection has to go on, until
// there is a path.
const (
	pathBytes = 256 << 10
	pathTime  = 3_000_000_000 // ns
)

func newPaths(w *world) *paths {
	return &paths{judge: judge{w: w, j: Judgement{Name: "paths", Claim: "daemons without --enable-faults: connections go over to paths"}},
		sent: map[history.ConnEnd]int64{}, look: -1}
}

func (m *paths) see(i int, r *history.Record) {
	switch b := r.Body.(type) {
	case *history.Paths:
		m.over += b.New
		m.look = i
	case *history.Sent:
		at, enough := m.sent[b.ConnEnd]
		switch {
		case b.To < pathBytes:
		case !enough:
			m.sent[b.ConnEnd] = r.At
		case r.At-at >= pathTime:
			m.used = m.used || m.far(b.Conn)
		}
	}
}

// far reports whether a connection is between two nodes.
func (m *paths) far(nonce uint64) bool {
	c := m.w.conns[nonce]
	return c != nil && c.ends[0].local.Node != c.ends[0].remote.Node
}

func (m *paths) finish() {
	if m.w.begin.Paths != history.PathsLazy || !m.used {
		return
	}
	m.unless(m.over > 0, m.w.end, []int{m.look}, "no connection went over to a path")
	m.j.Checked = max(m.j.Checked, m.over)
}

// wentOver returns how many connections were seen to have gone over to a path. The nodes
// of both ends see each; one of them may have ended before the lab looked.
func wentOver(records []history.Record) int {
	ends := 0
	for i := range records {
		if b, ok := records[i].Body.(*history.Paths); ok {
			ends += b.New
		}
	}
	return (ends + 1) / 2
}
