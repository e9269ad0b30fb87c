package check

import (
	"maps"
	"slices"

	"github.com/fabricd/fabricd/internal/lab/history"
)

// leaks (I12): at the end a process holds no more than at the beginning: ports, endpoints,
// connections, windows and memfds exactly; descriptors, goroutines and maps but for those of its
// links and a handful; memory within the 10 % of I12 and 8 MiB, for a process's memory, garbage apart, is more than it uses
// (rssGrowth). A process that was started under way is compared with the first process of its node.
//
// It needs resources records of the phases baseline and end.
type leaks struct {
	judge
	base map[history.Source]int // records, by process
	node map[nodeRole]int       // of the first process of a node
}

type nodeRole struct {
	node int
	role history.Role
}

// exact are the resources of which nothing may be left.
var exact = []string{"ports", "endpoints", "conns", "windows", "memfds"}

// perLink is how many descriptors, goroutines or maps one more link may
// need.
const perLink = 16

// handful is how many more of the inexact resources may be under way by chance.
const handful = 4

// rssGrowth is how much memory may be left, in bytes, beside 10 %: pages of which a part
// is in use, stacks that have grown, code that was read since. Daemons collect their
// garbage before they are counted; 3 MB were seen.
const rssGrowth = 8 << 20

func (m *leaks) see(i int, r *history.Record) {
	b, ok := r.Body.(*history.Resources)
	if !ok {
		return
	}
	key := nodeRole{b.Target.Node, b.Target.Role}
	switch b.Phase {
	case history.PhaseBaseline:
		m.base[b.Target] = i
		if _, known := m.node[key]; !known {
			m.node[key] = i
		}
	case history.PhaseEnd:
		base, known := m.base[b.Target]
		if !known {
			base, known = m.node[key]
		}
		if known {
			m.compare(base, i, r, m.w.records[base].Body.(*history.Resources).Count, b)
		}
	}
}

func (m *leaks) compare(base, i int, r *history.Record, before map[string]int64, b *history.Resources) {
	more := int64(m.w.begin.Nodes)
	if links, counted := before["links"]; counted {
		more = b.Count["links"] - links
	}
	for _, name := range slices.Sorted(maps.Keys(b.Count)) {
		was, known := before[name]
		if !known || name == "links" {
			continue
		}
		limit := was + perLink*max(more, 0) + handful
		switch {
		case name == "rss":
			limit = was + was/10 + rssGrowth
		case slices.Contains(exact, name):
			limit = was
		}
		m.unless(b.Count[name] <= limit, r.At, []int{base, i}, "%s holds %d %s at the end, and %d at the beginning", b.Target, b.Count[name], name, was)
	}
}
