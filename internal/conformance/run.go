package conformance

import (
	"context"
	"fmt"
	"io"
	"testing"
	"text/tabwriter"
)

// A Tally counts, for one door and one kind of pair, how many rows of each
// call hold.
type Tally struct {
	Door        string
	Pair        Pair
	Hold, Total map[string]int // by call
}

// Run runs every row through the door, as sub-tests of t with the names
// pair/call/row, and returns what holds.
func Run(t *testing.T, door Door) []Tally {
	var tallies []Tally
	for _, pair := range door.Pairs {
		tally := Tally{Door: door.Name, Pair: pair, Hold: map[string]int{}, Total: map[string]int{}}
		t.Run(string(pair), func(t *testing.T) {
			shared := newPlace(t, door, pair, row{})
			for _, r := range table() {
				if !r.isFor(pair) {
					continue
				}
				tally.Total[r.call]++
				if t.Run(r.call+"/"+r.name, func(t *testing.T) { shared.run(t, r) }) {
					tally.Hold[r.call]++
				}
			}
		})
		tallies = append(tallies, tally)
	}
	return tallies
}

// A place is a cluster and the two applications on it that rows share.
type place struct {
	door Door
	check
}

func newPlace(tb testing.TB, door Door, pair Pair, r row) place {
	site := door.Start(tb, r.wait)
	near := site.App(0, true)
	far := near
	switch pair {
	case Across:
		far = site.App(1, true)
	case SameNode:
		far = site.App(0, true)
	}
	return place{door, check{site: site, pair: pair, near: near, far: far, settles: door.Settles}}
}

// run runs one row, in a cluster of its own if it needs one.
func (p place) run(t *testing.T, r row) {
	if r.alone {
		p = newPlace(t, p.door, p.pair, r)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	c := p.check
	c.TB, c.ctx = t, ctx
	r.check(&c)
}

// Print writes how many rows of each call hold, per door and pair, and how
// many lines of the contract have no row. It reports whether all rows hold.
func Print(w io.Writer, tallies []Tally) bool {
	unmet := 0
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(tw, "call\t")
	for _, t := range tallies {
		fmt.Fprintf(tw, "%s\t", t.Door)
	}
	fmt.Fprint(tw, "not\t\n\t")
	for _, t := range tallies {
		fmt.Fprintf(tw, "%s\t", t.Pair)
	}
	fmt.Fprintln(tw, "applicable\t")
	for _, call := range calls {
		fmt.Fprintf(tw, "%s\t", call)
		for _, t := range tallies {
			unmet += t.Total[call] - t.Hold[call]
			fmt.Fprint(tw, fraction(t.Hold[call], t.Total[call]), "\t")
		}
		fmt.Fprintf(tw, "%d\t\n", countRests(call))
	}
	fmt.Fprint(tw, "all\t")
	for _, t := range tallies {
		fmt.Fprint(tw, fraction(sum(t.Hold), sum(t.Total)), "\t")
	}
	fmt.Fprintf(tw, "%d\t\n", len(rests))
	tw.Flush()
	return unmet == 0
}

// PrintRests writes the lines of the contract that have no row, with the
// reasons.
func PrintRests(w io.Writer) {
	fmt.Fprintf(w, "\nnot applicable (%d):\n", len(rests))
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, r := range rests {
		fmt.Fprintf(tw, "  %s\t%s\t%s\n", r.call, r.name, r.why)
	}
	tw.Flush()
}

func fraction(hold, total int) string {
	if total == 0 {
		return "-"
	}
	if hold < total {
		return fmt.Sprintf("%d of %d !", hold, total)
	}
	return fmt.Sprintf("%d of %d", hold, total)
}

func countRests(call string) (n int) {
	for _, r := range rests {
		if r.call == call {
			n++
		}
	}
	return n
}

func sum(counts map[string]int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}
