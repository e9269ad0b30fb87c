package check

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/fabricd/fabricd/internal/lab/history"
	"github.com/fabricd/fabricd/internal/lab/scenario"
)

// The latencies that every history holds.
const (
	fenceWait    = "fence_wait"    // of the call
	firstMessage = "first message" // from the server's write of it to the client's read
)

// leastSamples is how many latencies a percentile needs, before the first fault
// and since.
const leastSamples = 20

// A wait is one latency between two nodes.
type wait struct {
	kind   string
	a, b   int   // nodes
	at, ns int64 // when it began, and how long it took
}

// waits returns the latencies of a run. A call that fails has none: invariants
// judge how soon it does.
func (w *world) waits() (all []wait) {
	for i := range w.records {
		r := &w.records[i]
		b, ok := r.Body.(*history.Return)
		if !ok || b.Name != fenceWait || b.Status != "" || r.At > w.finish() {
			continue
		}
		if node := w.nodeOf(b.Peer); node >= 0 {
			all = append(all, wait{fenceWait, r.Source.Node, node, b.Began, r.At - b.Began})
		}
	}
	for _, c := range w.conns.list {
		client, server := &c.ends[0], &c.ends[1]
		if client.opened == never || server.opened == never || client.opened > w.finish() {
			continue
		}
		// The server has written its answer, the client has read it.
		took := max(0, client.opened-server.opened)
		all = append(all, wait{firstMessage, client.source.Node, server.source.Node, server.opened, took})
	}
	return all
}

// An around has the latencies of one kind, by when they began: before the first
// fault, or since.
type around struct{ before, since []int64 }

// spread sorts latencies by their kinds and by whether they began before a time.
func spread(all []wait, first int64) map[string]*around {
	kinds := map[string]*around{}
	for _, x := range all {
		k := kinds[x.kind]
		if k == nil {
			k = &around{}
			kinds[x.kind] = k
		}
		if x.at < first {
			k.before = append(k.before, x.ns)
		} else {
			k.since = append(k.since, x.ns)
		}
	}
	return kinds
}

// latency judges that nodes among each other wait no longer because of faults.
func (x *expecter) latency(e *scenario.ExpectLatency) {
	ids := x.s.NodesIn(e.Among)
	first, _ := x.faultSpan()
	among := slices.DeleteFunc(x.w.waits(), func(v wait) bool {
		return v.a == v.b || !slices.Contains(ids, v.a) || !slices.Contains(ids, v.b)
	})
	kinds := spread(among, first)
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		k := kinds[kind]
		if len(k.since) < leastSamples {
			continue
		}
		now := percentile(k.since)
		if e.P99 > 0 {
			limit := x.w.within(e.P99.Time())
			x.unless(now <= limit, first, nil, "since the first fault, %s takes %s (p99 of %d), want %s", kind, time.Duration(now), len(k.since), time.Duration(limit))
		}
		if e.Times > 0 && len(k.before) >= leastSamples {
			was := percentile(k.before)
			limit := x.w.within(time.Duration(was) * time.Duration(e.Times))
			x.unless(now <= limit, first, nil, "since the first fault, %s takes %s (p99 of %d), before it %s (of %d), want %d times that at most: %s",
				kind, time.Duration(now), len(k.since), time.Duration(was), len(k.before), e.Times, time.Duration(limit))
		}
	}
}

// percentile returns the 99th of samples.
func percentile(samples []int64) int64 { return NewFigure("", "", slices.Clone(samples)).P99 }

// latency takes the latencies between nodes that no fault touches.
func (f *figureMaker) latency() {
	if f.all[scenario.Latency] == nil {
		return
	}
	first := never
	for _, x := range f.w.faults {
		first = min(first, x.begin)
	}
	for _, v := range f.w.waits() {
		if v.a == v.b || f.w.touchedBy(v.a, v.b, f.w.finish()) {
			continue
		}
		when := "before"
		if v.at >= first {
			when = "since the first fault"
		}
		f.add(scenario.Latency, fmt.Sprintf("%s, %s", v.kind, when), v.ns)
	}
}
