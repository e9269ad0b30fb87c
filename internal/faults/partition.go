package faults

import (
	"fmt"
	"slices"
	"strings"

	"github.com/fabricd/fabricd/fabric/addr"
)

// A Direction is the set of links that a partition cuts.
type Direction string

// The directions.
const (
	// Symmetric cuts every two groups from each other, both ways.
	Symmetric Direction = "symmetric"
	// Asymmetric cuts the traffic of each group to those named after it; the other way stays open.
	Asymmetric Direction = "asymmetric"
	// Partial cuts only neighbours in the list, both ways: of 0/1/2 it cuts 0
	// from 1 and 1 from 2, and leaves 0 and 2 connected.
	Partial Direction = "partial"
)

// Partition returns the rules that separate groups of nodes: copies of like, which gives the
// effect, the duration and the name. Without any effect in like they are cuts of all planes. Nodes
// that are in no group reach all others. The rules are checked.
func Partition(groups []Nodes, d Direction, like Rule) ([]Rule, error) {
	if err := checkGroups(groups); err != nil {
		return nil, err
	}
	if len(like.effects()) == 0 {
		like.Cut = true
	}
	if like.On == "" {
		like.On = All
	}
	var rules []Rule
	cut := func(a, b Nodes) {
		r := like
		r.From, r.To = slices.Clone(a), slices.Clone(b)
		rules = append(rules, r)
	}
	switch d {
	case Symmetric, "":
		for i, g := range groups {
			cut(g, rest(groups, i))
		}
	case Asymmetric:
		for i := range len(groups) - 1 {
			cut(groups[i], slices.Concat(groups[i+1:]...))
		}
	case Partial:
		for i := range len(groups) - 1 {
			cut(groups[i], groups[i+1])
			cut(groups[i+1], groups[i])
		}
	default:
		return nil, &FieldError{"direction", string(d), "want symmetric, asymmetric or partial"}
	}
	for i := range rules {
		if err := rules[i].Check(); err != nil {
			return nil, err
		}
	}
	return rules, nil
}

// rest returns the nodes of all groups but one.
func rest(groups []Nodes, but int) Nodes {
	var all Nodes
	for i, g := range groups {
		if i != but {
			all = append(all, g...)
		}
	}
	return all
}

// checkGroups refuses groups that do not separate anything.
func checkGroups(groups []Nodes) error {
	if len(groups) < 2 {
		return &FieldError{"groups", formatGroups(groups), "want at least two groups of nodes"}
	}
	seen := map[addr.NodeID]bool{}
	for _, g := range groups {
		if len(g) == 0 {
			return &FieldError{"groups", formatGroups(groups), "has an empty group"}
		}
		for _, id := range g {
			if seen[id] {
				return &FieldError{"groups", formatGroups(groups), fmt.Sprintf("has node %d twice", id)}
			}
			seen[id] = true
		}
	}
	return nil
}

// ParseGroups parses groups of nodes, "0,1/2,3,4".
func ParseGroups(s string) ([]Nodes, error) {
	var groups []Nodes
	for text := range strings.SplitSeq(s, "/") {
		if strings.TrimSpace(text) == "" {
			return nil, &FieldError{"groups", s, "want groups of node IDs, as 0,1/2,3,4"}
		}
		g, err := ParseNodes(text)
		if err != nil || len(g) == 0 {
			return nil, &FieldError{"groups", s, "want groups of node IDs, as 0,1/2,3,4"}
		}
		groups = append(groups, g)
		if len(groups) > MaxNodes {
			return nil, &FieldError{"groups", fmt.Sprint(len(groups)), fmt.Sprintf("want at most %d groups", MaxNodes)}
		}
	}
	return groups, checkGroups(groups)
}

func formatGroups(groups []Nodes) string {
	var all []string
	for _, g := range groups {
		all = append(all, g.String())
	}
	return strings.Join(all, "/")
}
