package main

import (
	"fmt"
	"slices"
)

// A clusterTable is the results of tests of a whole cluster, as a table of its own.
type clusterTable struct {
	tests   []string
	caption string
	head    []string
	words   int // how many of the first columns are words
	cells   func(Result) []string
}

// clusterTables are those of the tests that neither latencies nor bandwidths show.
var clusterTables = []clusterTable{
	{
		tests: []string{eventTest, returnTest}, words: 3,
		caption: fmt.Sprintf("Lost nodes: ms until NODE_REMOVED (%s), until a blocked receive returned ECONNRESET (%s)", eventTest, returnTest),
		head:    []string{"test", "provider", "lost by", "losses", "seen", "min", "p50", "p90", "p99", "max"},
		cells: func(r Result) []string {
			return []string{r.Test, r.Provider, r.Dir, fmt.Sprint(r.Reps), fmt.Sprint(r.Iters), short(r.LatMin / 1e3), short(r.LatP50 / 1e3),
				short(r.LatP90 / 1e3), short(r.LatP99 / 1e3), short(r.LatMax / 1e3)}
		},
	},
	{
		tests: []string{falseTest}, words: 3,
		caption: "Nodes that are well: how often one was seen to go, and how often an hour at each node",
		head:    []string{"test", "provider", "where", "reps", "removals", "an hour: min/median/max"},
		cells: func(r Result) []string {
			return []string{r.Test, r.Provider, r.Dir, fmt.Sprint(r.Reps), fmt.Sprint(r.Iters), spread(r)}
		},
	},
}

// has reports whether the table shows a test.
func (c clusterTable) has(test string) bool { return slices.Contains(c.tests, test) }

// rows returns the cells of the table.
func (c clusterTable) rows(results []Result) (rows [][]string) {
	for _, r := range results {
		if c.has(r.Test) {
			rows = append(rows, c.cells(r))
		}
	}
	return rows
}

// clusterTest reports whether a test has its rows in clusterTables.
func clusterTest(name string) bool {
	return slices.ContainsFunc(clusterTables, func(c clusterTable) bool { return c.has(name) })
}

// clusters prints what was measured of whole clusters.
func (t *table) clusters(d *Document) {
	for _, c := range clusterTables {
		rows := c.rows(d.Results)
		if len(rows) == 0 {
			continue
		}
		t.title("\n%s", c.caption)
		t.row(c.head...)
		for _, cells := range rows {
			t.row(cells...)
		}
		if d.Complete && c.has(eventTest) {
			t.title("every survivor saw each loss once, and each node back with the next generation; no other event")
		}
	}
}
