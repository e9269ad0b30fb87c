package scenario

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// inExpect is how an expectation may name slots.
var inExpect = setUse{selection: true}

// withOthers is inExpect where others means the slots that no fault touches.
var withOthers = setUse{selection: true, others: true}

// expect checks one expectation.
func (c *checker) expect(at string, e *Expect) {
	set := setFields(valueOf(e))
	if len(set) != 1 {
		c.bad(at, fmt.Sprint(set), "want exactly one expectation of %s", keysOf(reflect.TypeFor[Expect]()))
		return
	}
	at += "." + set[0]
	switch {
	case e.Removed != nil:
		c.set(at+".node", e.Removed.Node, inExpect)
		c.set(at+".at", e.Removed.At, withOthers)
	case e.Added != nil:
		c.set(at+".node", e.Added.Node, inExpect)
		c.set(at+".at", e.Added.At, withOthers)
		c.after(at, e.Added.After, AfterStart, AfterLast)
	case e.Errors != nil:
		c.set(at+".to", e.Errors.To, inExpect)
		c.set(at+".from", e.Errors.From, withOthers)
	case e.Unharmed != nil:
		c.set(at+".nodes", e.Unharmed.Nodes, withOthers)
	case e.Removals != nil && e.Removals.Min > e.Removals.Max:
		c.bad(at+".min", fmt.Sprint(e.Removals.Min), "is above max, %d", e.Removals.Max)
	case e.Mesh != nil:
		c.set(at+".nodes", e.Mesh.Nodes, withOthers)
		c.after(at, e.Mesh.After, AfterLast, AfterBegin)
	case e.Connects != nil:
		c.set(at+".among", e.Connects.Among, withOthers)
		c.after(at, e.Connects.After, AfterLast, AfterBegin)
		if c.s.Workload.Connects == 0 {
			c.bad(at, "", "the workload has no connects")
		}
	case e.Traffic != nil:
		c.set(at+".among", e.Traffic.Among, withOthers)
		if c.s.Workload.Messages == nil {
			c.bad(at, "", "the workload has no messages")
		}
		if e.Traffic.Stall == 0 && e.Traffic.Least == 0 {
			c.bad(at+".stall", "", "want stall, least or both")
		}
	case e.Latency != nil:
		c.set(at+".among", e.Latency.Among, withOthers)
		c.latency(at, e.Latency)
	case e.Exits != nil:
		c.set(at+".node", e.Exits.Node, inExpect)
	case e.CPU != nil:
		c.set(at+".nodes", e.CPU.Nodes, withOthers)
		c.labs(at, "", Local, Netns, Compose)
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

func valueOf(v any) reflect.Value { return reflect.ValueOf(v).Elem() }

func join2[T ~string](all []T) string { return strings.Join(list(all...), ", ") }

// has reports whether the set has an entry of this name.
func (s NodeSet) has(name string) bool {
	return slices.ContainsFunc(s, func(r NodeRef) bool { return r.Name == name })
}
