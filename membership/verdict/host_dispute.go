package verdict

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

// While there is no host, each side of a split announces the end of the other. The
// host that returns finds all of them alive. An end is never taken back, so of
// every two incarnations of which one has announced the other's end, one must begin anew.
//
// The host believes such a report only about such a time. At any other time, and
// about incarnations that began after it, a member that reports that it announced
// another's end is the one to begin anew, so that no member can have another one
// removed by false reports.

// maxLiars is how many members may lie together without another member being
// removed by their word.
const maxLiars = 2

// An outage is a time in which members may have been without this host: before it
// started, or while its process stood still. The zero outage is none.
type outage struct {
	until   time.Time                 // reports of members about it count until then
	known   map[addr.Incarnation]bool // incarnations that began before
	stalled bool                      // the members may rightly hold that the host's own incarnation is over

	over      map[addr.Incarnation]bool // of known: announced the end of the host's incarnation
	overUntil time.Time                 // deadline for enough of them; zero: none has yet
}

// beginOutage notes that members may have been without the host until now.
func (h *Host) beginOutage(until time.Time, stalled bool) {
	h.outage = outage{until: until, stalled: stalled, known: make(map[addr.Incarnation]bool), over: make(map[addr.Incarnation]bool)}
	for _, n := range h.nodes[1:] {
		if n.phase == live || n.phase == unclaimed {
			h.outage.known[n.node.Incarnation] = true
		}
	}
}

// about reports whether a report of by on the incarnation about can be of the outage.
func (o *outage) about(now time.Time, about, by addr.Incarnation) bool {
	return now.Before(o.until) && o.known[about] && o.known[by]
}

// hostOver counts that l has announced the end of the host's incarnation. It reports false
// if that cannot be of the outage, or if too few have done so within wait.
func (o *outage) hostOver(now time.Time, l addr.Incarnation, wait time.Duration) bool {
	if !o.stalled || !now.Before(o.until) || !o.known[l] {
		return false
	}
	o.over[l] = true
	if o.overUntil.IsZero() {
		o.overUntil = now.Add(wait)
	}
	return o.hostIsOver() || now.Before(o.overUntil)
}

// hostIsOver reports whether enough of the incarnations in known have announced the end of
// the host's incarnation.
func (o *outage) hostIsOver() bool {
	return o.stalled && len(o.over) >= min(maxLiars+1, len(o.known)) && 2*len(o.over) > len(o.known)
}

// many reports whether so many of all report the same that they are believed: more
// than can lie together, and most of all, or so many that most of them are honest.
func many(count, all int) bool {
	return count > maxLiars && (2*count > all || count > 2*maxLiars)
}

// A dispute is between two incarnations of which one announced the other's end while
// there was no host.
type dispute struct{ about, by addr.Incarnation }

// dispute notes that by has announced the end of about.
func (h *Host) dispute(now time.Time, about, by *hostNode) {
	d := dispute{about: about.node.Incarnation, by: by.node.Incarnation}
	if !h.outage.about(now, d.about, d.by) {
		h.remove(now, by, ReasonPartitioned)
		return
	}
	i, found := slices.BinarySearchFunc(h.disputes, d, func(a, b dispute) int {
		return cmp.Or(compareIncarnations(a.about, b.about), compareIncarnations(a.by, b.by))
	})
	if !found {
		h.disputes = slices.Insert(h.disputes, i, d)
	}
	if h.settle.IsZero() {
		h.settle = now.Add(h.t.Silence)
	}
}

func compareIncarnations(a, b addr.Incarnation) int {
	return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Generation, b.Generation))
}

// decide ends incarnations until no dispute is left. Every member had one silence bound to
// report.
func (h *Host) decide(now time.Time) {
	h.settle = time.Time{}
	for len(h.disputes) > 0 {
		loser := h.loser()
		h.disputes = slices.DeleteFunc(h.disputes, func(d dispute) bool { return d.about == loser || d.by == loser })
		if n := h.living(loser); n != nil {
			h.remove(now, n, ReasonPartitioned)
		}
	}
}

// loser returns the incarnation that is to end next. Precondition: there is a dispute. An incarnation
// that announced an end can lose by that alone; any other only if many announced its
// end. Of those it is the one with the most disputes, so that few have to begin anew,
// and of equals the one with the higher ID.
func (h *Host) loser() addr.Incarnation {
	disputes, against := make(map[addr.Incarnation]int), make(map[addr.Incarnation]int)
	own := make(map[addr.Incarnation]bool)
	for _, d := range h.disputes {
		disputes[d.about]++
		disputes[d.by]++
		against[d.about]++
		own[d.by] = true
	}
	var loser addr.Incarnation
	for _, l := range slices.SortedFunc(maps.Keys(disputes), compareIncarnations) {
		if (own[l] || many(against[l], len(h.outage.known))) && disputes[l] >= disputes[loser] {
			loser = l
		}
	}
	return loser
}
