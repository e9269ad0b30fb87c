package conformance

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// Print writes the verdicts on the rows of each call, per API mode and pair, and on the
// pairs of call and error in SCIF's header. It reports whether none is broken and
// no pair unjudged.
func Print(w io.Writer, tallies []Tally) bool {
	failed := map[string]bool{}
	for _, t := range tallies {
		for _, id := range t.Failed {
			failed[id] = true
		}
	}
	rows := printRows(w, tallies)
	pairs := printPairs(w, failed)
	fmt.Fprintf(w, "\nrows of scif.md in all API modes: %d of %d hold, %d are missing, %d are broken; %d lines are not applicable\n",
		rows[holds], rows.all(), rows[missing], rows[broken], len(rests))
	fmt.Fprintf(w, "pairs of call and error in scif.h: %d of %d hold, %d are missing, %d are broken, %d are not applicable\n",
		pairs[holds], pairs.all(), pairs[missing], pairs[broken], pairs[inapplicable])
	return rows[broken] == 0 && pairs[broken] == 0 && pairs[unjudged] == 0
}

// printRows writes a line for each call and returns the sum of all.
func printRows(w io.Writer, tallies []Tally) (sum count) {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(tw, "rows that hold\t")
	for _, t := range tallies {
		fmt.Fprintf(tw, "%s\t", t.Mode)
	}
	fmt.Fprint(tw, "missing\tnot\t\n\t")
	for _, t := range tallies {
		fmt.Fprintf(tw, "%s\t", t.Pair)
	}
	fmt.Fprintln(tw, "\tapplicable\t")
	columns := make([]count, len(tallies))
	for _, call := range calls {
		fmt.Fprintf(tw, "%s\t", call)
		var all count
		for i, t := range tallies {
			n := t.Calls[call]
			fmt.Fprint(tw, fraction(n), "\t")
			columns[i], all = columns[i].plus(n), all.plus(n)
		}
		fmt.Fprintf(tw, "%d\t%d\t\n", all[missing], countRests(call))
		sum = sum.plus(all)
	}
	fmt.Fprint(tw, "all\t")
	for _, n := range columns {
		fmt.Fprint(tw, fraction(n), "\t")
	}
	fmt.Fprintf(tw, "%d\t%d\t\n", sum[missing], len(rests))
	tw.Flush()
	return sum
}

// printPairs writes a line for each call of the header and returns the sum of all.
func printPairs(w io.Writer, failed map[string]bool) (sum count) {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "\nerrors of scif.h\thold\tmissing\tbroken\tnot applicable\t")
	line := func(name string, n count) {
		fmt.Fprintf(tw, "%s\t%d of %d\t%d\t%d\t%d\t\n", name, n[holds], n.all(), n[missing], n[broken], n[inapplicable])
	}
	for _, call := range calls {
		n := judgePairs(call, failed)
		if n.all() > 0 {
			line(call, n)
		}
		sum = sum.plus(n)
	}
	line("all", sum)
	tw.Flush()
	return sum
}

// PrintReasons writes the missing rows, each with fabricd's substitute,
// and the lines of the contract that have no row, with the reasons.
func PrintReasons(w io.Writer) {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "\nmissing:")
	for _, r := range table() {
		if r.instead != "" {
			fmt.Fprintf(tw, "  %s\t%s\t%s\n", r.call, r.name, r.instead)
		}
	}
	fmt.Fprintf(tw, "\nnot applicable (%d):\n", len(rests))
	for _, r := range rests {
		fmt.Fprintf(tw, "  %s\t%s\t%s\n", r.call, r.name, r.why)
	}
	tw.Flush()
}

func fraction(n count) string {
	switch {
	case n.all() == 0:
		return "-"
	case n[broken] > 0:
		return fmt.Sprintf("%d of %d !", n[holds], n.all())
	}
	return fmt.Sprintf("%d of %d", n[holds], n.all())
}

func countRests(call string) (n int) {
	for _, r := range rests {
		if r.call == call {
			n++
		}
	}
	return n
}
