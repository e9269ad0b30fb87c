package verdict

import (
	"cmp"
	"slices"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

// While there is no host, each side of a split tells the end of the other. The
// host that returns finds all of them alive. An end is never taken back, so of
// every two lives of which one has told the other's end, one must begin anew.
// The host hears everybody out for one silence bound and then chooses, so that
// few have to, and so that nobody can be thrown out by one other alone.

// dispute notes that by has told the end of about.
func (h *Host) dispute(now time.Time, about, by *hostNode) {
	d := dispute{about: about.node.Life, by: by.node.Life}
	i, found := slices.BinarySearchFunc(h.disputes, d, func(a, b dispute) int {
		return cmp.Or(compareLives(a.about, b.about), compareLives(a.by, b.by))
	})
	if !found {
		h.disputes = slices.Insert(h.disputes, i, d)
	}
	if h.settle.IsZero() {
		h.settle = now.Add(h.t.Silence)
	}
}

func compareLives(a, b addr.Life) int {
	return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Generation, b.Generation))
}

// decide ends lives until no dispute is left: first those whose end most
// others have told, at least two; then, of a pair that told each other's end,
// the one with the higher ID; then whoever is alone with what it told.
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

// loser returns the life that is to end next. There is a dispute.
func (h *Host) loser() addr.Life {
	against := make(map[addr.Life]int)
	for _, d := range h.disputes {
		against[d.about]++
	}
	worst := h.disputes[0].about
	for _, d := range h.disputes {
		c := cmp.Or(cmp.Compare(against[d.about], against[worst]), compareLives(d.about, worst))
		if c > 0 {
			worst = d.about
		}
	}
	d := h.disputes[0]
	switch {
	case against[worst] >= 2:
		return worst
	case compareLives(d.about, d.by) > 0 && slices.Contains(h.disputes, dispute{about: d.by, by: d.about}):
		return d.about
	}
	return d.by
}
