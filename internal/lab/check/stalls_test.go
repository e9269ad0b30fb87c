package check_test

import (
	"slices"
	"testing"

	"github.com/fabricd/fabricd/internal/lab/check"
	"github.com/fabricd/fabricd/internal/lab/history"
)

// TestStallsAreOfWhatNoFaultTouches delays a message as long as it may be, and longer
// where that is no stall of the fabric: in a lab that shares its processors, and
// behind a fault of one of the two nodes.
func TestStallsAreOfWhatNoFaultTouches(t *testing.T) {
	base := correct(11, 4, 600)
	for _, tt := range []struct {
		name  string
		late  int64
		spoil func(e *edit, i int)
		want  check.Verdict
	}{
		{"within the bound", 299 * ms, func(*edit, int) {}, check.Held},
		{"beyond it", 301 * ms, func(*edit, int) {}, check.Violated},
		{"behind a fault", 301 * ms, func(e *edit, i int) {
			slow := &history.Fault{ID: 99, What: "link delay 1s", Ways: []history.Way{{From: []int{0, 1, 2, 3}, To: []int{0, 1, 2, 3}}}, Harm: history.HarmNone}
			e.insert(i-1, history.Lab, slow)
			e.insert(i, history.Lab, &history.FaultEnd{ID: 99, Fired: 1})
		}, check.NotExercised},
		{"on processes", 301 * ms, func(e *edit, _ int) { body[*history.Begin](e, 0).Lab = "local" }, check.NotExercised},
	} {
		e := newEdit(base)
		i := calm(e)
		e.move(i, e.records[i].At+tt.late)
		tt.spoil(e, i)
		if j, _ := check.Run(e.done(), nil).Invariant("stalls"); j.Verdict != tt.want {
			t.Errorf("%s: %s, want %s: %v", tt.name, j.Verdict, tt.want, j.Violations)
		}
	}
}

// calm returns the record of the arrival of all that was sent until then, with nothing
// else on that connection and no fault of its nodes for a while.
func calm(e *edit) int {
	return find(e, 0, func(r rec, b *received) bool {
		o := find(e, 0, func(_ rec, o *history.Opened) bool { return o.ConnEnd == b.ConnEnd })
		sent := find(e, 0, func(_ rec, s *history.Sent) bool { return s.Conn == b.Conn && s.Side != b.Side && s.Range == b.Range })
		if o < 0 || sent < 0 || b.To <= b.From+1 {
			return false
		}
		ends := []int{r.Source.Node, int(body[*history.Opened](e, o).Remote.Node)}
		return !slices.ContainsFunc(e.records, func(x rec) bool {
			soon := x.At < r.At+400*ms
			switch c := x.Body.(type) {
			case *history.Fault:
				return soon && slices.Contains(ends, c.Nodes[0])
			case *received:
				return soon && x.At > r.At && c.Conn == b.Conn
			case *closed:
				return soon && c.Conn == b.Conn
			}
			return false
		})
	})
}

// deadlock lets the sender of record i wait in a send for some time, and the receiver
// in a recv.
func deadlock(e *edit, i int, long int64) {
	b := body[*received](e, i)
	at, receiver := e.records[i].At+1, e.records[i].Source
	sender := e.records[find(e, 0, func(_ rec, s *history.Sent) bool { return s.Conn == b.Conn && s.Side != b.Side })].Source
	call := func(id uint64, name string, side history.Side) history.Call {
		return history.Call{ID: id, Name: name, Began: at, Conn: b.Conn, Side: side, Idle: true}
	}
	send, recv := call(1<<40, "send", b.Side.Other()), call(1<<40+1, "recv", b.Side)
	e.records = append(e.records, rec{At: at, Source: sender, Body: &send}, rec{At: at, Source: receiver, Body: &recv},
		rec{At: at + long, Source: receiver, Body: &ret{Call: recv}}, rec{At: at + long, Source: sender, Body: &ret{Call: send}})
}

// TestTrafficStandsStillWhereBothEndsWait: also where all that was sent has come, and
// until the end of the stream.
func TestTrafficStandsStillWhereBothEndsWait(t *testing.T) {
	for long, want := range map[int64]check.Verdict{1900 * ms: check.Held, 2100 * ms: check.Violated} {
		e := newEdit(correct(11, 4, 0))
		deadlock(e, calm(e), long)
		r := check.Run(e.done(), modelScenario(4, "  - traffic: {among: [0, 1], stall: 2s}\n"))
		if j := r.Expectations[0]; j.Verdict != want {
			t.Errorf("both wait for %d ms: %s, want %s: %v", long/ms, j.Verdict, want, j.Violations)
		}
	}
}
