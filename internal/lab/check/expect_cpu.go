package check

import (
	"slices"

	"github.com/fabricd/fabricd/internal/lab/history"
	"github.com/fabricd/fabricd/internal/lab/scenario"
)

// A usage is the processor time of one daemon between the two looks of the lab at it.
type usage struct {
	source   history.Source
	from, to int   // records
	used     int64 // nanoseconds
	over     int64 // nanoseconds between the two
}

// usages returns those of the daemons that were there at both looks.
func (w *world) usages() (all []usage) {
	base := map[history.Source]int{}
	for i := range w.records {
		b, ok := w.records[i].Body.(*history.Resources)
		if !ok || b.Used == 0 || b.Target.Role != history.RoleDaemon {
			continue
		}
		from, known := base[b.Target]
		if b.Phase == history.PhaseBaseline {
			base[b.Target] = i
		} else if known {
			was := w.records[from].Body.(*history.Resources)
			all = append(all, usage{b.Target, from, i, b.Used - was.Used, max(b.UsedAt-was.UsedAt, 1)})
		}
	}
	return all
}

// cpu judges the processor time of daemons.
func (x *expecter) cpu(e *scenario.ExpectCPU) {
	ids := x.s.NodesIn(e.Nodes)
	for _, u := range x.w.usages() {
		if !slices.Contains(ids, u.source.Node) {
			continue
		}
		share := 100 * float64(u.used) / float64(u.over)
		x.unless(share <= float64(e.Most), x.w.records[u.to].At, []int{u.from, u.to}, "%s took %.1f%% of a processor, want %s at most", u.source, share, e.Most)
	}
}

// cpu takes the processor time of each daemon per second.
func (f *figureMaker) cpu() {
	const second = 1e9
	for _, u := range f.w.usages() {
		f.add(scenario.CPUTime, "", int64(second*float64(u.used)/float64(u.over)))
	}
}
