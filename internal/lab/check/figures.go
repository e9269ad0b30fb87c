package check

import (
	"slices"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/lab/history"
	"github.com/fabricd/fabricd/internal/lab/scenario"
)

// A gatherer collects the samples of one figure, by the kind of fault they are
// of.
type gatherer map[string][]int64

func (g gatherer) add(of string, v int64) { g[of] = append(g[of], v) }

// figures makes the figures of a run.
func figures(w *world, names []scenario.FigureName) []Figure {
	f := &figureMaker{w: w, all: map[scenario.FigureName]gatherer{}, seconds: map[int64]int64{}, added: map[addition]bool{}}
	for _, n := range names {
		f.all[n] = gatherer{}
	}
	for i := range w.records {
		f.see(&w.records[i])
	}
	f.finish()
	var out []Figure
	for _, n := range names {
		all := f.all[n].figures(n)
		if all[0].Count == 0 {
			all[0].Why = noSample[n]
		}
		out = append(out, all...)
	}
	return out
}

// noSample returns why a figure of a run has no sample, for people.
var noSample = map[scenario.FigureName]string{
	scenario.TimeToError:   "no call to what a fault touched was under way and failed",
	scenario.TimeToRemoved: "no application was notified that a node is lost because of a fault",
	scenario.TimeToAdded:   "no daemon was started again while others were there to be notified",
	scenario.TimeToMesh:    "there was no fault, it lasted to the end, or the nodes did not all know each other behind it",
	scenario.TimeToConnect: "there was no fault, it lasted to the end, or no connection was made behind it",
	scenario.ConnectTime:   "no connect succeeded",
	scenario.FenceTime:     "no fence wait succeeded",
	scenario.Stalls:        "a fault touched every connection that received bytes, or none did",
	scenario.Throughput:    "bytes were received for less than one whole second",
	scenario.CPUTime:       "no daemon lived from the beginning of the run to its end, or it was simulated",
	scenario.Latency:       "a fault touched every pair of nodes that talked, or none did",
}

// figures returns the figure of all samples, and one for each kind of fault if
// there are several.
func (g gatherer) figures(name scenario.FigureName) []Figure {
	var all []int64
	var kinds []string
	for of, samples := range g {
		all = append(all, samples...)
		kinds = append(kinds, of)
	}
	out := []Figure{NewFigure(name, "", all)}
	slices.Sort(kinds)
	if len(kinds) == 1 && kinds[0] != "" {
		out[0].Of = kinds[0]
	} else if len(kinds) > 1 {
		for _, of := range kinds {
			out = append(out, NewFigure(name, of, g[of]))
		}
	}
	return out
}

// NewFigure returns the figure of samples, which it sorts.
func NewFigure(name scenario.FigureName, of string, samples []int64) Figure {
	f := Figure{Name: name, Of: of, Count: len(samples)}
	if len(samples) == 0 {
		return f
	}
	slices.Sort(samples)
	at := func(q float64) int64 { return samples[int(q*float64(len(samples)-1)+0.5)] }
	f.Min, f.P50, f.P99, f.Max = samples[0], at(0.5), at(0.99), samples[len(samples)-1]
	if len(samples) <= MaxSamples {
		f.Samples = samples
		return f
	}
	for i := range MaxSamples {
		f.Samples = append(f.Samples, samples[i*(len(samples)-1)/(MaxSamples-1)])
	}
	return f
}

// A gap is the longest time without bytes at a receiving end, and when the last of them came.
type gap struct {
	conn          uint64
	longest, last int64
}

// A figureMaker goes through the records once more.
type figureMaker struct {
	w       *world
	all     map[scenario.FigureName]gatherer
	gaps    table[history.ConnEnd, gap]
	seconds map[int64]int64   // bytes received, by second
	added   map[addition]bool // of additions
}

func (f *figureMaker) add(name scenario.FigureName, of string, v int64) {
	if g := f.all[name]; g != nil {
		g.add(of, max(v, 0))
	}
}

