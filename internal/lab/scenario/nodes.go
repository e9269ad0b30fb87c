package scenario

import (
	"slices"
	"strconv"
	"strings"
)

// A NodeRef is one entry of a [NodeSet]: a node, or a word for some.
type NodeRef struct {
	ID   int
	Name string // host, nodes, all, others or $name; empty: ID
	Node string // the name of node ID, where the file has that instead of the number
}

// A NodeSet is a set of nodes. In a file it is one entry or a list of them:
//
//	3              node 3
//	db             the node that has this name
//	host           node 0
//	nodes          all but the host
//	all            all
//	others         all that the rest of the step, or no fault at all, touches
//	$victim        the nodes that the selection victim has drawn
//	[0, 2, $more]  all of these
//
// A nil set was left out. In a [Schedule] every set is a sorted list of nodes.
type NodeSet []NodeRef

// NodesOf returns the set of the given nodes.
func NodesOf(ids ...int) NodeSet {
	set := make(NodeSet, len(ids))
	for i, id := range ids {
		set[i].ID = id
	}
	return set
}

// IDs returns the nodes of a set in a [Schedule]; entries that are still names
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
	if id, ok := names.node(text); ok {
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

const nodesAllowed = "want the index or the name of a node, host, nodes, all, others, $name, or a list of them"

// Names are the names of nodes, from node 0 on. Nodes behind the last of them are
// n3, n4, …: the letter and their index.
type Names []Name

// Of returns the name of a node.
func (n Names) Of(node int) string {
	if node < len(n) {
		return string(n[node])
	}
	return "n" + strconv.Itoa(node)
}

// node returns the node that has a name.
func (n Names) node(name string) (int, bool) {
	if i := slices.Index(n, Name(name)); i >= 0 {
		return i, true
	}
	number, ok := strings.CutPrefix(name, "n")
	node, err := strconv.Atoi(number)
	return node, ok && err == nil && node >= len(n) && node < MaxNodes && n.Of(node) == name
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

// Pairs are the nodes that talk to each other: none, mesh (every two), ring (each
// with the next), star (the host with each), or a list.
type Pairs struct {
	Shape string   // empty: List counts, or there are none
	List  [][2]int // each pair once
}

var pairShapes = []string{"none", "mesh", "ring", "star"}

// Of returns the pairs of a cluster of n nodes, the lower node first, in order.
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
