package load

import (
	"time"

	"github.com/fabricd/fabricd/internal/lab/history"
)

const (
	// recordEvery bounds how long bytes that were sent or received stay unwritten.
	recordEvery = 50 * time.Millisecond
	// offerAhead is for how long an end announces its sends in advance.
	offerAhead = 250 * time.Millisecond
)

// A sender sends messages at the plan's rate.
type sender struct {
	e            *End
	pace         *Pacer
	t            *recorder
	i            uint64 // messages so far
	pos, offered int64
}

func (e *End) sender() Step {
	s := &sender{e: e, pace: e.plan.AtRate(e.plan.Messages.Rate, e.env.Now())}
	s.t = e.recorder(func(r history.Range) { e.env.Put(&history.Sent{ConnEnd: e.ID, Range: r}) })
	return s.wait()
}

func (s *sender) wait() Step { return Step{Call: Call{Do: Pace, Pace: s.pace}, Then: s.next} }

func (s *sender) next(r Result) Step {
	if r.Over {
		s.t.flush()
		return ended(r)
	}
	e, m := s.e, s.e.plan.Messages
	size := m.Min + int64(mix(e.ID.Conn^s.i)%uint64(m.Max-m.Min+1))
	s.i++
	p := make([]byte, size)
	fill(p, e.ID, s.pos)
	if ahead := (int64(m.Rate*offerAhead.Seconds()) + 1) * m.Max; s.pos+size > s.offered {
		e.env.Put(&history.Offered{ConnEnd: e.ID, Range: history.Range{From: s.offered, To: s.pos + ahead}})
		s.offered = s.pos + ahead
	}
	return send(p, s.sent)
}

func (s *sender) sent(r Result) Step {
	s.t.add(s.pos, s.pos+r.N, r.Now)
	s.pos += r.N
	if r.Status != "" {
		s.t.flush()
		return ended(r)
	}
	return s.wait()
}

// A receiver receives until the connection ends, and compares.
type receiver struct {
	e   *End
	t   *recorder
	pos int64
}

func (e *End) receiver() Step {
	v := &receiver{e: e, t: e.recorder(func(r history.Range) { e.env.Put(&history.Received{ConnEnd: e.ID, Range: r}) })}
	return v.next(Result{})
}

// next receives: of a slow receiver one message at a time.
func (v *receiver) next(r Result) Step {
	if r.Over {
		v.t.flush()
		return ended(r)
	}
	n := v.e.plan.Receive
	if v.e.env.Slow() > 0 {
		n = min(n, int(v.e.plan.Messages.Max))
	}
	return Step{Call: Call{Do: Recv, Len: n}, Then: v.got}
}

func (v *receiver) got(r Result) Step {
	to := v.pos + int64(len(r.Data))
	if bad := verify(r.Data, v.e.ID.Other(), v.pos); bad >= 0 {
		v.t.flush()
		v.e.env.Put(&history.Received{ConnEnd: v.e.ID, Range: history.Range{From: v.pos, To: to}, Bad: new(v.pos + int64(bad))})
		v.t.skip(to)
	} else {
		v.t.add(v.pos, to, r.Now)
	}
	v.pos = to
	if r.Status != "" {
		v.t.flush()
		return ended(r)
	}
	if slow := v.e.env.Slow(); slow > 0 && !r.Over {
		return Step{Call: Call{Do: Sleep, For: time.Second / time.Duration(slow)}, Then: v.next}
	}
	return v.next(r)
}

// A recorder writes adjacent ranges as one record, not later than recordEvery after the
// first of them if more come.
type recorder struct {
	put   func(history.Range)
	r     history.Range
	since time.Duration
}

func (e *End) recorder(put func(history.Range)) *recorder {
	t := &recorder{put: put}
	e.recorders = append(e.recorders, t)
	return t
}

// add adds [from, to), which is behind every range before.
func (t *recorder) add(from, to int64, now time.Duration) {
	if from == to {
		return
	}
	if t.r.From == t.r.To {
		t.r.From, t.since = from, now
	}
	if t.r.To = to; now-t.since >= recordEvery {
		t.flush()
	}
}

// flush writes the range that is not written yet.
func (t *recorder) flush() {
	if t.r.From < t.r.To {
		t.put(t.r)
	}
	t.r.From = t.r.To
}

// skip passes over bytes up to to, which another record covers.
func (t *recorder) skip(to int64) { t.r = history.Range{From: to, To: to} }
