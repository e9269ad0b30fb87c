package sim

import (
	"fmt"
	"reflect"
	"time"

	"github.com/fabricd/fabricd/internal/lab/history"
	"github.com/fabricd/fabricd/membership/verdict"
)

// A Stayed is the result of a [Stay].
type Stayed struct {
	Incarnations uint64 // that began
	// Sizes is how many elements the lists and tables of the host and of a member
	// have together that never stopped, at the end of each hour.
	Sizes []int
}

// Stay runs a cluster for some hours in which the host and one member stay, and the
// others come and go as with [Churn], one fault or two a minute. Each hour ends with
// a cluster that is whole.
func Stay(seed uint64, nodes int, hours int) (Stayed, error) {
	w := newWorld(seed, nodes, verdict.Normal(), Options{})
	w.log.keep = func(history.Record) bool { return false }
	for _, m := range w.machines {
		w.boot(m)
	}
	c := &churn{w: w, stay: 2}
	var out Stayed
	for hour := range hours {
		for end := time.Duration(hour+1) * time.Hour; w.now < end; {
			c.fault()
			w.until(w.now + between(w.rng, 10*time.Second, time.Minute))
		}
		if err := c.heal(); err != nil {
			return out, err
		}
		if w.watch.bugs > 0 {
			return out, fmt.Errorf("by %v: %d promises were broken", w.now, w.watch.bugs)
		}
		size := 0
		for _, m := range w.machines[:c.stay] {
			size += m.proc.size()
		}
		out.Incarnations, out.Sizes = w.watch.incarnations, append(out.Sizes, size)
	}
	return out, nil
}

// size counts the elements that a fabricd keeps: in the deciding machines, and in the
// shells around them.
func (p *proc) size() int {
	n, a := p.node, p.agent
	size := len(n.listeners) + len(n.peers) + len(n.links) + len(n.sessions) + len(n.changes) +
		len(a.todo) + len(a.sessions) + len(a.peers) + len(a.lines.All()) + len(a.over) + len(a.writes) + len(a.events)
	seen := make(map[uintptr]bool)
	return size + elements(reflect.ValueOf(a.host), seen) + elements(reflect.ValueOf(a.member), seen)
}

// elements counts the elements of all lists and tables that v leads to.
func elements(v reflect.Value, seen map[uintptr]bool) (n int) {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() || seen[v.Pointer()] {
			return 0
		}
		seen[v.Pointer()] = true
		return elements(v.Elem(), seen)
	case reflect.Interface:
		return elements(v.Elem(), seen)
	case reflect.Struct:
		for i := range v.NumField() {
			n += elements(v.Field(i), seen)
		}
	case reflect.Slice, reflect.Array:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return 0
		}
		for i := range v.Len() {
			n += 1 + elements(v.Index(i), seen)
		}
	case reflect.Map:
		for it := v.MapRange(); it.Next(); {
			n += 1 + elements(it.Value(), seen)
		}
	}
	return n
}
