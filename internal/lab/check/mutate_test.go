package check_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/fabricd/fabricd/internal/lab/check"
	"github.com/fabricd/fabricd/internal/lab/history"
)

// A mutation spoils one record of a right history.
type mutation struct {
	name string
	// fits reports whether record i can be spoiled so.
	fits func(e *edit, i int) bool
	// same reports that the history is as right as before when record i is
	// spoiled, for a reason that its comment gives. nil: never.
	same  func(e *edit, i int) bool
	spoil func(e *edit, i int)
}

// is fits records with a body of type B.
func is[B history.Body](e *edit, i int) bool {
	_, ok := e.records[i].Body.(B)
	return ok
}

// isEvent fits events of one kind.
func isEvent(what history.EventKind) func(e *edit, i int) bool {
	return func(e *edit, i int) bool {
		b, ok := e.records[i].Body.(*event)
		return ok && b.What == what
	}
}

// bytes fits records of some bytes.
func bytes(e *edit, i int) bool {
	switch b := e.records[i].Body.(type) {
	case *received:
		return b.To > b.From
	case *history.Sent:
		return b.To > b.From
	}
	return false
}

func drop(e *edit, i int)  { e.drop(i) }
func twice(e *edit, i int) { e.twice(i) }

// renewed: the observer gets a new incarnation of its own, and so a new view, before
// anything more is reported of the node.
func renewed(e *edit, i int) bool {
	notified, source := body[*event](e, i), e.records[i].Source
	for _, r := range e.records[i+1:] {
		b, ok := r.Body.(*event)
		switch {
		case !ok || r.Source != source:
		case b.What == history.EventSelf:
			return true
		case b.Subject.Node == notified.Subject.Node:
			return false
		}
	}
	return false
}

// lastReceived: nothing more is received and the end of the stream is not read, so the receiver has
// read less, or more of the offered bytes, before a loss.
func lastReceived(e *edit, i int) bool {
	b := body[*received](e, i)
	for _, r := range e.records[i+1:] {
		switch x := r.Body.(type) {
		case *received:
			if x.ConnEnd == b.ConnEnd && x.To > x.From {
				return false
			}
		case *closed:
			if x.ConnEnd == b.ConnEnd {
				return x.How != history.HowEOF
			}
		}
	}
	return true
}

var mutations = []mutation{
	{"drop added", isEvent(history.EventAdded), renewed, drop},
	{"drop removed", isEvent(history.EventRemoved), renewed, drop},
	{"drop received", bytes2[*received], lastReceived, drop},
	{"drop sent", bytes2[*history.Sent], func(e *edit, i int) bool { // the last: the offered bytes may have been accepted
		b := body[*history.Sent](e, i)
		return find(e, 0, func(_ rec, c *history.Sent) bool { return c.ConnEnd == b.ConnEnd && c.From >= b.To && c.To > c.From }) < 0
	}, drop},
	{"drop rma", is[*history.RMA], nil, drop},
	{"drop fenced", func(e *edit, i int) bool {
		b, ok := e.records[i].Body.(*history.Fenced)
		return ok && b.Status == ""
	}, func(e *edit, i int) bool { // an earlier wait covered as much
		b := body[*history.Fenced](e, i)
		j := find(e, 0, func(_ rec, c *history.Fenced) bool {
			return c.ConnEnd == b.ConnEnd && c.Upto == b.Upto && c.Status == ""
		})
		return j < i
	}, drop},
	{"drop signal", is[*history.Signal], nil, drop},
	{"drop window", is[*history.Window], nil, drop},
	{"drop fault", is[*history.Fault], nil, drop},
	{"drop fault end", is[*history.FaultEnd], nil, drop},
	{"drop begin", is[*history.Begin], nil, drop},
	{"drop end", is[*history.End], nil, drop},
	{"drop the end of a lost call", func(e *edit, i int) bool {
		b, ok := e.records[i].Body.(*ret)
		return ok && lostCall(e.records[i], b)
	}, nil, drop},

	{"added twice", isEvent(history.EventAdded), nil, twice},
	{"removed twice", isEvent(history.EventRemoved), nil, twice},
	{"received twice", bytes2[*received], nil, twice},
	{"sent twice", bytes2[*history.Sent], nil, twice},
	{"rma twice", is[*history.RMA], nil, twice},
	{"rma done twice", is[*history.RMADone], nil, twice},
	{"signal seen twice", is[*history.SignalSeen], nil, twice},
	{"window twice", is[*history.Window], nil, twice},
	{"fault twice", is[*history.Fault], nil, twice},
	{"fault end twice", is[*history.FaultEnd], nil, twice},
	{"begin twice", is[*history.Begin], nil, twice},
	{"end twice", is[*history.End], nil, twice},

	{"added of the next generation", isEvent(history.EventAdded), renewed, func(e *edit, i int) { body[*event](e, i).Subject.Generation++ }},
	{"removed of the next generation", isEvent(history.EventRemoved), nil, func(e *edit, i int) { body[*event](e, i).Subject.Generation++ }},
	{"removed of another node", isEvent(history.EventRemoved), nil, func(e *edit, i int) { body[*event](e, i).Subject.Node += 1000 }},
	{"self of the next generation", isEvent(history.EventSelf), nil, func(e *edit, i int) { body[*event](e, i).Subject.Generation += 1000 }},
	{"self of another node", isEvent(history.EventSelf), nil, func(e *edit, i int) {
		b := body[*event](e, i)
		b.Subject.Node = (b.Subject.Node + 1) % 2 // the host, or node 1: they live for ever
	}},

	{"one byte more received", bytes2[*received], func(e *edit, i int) bool {
		b := body[*received](e, i) // it had been offered, and nothing follows
		j := find(e, -1, func(r rec, o *history.Offered) bool {
			return o.Conn == b.Conn && o.Side != b.Side && r.At <= e.records[i].At
		})
		return lastReceived(e, i) && j >= 0 && body[*history.Offered](e, j).To > b.To
	}, func(e *edit, i int) { body[*received](e, i).To++ }},
	{"one byte less received", bytes2[*received], lastReceived, func(e *edit, i int) { body[*received](e, i).To-- }},
	{"a wrong byte", bytes2[*received], nil, func(e *edit, i int) { b := body[*received](e, i); b.Bad = &b.From }},
	{"of another connection", bytes2[*received], nil, func(e *edit, i int) { body[*received](e, i).Conn ^= 1 << 40 }},

	{"a fence that lies", is[*history.Checked], nil, func(e *edit, i int) { b := body[*history.Checked](e, i); b.Missing = &b.Upto }},
	{"reported too much", is[*history.Checked], nil, func(e *edit, i int) { body[*history.Checked](e, i).Upto++ }},
	{"a fence ahead", func(e *edit, i int) bool {
		b, ok := e.records[i].Body.(*history.Fenced)
		return ok && b.Status == ""
	}, nil, func(e *edit, i int) { body[*history.Fenced](e, i).Upto++ }},
	{"a signal early", is[*history.SignalSeen], nil, func(e *edit, i int) { b := body[*history.SignalSeen](e, i); b.Missing = &b.Value }},
	{"another signal", is[*history.SignalSeen], nil, func(e *edit, i int) { body[*history.SignalSeen](e, i).Value += 1 << 20 }},
	{"a signal ahead", is[*history.Signal], nil, func(e *edit, i int) { body[*history.Signal](e, i).Value += 1 << 20 }},

	{"a foreign writer", written, nil, func(e *edit, i int) { body[*history.Scan](e, i).Writers[0].Conn ^= 1 << 40 }},
	{"an old writer", written, nil, func(e *edit, i int) { body[*history.Scan](e, i).Writers[0].Incarnation.Generation++ }},
	{"a writer ahead", written, nil, func(e *edit, i int) { body[*history.Scan](e, i).Writers[0].Last += 1 << 20 }},
	{"a guard page", is[*history.Scan], nil, func(e *edit, i int) { body[*history.Scan](e, i).Guard++ }},
	{"a late write", is[*history.Scan], func(e *edit, i int) bool { // while the connection lives, anything may change
		b := body[*history.Scan](e, i)
		return find(e, 0, func(r rec, g *history.WindowGone) bool { return g.ID == b.ID && r.At < e.records[i].At }) < 0
	}, func(e *edit, i int) { body[*history.Scan](e, i).Sum ^= 1 << 40 }},

	{"a fault that did nothing", is[*history.FaultEnd], nil, func(e *edit, i int) { body[*history.FaultEnd](e, i).Fired = 0 }},
	{"a leak", func(e *edit, i int) bool {
		b, ok := e.records[i].Body.(*history.Resources)
		return ok && b.Phase == history.PhaseEnd
	}, nil, func(e *edit, i int) { body[*history.Resources](e, i).Count["windows"]++ }},
}

