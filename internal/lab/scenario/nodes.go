package scenario

import (
	"slices"
	"strconv"
	"strings"
)

// A NodeRef is one entry of a [NodeSet]: a slot, or a word for some.
type NodeRef struct {
	ID   int
	Name string // host, nodes, all, others or $name; empty: ID
	Node string // the name of node ID, where the file has that instead of the number
}

// A NodeSet is a set of slots. In a file it is one entry or a list of them:
//
//	3              slot 3
//	db             the slot whose node has this name
//	host           slot 0
//	nodes          all but the host
//	all            all
//	others         all that the rest of the step, or no fault at all, touches
//	$victim        the slots that the selection victim has drawn
//	[0, 2, $more]  all of these
//
// A nil set was left out. In a [Schedule] every set is a sorted list of slots.
type NodeSet []NodeRef

// Slots returns the set of the given slots.
func Slots(ids ...int) NodeSet {
	set := make(NodeSet, len(ids))
	for i, id := range ids {
		set[i].ID = id
	}
	return set
}

// IDs returns the slots of a set in a [Schedule]; entries that are still names
// are left out.
func (s NodeSet) IDs() []int {
	ids := make([]int, 0, len(s))
	for _, r := range s {
		if r.Name == "" {
			ids = append(ids, r.ID)
		}
	}
	return ids
}

// The names of sets.
const (
	SetHost   = "host"
	SetNodes  = "nodes"
	SetAll    = "all"
	SetOthers = "others"
)

var setNames = []string{SetHost, SetNodes, SetAll, SetOthers}

// parse parses one entry, in a file that names its nodes like this.
func (r *NodeRef) parse(text string, names Names) bool {
	if slices.Contains(setNames, text) {
		r.Name = text
		return true
	}
	if name, ok := strings.CutPrefix(text, "$"); ok {
		r.Name = text
		return new(Name).parse(name)
	}
	if id, ok := names.slot(text); ok {
		r.ID, r.Node = id, text
		return true
	}
	id, err := strconv.Atoi(text)
	r.ID = id
	return err == nil && id >= 0 && id < MaxNodes && strconv.Itoa(id) == text
}

func (r NodeRef) String() string {
	switch {
	case r.Name != "":
		return r.Name
	case r.Node != "":
		return r.Node
	}
	return strconv.Itoa(r.ID)
}

const nodesAllowed = "want a slot, the name of a node, host, nodes, all, others, $name, or a list of them"

// Names are the names of nodes, from slot 0 on. Nodes behind the last of them are
// n3, n4, …: the letter and their slot.
type Names []Name

// Of returns the name of a slot's node.
func (n Names) Of(slot int) string {
	if slot < len(n) {
		return string(n[slot])
	}
	return "n" + strconv.Itoa(slot)
}

// slot returns the slot whose node has a name.
func (n Names) slot(name string) (int, bool) {
	if i := slices.Index(n, Name(name)); i >= 0 {
		return i, true
	}
	number, ok := strings.CutPrefix(name, "n")
	slot, err := strconv.Atoi(number)
	return slot, ok && err == nil && slot >= len(n) && slot < MaxNodes && n.Of(slot) == name
}

// String returns the set as a file has it.
func (s NodeSet) String() string {
	if len(s) == 1 {
		return s[0].String()
	}
	all := make([]string, len(s))
	for i, r := range s {
		all[i] = r.String()
	}
	return "[" + strings.Join(all, ", ") + "]"
}

// Groups are the sides of a [Partition].
type Groups []NodeSet

// Pairs are the slots that talk to each other: none, mesh (every two), ring (each
// with the next), star (the host with each), or a list.
type Pairs struct {
	Shape string   // empty: List counts, or there are none
	List  [][2]int // each pair once
}

var pairShapes = []string{"none", "mesh", "ring", "star"}

// Of returns the pairs of a cluster of n slots, the lower slot first, in order.
func (p Pairs) Of(n int) [][2]int {
	var all [][2]int
	add := func(a, b int) {
		if pair := [2]int{min(a, b), max(a, b)}; a != b && !slices.Contains(all, pair) {
			all = append(all, pair)
		}
	}
	switch p.Shape {
	case "mesh":
		for a := range n {
			for b := a + 1; b < n; b++ {
				all = append(all, [2]int{a, b})
			}
		}
	case "ring":
		for a := range n {
			add(a, (a+1)%n)
		}
	case "star":
		for b := 1; b < n; b++ {
			add(0, b)
		}
	default:
		for _, pair := range p.List {
			add(pair[0], pair[1])
		}
	}
	return all
}