func (f *figureMaker) see(r *history.Record) {
	switch b := r.Body.(type) {
	case *history.Event:
		f.event(r, b)
	case *history.Return:
		f.returned(r, b)
	case *history.Received:
		f.received(r, b)
	}
}

func (f *figureMaker) event(r *history.Record, b *history.Event) {
	node := f.w.nodeOf(b.Subject)
	if node < 0 || b.What != history.EventAdded {
		return
	}
	start, ok := f.w.startOf(node, r.At)
	own, _ := f.w.procAt(r.Source.Node, r.At)
	one := addition{r.Source, node, start}
	if !ok || own == nil || own.start > start || f.added[one] {
		return // a later session is notified of incarnations that began long ago; and only once of a start
	}
	f.added[one] = true
	f.add(scenario.TimeToAdded, "", r.At-start)
}

// An addition is the notice to a source of a start of a node's daemon.
type addition struct {
	to    history.Source
	node  int
	start int64
}

// removed takes the times from the end of incarnations to the applications that are notified, as the
// expectation removed does. Where nothing was done to the node itself, a fault of the observer, or
// of the host, counts.
func (f *figureMaker) removed() {
	for _, of := range f.w.nodes.list {
		for _, s := range f.w.sessions.list {
			if s.source.Role == history.RoleApp && s.source.Node != of.id {
				for _, lost := range f.w.losses(of.id, s) {
					f.removedOne(of.id, s.source.Node, lost)
				}
			}
		}
	}
}

func (f *figureMaker) removedOne(node, observer int, lost loss) {
	removed := lost.known.removed
	if removed == never {
		return
	}
	x, since := lost.fault, lost.since
	if x == nil {
		if x = f.w.removable(node, observer, removed); x == nil {
			return
		}
		since = x.begin
	}
	if x.together(node, observer) {
		return
	}
	f.add(scenario.TimeToRemoved, x.What, removed-since)
}

// startOf returns when the process of a node that runs at a time was started,
// if it was started again. The lab may write a start only when the daemon
// serves, which is after others heard of it: then it is that time.
func (w *world) startOf(node int, at int64) (int64, bool) {
	p, i := w.procAt(node, at)
	if i < 1 {
		return 0, false
	}
	return min(p.start, at), true
}

// procAt returns the process of a node's daemon at a time: the last one whose
// predecessor had ended by then; nil and -1 if there is none.
func (w *world) procAt(node int, at int64) (*proc, int) {
	all := w.at(node).daemons
	for i, p := range slices.Backward(all) {
		if i == 0 || all[i-1].end <= at {
			return p, i
		}
	}
	return nil, -1
}

func (f *figureMaker) returned(r *history.Record, b *history.Return) {
	switch {
	case b.Name == "connect" && b.Status == "":
		f.add(scenario.ConnectTime, "", r.At-b.Began)
	case b.Name == "fence_wait" && b.Status == "":
		f.add(scenario.FenceTime, "", r.At-b.Began)
	case (b.Status == "ECONNRESET" || b.Status == "ENODEV") && b.Peer != addr.Incarnation{}:
		f.failed(r, b)
	}
}

// failed takes the time from a fault to the error of a call that it caught under
// way, or that was made before the loss was known.
func (f *figureMaker) failed(r *history.Record, b *history.Return) {
	node := f.w.nodeOf(b.Peer)
	if node < 0 || node == r.Source.Node {
		return
	}
	x := f.w.resettable(r.Source.Node, node, r.At)
	if x == nil || x.onNode(r.Source.Node) || !x.onNode(node) && !x.onApp(node) && !x.onWay(r.Source.Node, node) {
		return // the caller is lost, or the connection between them has ended
	}
	if f.w.spared(b.Conn, x, r.At) {
		return // a call that waits in peace until something else ends it
	}
	if at := f.notifiedAt(r.Source, b.Peer); b.Began <= at {
		f.add(scenario.TimeToError, x.What, r.At-max(x.begin, b.Began))
	}
}

