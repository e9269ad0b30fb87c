package conformance

import (
	"context"
	"testing"
)

// A Tally counts, for one API mode and one kind of pair, the verdicts on the rows of
// each call.
type Tally struct {
	Mode  string
	Pair  Pair
	Calls map[string]count
	// Failed are the rows that do not hold.
	Failed []string
}

// add counts a row.
func (t *Tally) add(r row, passed bool) {
	v := holds
	switch {
	case !passed:
		v = broken
		t.Failed = append(t.Failed, r.id())
	case r.instead != "":
		v = missing
	}
	n := t.Calls[r.call]
	n[v]++
	t.Calls[r.call] = n
}

// Run runs every row in the mode, as sub-tests of t with the names
// pair/call/row, and returns the tallies.
func Run(t *testing.T, mode Mode) []Tally {
	var tallies []Tally
	for _, pair := range mode.Pairs {
		tally := Tally{Mode: mode.Name, Pair: pair, Calls: map[string]count{}}
		t.Run(string(pair), func(t *testing.T) {
			shared := newPlace(t, mode, pair, row{})
			var ends []row
			for _, r := range table() {
				switch {
				case !r.isFor(mode, pair):
				case r.ending != nil:
					ends = append(ends, r)
				case r.test() == nil:
					tally.add(r, true)
				default:
					tally.add(r, t.Run(r.id(), func(t *testing.T) { shared.run(t, r) }))
				}
			}
			for _, e := range endings {
				shared.end(t, e, ends, &tally)
			}
		})
		tallies = append(tallies, tally)
	}
	return tallies
}

// A place is a cluster and the two applications on it that rows share.
type place struct {
	mode Mode
	check
}

func newPlace(tb testing.TB, mode Mode, pair Pair, r row) place {
	site := mode.Start(tb, r.wait)
	near := site.App(0, true)
	far := near
	switch pair {
	case Across:
		far = site.App(1, true)
	case SameNode:
		far = site.App(0, true)
	}
	return place{mode, check{site: site, pair: pair, near: near, far: far, settles: mode.Settles}}
}

// of returns the check of one test.
func (p place) of(t *testing.T) *check {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	c := p.check
	c.TB, c.ctx = t, ctx
	return &c
}

// run runs one row, in a cluster of its own if it needs one.
func (p place) run(t *testing.T, r row) {
	if r.alone {
		p = newPlace(t, p.mode, p.pair, r)
	}
	r.test()(p.of(t))
}