// bytes2 fits records of type B of some bytes.
func bytes2[B history.Body](e *edit, i int) bool { return is[B](e, i) && bytes(e, i) }

func written(e *edit, i int) bool {
	b, ok := e.records[i].Body.(*history.Scan)
	return ok && len(b.Writers) > 0
}

// TestEveryMutationIsCaught spoils right histories in one place: the checker
// finds it, unless the spoilt history is as right as the other.
func TestEveryMutationIsCaught(t *testing.T) {
	c := catches{caught: map[string]int{}, same: map[string]int{}}
	rapid.Check(t, func(t *rapid.T) {
		base := correct(rapid.Uint64Range(0, 500).Draw(t, "seed"), rapid.IntRange(3, 6).Draw(t, "nodes"), 250)
		for range spoiltPerCheck {
			m := mutations[rapid.IntRange(0, len(mutations)-1).Draw(t, "mutation")]
			c.try(t.Fatalf, base, m, func(n int) int { return rapid.IntRange(0, n-1).Draw(t, m.name) })
		}
	})
	// The drawn mutations say nothing of those that were not drawn.
	for seed := range uint64(200) {
		for _, m := range mutations {
			if c.caught[m.name] == 0 {
				c.try(t.Fatalf, correct(seed, 3+int(seed%4), 250), m, func(n int) int { return int(seed*7919) % n })
			}
		}
	}
	for _, m := range mutations {
		if c.caught[m.name] == 0 {
			t.Errorf("never caught: %s", m.name)
		}
	}
	t.Logf("caught, and as right as before: %v, %v", c.caught, c.same)
}

// catches counts, by mutation, how often it was caught and how often its result was as right as
// before.
type catches struct{ caught, same map[string]int }

// try spoils one of the n places that fit, pick(n), if there are any.
func (c catches) try(fatalf func(string, ...any), base []history.Record, m mutation, pick func(n int) int) {
	e := newEdit(base)
	var places []int
	for i := range e.records {
		if m.fits(e, i) {
			places = append(places, i)
		}
	}
	if len(places) == 0 {
		return
	}
	i := places[pick(len(places))]
	equal := m.same != nil && m.same(e, i)
	line, _ := history.Append(nil, e.records[i])
	m.spoil(e, i)
	ok := check.Run(e.done(), nil).OK()
	switch {
	case ok && !equal:
		fatalf("%s: not caught: %s", m.name, line)
	case ok:
		c.same[m.name]++
	default:
		c.caught[m.name]++
	}
}