// spared reports whether a fault did not end a connection at a time: it was made when the fault had
// begun, so that the fault does not keep the two apart, or one of its applications has closed it. A
// fault explains resets long behind it, when a node that was thought lost begins anew, or when a
// run ends; that is no time to an error.
func (w *world) spared(nonce uint64, x *fault, at int64) bool {
	c := w.conns.get(nonce)
	if c == nil {
		return false
	}
	opened := min(c.ends[0].opened, c.ends[1].opened)
	if opened != never && opened > x.begin+w.order() {
		return true
	}
	return slices.ContainsFunc(c.ends[:], func(e connEnd) bool {
		l := w.incarnations.get(e.local)
		living := l != nil && l.gone > e.closed+w.order() // else it closed because its fabricd was lost
		return living && e.how == history.HowClose && e.closed <= at+w.order()
	})
}

// notifiedAt returns when a source was notified of the end of an incarnation; never: it was not.
func (f *figureMaker) notifiedAt(s history.Source, l addr.Incarnation) int64 {
	if x := f.w.sessions.get(s); x != nil && x.known[l] != nil {
		return x.known[l].removed
	}
	return never
}

func (f *figureMaker) received(r *history.Record, b *history.Received) {
	f.seconds[r.At/1e9] += b.To - b.From
	g := f.gaps.of(b.ConnEnd, gap{conn: b.Conn, last: r.At})
	g.longest = max(g.longest, r.At-g.last)
	g.last = r.At
}

func (f *figureMaker) finish() {
	for _, g := range f.gaps.list {
		c := f.w.conns.get(g.conn)
		if c == nil || g.longest == 0 {
			continue
		}
		if a, b := f.w.nodesOf(c); a >= 0 && b >= 0 && !f.w.touchedBy(a, b, g.last) {
			f.add(scenario.Stalls, "", g.longest)
		}
	}
	f.removed()
	f.throughput()
	f.cpu()
	f.recovery()
	f.latency()
}

// touchedBy reports whether any fault up to a time has to do with one of two
// nodes or the link between them.
func (w *world) touchedBy(a, b int, at int64) bool {
	return slices.ContainsFunc(w.faults, func(f *fault) bool {
		return f.begin <= at && (f.onNode(a) || f.onNode(b) || f.onApp(a) || f.onApp(b) || f.onWay(a, b))
	})
}

// throughput takes every whole second between the first and the last byte.
func (f *figureMaker) throughput() {
	if len(f.seconds) == 0 {
		return
	}
	first, last := never, int64(0)
	for s := range f.seconds {
		first, last = min(first, s), max(last, s)
	}
	for s := first + 1; s < last; s++ {
		f.add(scenario.Throughput, "", f.seconds[s])
	}
}

// recovery takes the times from the last fault to the mesh and to connections.
func (f *figureMaker) recovery() {
	quiet := f.w.lastEnd()
	if quiet == never || len(f.w.faults) == 0 {
		return
	}
	if at, ok := meshSince(f.w, nil, quiet); ok && f.all[scenario.TimeToMesh] != nil {
		f.add(scenario.TimeToMesh, "", at-quiet)
	}
	for _, at := range connectsSince(f.w, quiet) {
		f.add(scenario.TimeToConnect, "", at-quiet)
	}
}

// connectsSince returns, for every pair of nodes (the connecting one first), when the first
// connection opened after a time.
func connectsSince(w *world, from int64) map[[2]int]int64 {
	first := map[[2]int]int64{}
	for _, c := range w.conns.list {
		e := c.ends[0]
		if e.opened == never || e.opened < from {
			continue
		}
		node := w.nodeOf(e.remote)
		pair := [2]int{e.source.Node, node}
		if at, known := first[pair]; node >= 0 && (!known || e.opened < at) {
			first[pair] = e.opened
		}
	}
	return first
}
