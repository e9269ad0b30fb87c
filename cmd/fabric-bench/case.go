package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// A benchCase is measured as a whole: its rows come from the same measurements, alternating between
// ours and its baselines.
type benchCase struct {
	name    string // for --only
	setup   setup
	sources []string // to be measured, ours first
	rows    []rowSpec
	once    bool // one run is many measurements: it is not repeated
	measure measureFunc
}

// A measureFunc measures one source once. It returns a reading for each row.
type measureFunc func(ctx context.Context, b *bench, source string) ([]reading, error)

// A reading is the result of one measurement for one row.
type reading struct {
	value figure
	cpu   figure // absent: not measured
}

// A rowSpec is a row of the report.
type rowSpec struct {
	what, unit string
	cpuUnit    string
	baseline   string // the source that targets compare with; empty: target is a bound in unit
	target     *figure
	cpuTarget  *figure // largest ours/baseline
}

// moreIsBetter reports whether a larger figure in this unit is the better one.
func moreIsBetter(unit string) bool { return unit == megabytes || unit == perSecond }

func to(f figure) *figure { return &f }

// A setup is the lab that a case needs; cases with the same setup share one.
type setup struct {
	none      bool   // the case needs no lab
	paths     string // the settings of both fabricds
	providers string
	plaintext bool
	way       string // network between the machines; empty: a veth pair
	conns     int    // not 0: number of connections, in processes that have held none before
}

func (s setup) String() string {
	if s.none {
		return "no lab"
	}
	parts := []string{"paths " + s.paths}
	if s.providers != "" {
		parts = append(parts, "providers "+s.providers)
	}
	security := "TLS"
	if s.plaintext {
		security = "plaintext"
	}
	parts = append(parts, security)
	if s.way != "" {
		parts = append(parts, "way "+s.way)
	}
	return strings.Join(parts, ", ")
}

// flags returns the flags of both fabricds.
func (s setup) flags() []string {
	flags := []string{"--paths", s.paths}
	if s.providers != "" {
		flags = append(flags, "--providers", s.providers)
	}
	if s.plaintext {
		flags = append(flags, "--tcp-plaintext")
	}
	return flags
}

// choose returns the cases named by names, exactly or up to a dash; all if names is empty.
func choose(all []benchCase, names []string) ([]benchCase, error) {
	if len(names) == 0 {
		return all, nil
	}
	var picked []benchCase
	for _, c := range all {
		if slices.ContainsFunc(names, func(n string) bool { return c.name == n || strings.HasPrefix(c.name, n+"-") }) {
			picked = append(picked, c)
		}
	}
	for _, n := range names {
		if !slices.ContainsFunc(all, func(c benchCase) bool { return c.name == n || strings.HasPrefix(c.name, n+"-") }) {
			return nil, usagef("there is no case %q; `fabric-bench list` has them", n)
		}
	}
	return picked, nil
}

// describe returns the case's line in `list`.
func (c benchCase) describe() string {
	var what []string
	for _, r := range c.rows {
		what = append(what, r.what)
	}
	return fmt.Sprintf("%-18s %s; beside %s; %s", c.name, strings.Join(what, ", "), strings.Join(c.sources[1:], ", "), c.setup)
}
