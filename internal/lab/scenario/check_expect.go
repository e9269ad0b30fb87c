package scenario

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// inExpect is how an expectation may name nodes.
var inExpect = setUse{selection: true}

// expect checks one expectation.
func (c *checker) expect(at string, e *Expect) {
	at, ok := c.one(at, "expectation", valueOf(e), inExpect)
	if !ok {
		return
	}
	switch {
	case e.Added != nil:
		c.after(at, e.Added.After, AfterStart, AfterLast)
	case e.Removals != nil && e.Removals.Min > e.Removals.Max:
		c.bad(at+".min", fmt.Sprint(e.Removals.Min), "is above max, %d", e.Removals.Max)
	case e.Mesh != nil:
		c.after(at, e.Mesh.After, AfterLast, AfterBegin)
	case e.Connects != nil:
		c.after(at, e.Connects.After, AfterLast, AfterBegin)
		if c.s.Workload.Connects == 0 {
			c.bad(at, "", "the workload has no connects")
		}
	case e.Traffic != nil:
		if c.s.Workload.Messages == nil {
			c.bad(at, "", "the workload has no messages")
		}
		if e.Traffic.Stall == 0 && e.Traffic.Least == 0 {
			c.bad(at+".stall", "", "want stall, least or both")
		}
	case e.Latency != nil:
		c.latency(at, e.Latency)
	case e.CPU != nil:
		c.labs(at, "", realLabs...)
	}
}

// latency checks that there is something to hold to something.
func (c *checker) latency(at string, e *ExpectLatency) {
	w := c.s.Workload
	if w.Connects == 0 && w.Messages == nil && (w.RMA == nil || w.RMA.Fence == 0) {
		c.bad(at, "", "the workload has no connects, no messages and no fences")
	}
	if e.P99 == 0 && e.Times == 0 {
		c.bad(at+".p99", "", "want p99, times or both")
	}
}

// after checks the moment from which an expectation counts.
func (c *checker) after(at string, after After, allowed ...After) {
	if after == "" || slices.Contains(allowed, after) {
		return
	}
	c.bad(at+".after", string(after), "want one of %s", strings.Join(list(allowed...), ", "))
}

// one checks that exactly one key of a union is set, and the sets of nodes of its mapping, whose
// place in the file it returns.
func (c *checker) one(at, what string, union reflect.Value, use setUse) (string, bool) {
	set := setFields(union)
	if len(set) != 1 {
		c.bad(at, fmt.Sprint(set), "want exactly one %s of %s", what, keysOf(union.Type()))
		return at, false
	}
	at += "." + set[0]
	mapping := theOne(union)
	for _, f := range fieldsOf(mapping.Type()) {
		if nodes, ok := mapping.FieldByIndex(f.index).Interface().(NodeSet); ok {
			use.others = f.others
			c.set(at+"."+f.key, nodes, use)
		}
	}
	return at, true
}

func valueOf(v any) reflect.Value { return reflect.ValueOf(v).Elem() }

func join2[T ~string](all []T) string { return strings.Join(list(all...), ", ") }

// has reports whether the set has an entry of this name.
func (s NodeSet) has(name string) bool {
	return slices.ContainsFunc(s, func(r NodeRef) bool { return r.Name == name })
}
