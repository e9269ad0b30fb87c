package check

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/fabricd/fabricd/internal/lab/history"
	"github.com/fabricd/fabricd/internal/lab/scenario"
)

// A stream is one direction of a connection as the expectation of traffic sees
// it.
type stream struct {
	last, longest, since int64 // of the receiver
	sent, received       int64 // bytes
	lastSent             int64
}

// traffic judges that messages go on among nodes.
func (x *expecter) traffic(e *scenario.ExpectTraffic) {
	ids := x.s.NodesIn(e.Among)
	streams := map[history.ConnEnd]*stream{} // by the sending end
	firstFault, lastFault := x.faultSpan()
	var before, during int64 // bytes
	first := never
	for i := range x.w.records {
		r := &x.w.records[i]
		switch b := r.Body.(type) {
		case *history.Sent:
			if s := x.stream(streams, b.ConnEnd, ids, r.At); s != nil {
				s.sent, s.lastSent = b.To, r.At
			}
		case *history.Received:
			s := x.stream(streams, b.Other(), ids, r.At)
			if s == nil {
				continue
			}
			s.take(r.At, b.To)
			first = min(first, r.At)
			switch {
			case r.At < firstFault:
				before += b.To - b.From
			case r.At <= lastFault:
				during += b.To - b.From
			}
		}
	}
	if e.Stall > 0 {
		x.stalls(streams, x.w.within(e.Stall.Time()))
	}
	if e.Least > 0 && first < firstFault && lastFault > firstFault+int64(time.Second) && before > 0 {
		was := float64(before) / float64(firstFault-first)
		is := float64(during) / float64(lastFault-firstFault)
		x.unless(is >= was*float64(e.Least)/100, firstFault, nil, "the throughput was %.0f%% of that before the first fault, want %s", 100*is/was, e.Least)
	}
}

// stream returns the stream of a sending end, nil if it is not among the nodes.
func (x *expecter) stream(all map[history.ConnEnd]*stream, end history.ConnEnd, ids []int, at int64) *stream {
	s, known := all[end]
	if !known {
		if c := x.w.conns.get(end.Conn); c != nil {
			if a, b := x.w.nodesOf(c); slices.Contains(ids, a) && slices.Contains(ids, b) {
				s = &stream{last: at}
			}
		}
		all[end] = s
	}
	return s
}

func (s *stream) take(at, to int64) {
	if gap := at - s.last; gap > s.longest {
		s.longest, s.since = gap, s.last
	}
	s.last, s.received = at, max(s.received, to)
}

// wait takes a time in which both ends waited.
func (s *stream) wait(i interval) {
	if i.to-i.from > s.longest {
		s.longest, s.since = i.to-i.from, i.from
	}
}

func (x *expecter) stalls(streams map[history.ConnEnd]*stream, limit int64) {
	byNonce := func(a, b history.ConnEnd) int {
		return cmp.Or(cmp.Compare(a.Conn, b.Conn), strings.Compare(string(a.Side), string(b.Side)))
	}
	waits := x.w.standstills()
	for _, end := range slices.SortedFunc(maps.Keys(streams), byNonce) {
		s := streams[end]
		if s == nil {
			continue
		}
		if s.received < s.sent { // bytes under way at the end stall too
			s.take(max(s.lastSent, s.last), s.received)
		}
		for _, i := range waits[end] {
			s.wait(i)
		}
		x.unless(s.longest <= limit, s.since, nil, "connection %d: nothing arrives from the %s for %s", end.Conn, end.Side, time.Duration(s.longest))
		x.late(s.since, s.since+limit, s.since+s.longest)
	}
}

// faultSpan returns when the first fault began and the last one ended.
func (x *expecter) faultSpan() (first, last int64) {
	first = never
	for _, f := range x.w.faults {
		first, last = min(first, f.begin), max(last, min(f.end, x.w.finish()))
	}
	return first, last
}
