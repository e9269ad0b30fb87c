package check_test

import (
	"strings"
	"testing"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/lab/check"
	"github.com/fabricd/fabricd/internal/lab/history"
)

type (
	rec      = history.Record
	event    = history.Event
	ret      = history.Return
	received = history.Received
	closed   = history.Closed
)

func isRemoved(_ rec, b *event) bool { return b.What == history.EventRemoved }
func isAdded(_ rec, b *event) bool   { return b.What == history.EventAdded }
func isSelf(_ rec, b *event) bool    { return b.What == history.EventSelf }
func isReset(_ rec, b *closed) bool  { return b.How == "ECONNRESET" }
func isEOF(_ rec, b *closed) bool    { return b.How == history.HowEOF }

func isKill(_ rec, b *history.Process) bool { return b.Did == history.DidKill }

// lostCall is the return of a call that a loss has ended.
func lostCall(_ rec, b *ret) bool { return b.Status == "ECONNRESET" && b.Name == "recv" }

func ptr[T any](v T) *T { return &v }

// wrongs are histories that are wrong in one place each, and the invariant that
// must find it.
var wrongs = []struct {
	invariant, name string
	spoil           func(e *edit)
}{
	{"whole", "no begin", func(e *edit) { e.drop(0) }},
	{"whole", "no end", func(e *edit) { e.drop(len(e.records) - 1) }},
	{"whole", "cut short", func(e *edit) { body[*history.End](e, len(e.records)-1).Complete = false }},
	{"whole", "events before its incarnation", func(e *edit) { e.drop(find(e, 1, isSelf)) }},

	{"fired", "never did anything", func(e *edit) { body[*history.FaultEnd](e, find[*history.FaultEnd](e, 0, nil)).Fired = 0 }},
	{"fired", "was never taken back", func(e *edit) { e.drop(find[*history.FaultEnd](e, 0, nil)) }},
	{"fired", "could not be put in place", func(e *edit) {
		body[*history.FaultEnd](e, find[*history.FaultEnd](e, 0, nil)).Err = "no such process"
	}},
	{"fired", "ended without having begun", func(e *edit) { e.drop(find[*history.Fault](e, 0, nil)) }},

	{"prefix", "a received part is lost", func(e *edit) { e.drop(find(e, 0, followed(e))) }},
	{"prefix", "a part is received twice", func(e *edit) { e.twice(find(e, 3, func(_ rec, b *received) bool { return b.To > b.From })) }},
	{"prefix", "a wrong byte", func(e *edit) { b := body[*received](e, find[*received](e, 5, nil)); b.Bad = ptr(b.From) }},
	{"prefix", "more than was offered", func(e *edit) { body[*received](e, find[*received](e, -1, nil)).To += 1 << 20 }},
	{"prefix", "of another connection", func(e *edit) {
		body[*received](e, find(e, 4, func(_ rec, b *received) bool { return b.From > 0 })).Conn = 12345
	}},
	{"prefix", "before it was offered", func(e *edit) {
		i := find(e, 0, func(_ rec, b *received) bool { return b.From == 0 })
		e.move(i, 1)
	}},
	{"prefix", "a sent part is missing", func(e *edit) {
		e.drop(find(e, 0, func(_ rec, b *history.Sent) bool { return b.From == 0 && sentAgain(e, b) }))
	}},

	{"drain", "the last bytes are missing", func(e *edit) {
		i := find(e, 0, func(_ rec, b *received) bool { return closesAfter(e, b) })
		body[*received](e, i).To--
	}},
	{"drain", "the last part does not arrive", func(e *edit) {
		e.drop(find(e, 1, func(_ rec, b *received) bool { return closesAfter(e, b) }))
	}},
	{"drain", "nobody has closed", func(e *edit) {
		b := body[*closed](e, find(e, 0, isEOF))
		e.drop(find(e, 0, func(_ rec, c *closed) bool { return c.Conn == b.Conn && c.How == history.HowClose }))
	}},

	{"drain", "nobody has closed, and the application ends later", func(e *edit) {
		i := find(e, 0, isEOF)
		b := body[*closed](e, i)
		other := find(e, 0, func(_ rec, c *closed) bool { return c.Conn == b.Conn && c.How == history.HowClose })
		source := e.records[other].Source
		e.insert(i, history.Lab, &history.Process{Target: source, Did: history.DidExit})
		e.drop(other)
	}},

	{"reset-all", "a call ends after the event", func(e *edit) {
		i := find(e, 0, survivorCall(e))
		b := body[*ret](e, i)
		e.move(i, e.records[find(e, 0, removedAt(e.records[i].Source, b.Peer))].At+10_000_000)
	}},
	{"reset-all", "a call succeeds after the event", func(e *edit) {
		i := find(e, 0, isRemoved)
		e.insert(i, e.records[i].Source, &ret{Call: history.Call{ID: 1 << 40, Name: "send", Began: e.records[i].At + 1, Peer: body[*event](e, i).Subject}})
	}},
	{"reset-all", "the wrong errno", func(e *edit) {
		i := find(e, 0, isRemoved)
		e.insert(i, e.records[i].Source, &ret{Call: history.Call{ID: 1 << 40, Name: "send", Began: e.records[i].At + 1, Peer: body[*event](e, i).Subject}, Status: "EIO"})
	}},
	{"reset-all", "a new connection to the dead", func(e *edit) {
		i := find(e, 0, isRemoved)
		b := body[*event](e, i)
		e.insert(i, e.records[i].Source, &history.Opened{ConnEnd: history.ConnEnd{Conn: 9, Side: history.Client}, Local: b.Observer, Remote: b.Subject})
	}},
	{"reset-all", "a connection that never ends", func(e *edit) { e.drop(find(e, 0, survivorReset(e))) }},

	{"no-hang", "a parked call is never woken", func(e *edit) { e.drop(find(e, 0, survivorCall(e))) }},
	{"no-hang", "a call is woken late", func(e *edit) { i := find(e, 0, survivorCall(e)); e.move(i, e.records[i].At+5*sec) }},
	{"no-hang", "a call outlives its deadline", func(e *edit) {
		i := find(e, 0, func(_ rec, b *ret) bool { return b.Name == "connect" })
		b := body[*ret](e, i)
		b.Deadline = b.Began + 1
		e.move(i, b.Began+2*sec)
	}},
	{"no-hang", "a call takes for ever although nothing is broken", func(e *edit) {
		i := find(e, -1, func(_ rec, b *ret) bool { return b.Name == "recv" })
		e.insert(i, e.records[i].Source, &ret{Call: history.Call{ID: 1 << 40, Name: "register", Began: e.records[i].At - 6*sec}})
	}},

	{"events", "removed is delivered twice", func(e *edit) { e.twice(find(e, 0, isRemoved)) }},
	{"events", "added is delivered twice", func(e *edit) { e.twice(find(e, 0, isAdded)) }},
	{"events", "removed of nobody", func(e *edit) { b := body[*event](e, find(e, 0, isRemoved)); b.Subject.Generation += 7 }},
	{"events", "the next generation before the end of the last", func(e *edit) {
		i := find(e, 0, removedThenAdded(e))
		b := body[*event](e, i)
		j := find(e, 0, func(r rec, c *event) bool {
			return c.What == history.EventAdded && r.Source == e.records[i].Source && c.Subject.Node == b.Subject.Node && c.Subject.Generation == b.Subject.Generation+1
		})
		e.move(i, e.records[j].At+1)
	}},
	{"events", "an older generation again", func(e *edit) {
		i := find(e, 0, isRemoved)
		b := *body[*event](e, i)
		b.What = history.EventAdded
		e.insert(i, e.records[i].Source, &b)
	}},
	{"events", "its own end", func(e *edit) { b := body[*event](e, find(e, 0, isRemoved)); b.Subject = b.Observer }},

	{"notified", "one survivor is not told", func(e *edit) { e.drop(find(e, 0, isRemoved)) }},
	{"notified", "one survivor is told late", func(e *edit) {
		i := find(e, 2, func(r rec, b *event) bool { return isRemoved(r, b) && r.Source.Node < 2 })
		e.move(i, e.records[i].At+4*sec)
	}},
	{"notified", "one survivor is notified of another one", func(e *edit) { body[*event](e, find(e, 1, isRemoved)).Subject.Node += 100 }},

	{"cause", "a healthy node is removed", func(e *edit) {
		i := find(e, 0, isAdded)
		b := *body[*event](e, i)
		b.What, b.Reason = history.EventRemoved, "silent"
		e.insert(i, e.records[i].Source, &b)
	}},
	{"cause", "a nap is taken for death", func(e *edit) {
		i := find(e, 0, func(_ rec, b *history.Fault) bool { return b.What == "node stop" })
		node := body[*history.Fault](e, i).Nodes[0]
		self := body[*event](e, find(e, 0, func(r rec, b *event) bool { return b.What == history.EventSelf && r.Source.Node == node }))
		observer := history.App((node+1)%4, 1)
		e.insert(i, observer, &event{What: history.EventRemoved, Subject: self.Subject, Reason: "silent"})
		clearKills(e)
	}},
	{"cause", "a node is reset for nothing", func(e *edit) {
		i := find(e, 0, isSelf)
		b := *body[*event](e, i)
		b.What = history.EventReset
		e.insert(i+3, e.records[i].Source, &b)
	}},

	{"one-holder", "two nodes have one incarnation", func(e *edit) { body[*event](e, find(e, 2, isSelf)).Subject = addr.Incarnation{Node: 1, Generation: 1} }},
	{"one-holder", "an ID is given away", func(e *edit) { body[*event](e, find(e, 2, isSelf)).Subject = addr.Incarnation{Node: 1, Generation: 5} }},
	{"one-holder", "a generation is used again", func(e *edit) {
		i := find(e, 0, func(_ rec, b *event) bool { return b.What == history.EventSelf && b.Subject.Generation == 2 })
		body[*event](e, i).Subject.Generation = 9
		j := find(e, 0, func(r rec, b *event) bool {
			return b.What == history.EventSelf && b.Subject.Generation == 3 && r.Source == e.records[i].Source
		})
		if j < 0 {
			e.insert(len(e.records)-2, e.records[i].Source, &event{What: history.EventSelf, Subject: addr.Incarnation{Node: body[*event](e, i).Subject.Node, Generation: 3}})
		}
	}},

	{"agreement", "one does not know another at the end", func(e *edit) { e.drop(find(e, -1, isAdded)) }},
	{"agreement", "two have another UUID for one incarnation", func(e *edit) { body[*event](e, find(e, -1, isAdded)).UUID[3]++ }},
	{"agreement", "one knows an older incarnation", func(e *edit) { body[*event](e, find(e, -1, isAdded)).Subject.Generation-- }},
	{"agreement", "one knows somebody who is nobody", func(e *edit) {
		i := find(e, -1, isAdded)
		b := *body[*event](e, i)
		b.Subject.Node, b.UUID = 77, addr.UUID{77}
		e.insert(i, e.records[i].Source, &b)
	}},

	{"fencing", "words of another connection", func(e *edit) { body[*history.Scan](e, writtenScan(e)).Writers[0].Conn++ }},
	{"fencing", "words of another generation", func(e *edit) { body[*history.Scan](e, writtenScan(e)).Writers[0].Incarnation.Generation++ }},
	{"fencing", "words of an operation that has not begun", func(e *edit) { body[*history.Scan](e, writtenScan(e)).Writers[0].Last += 1000 }},
	{"fencing", "words of nobody", func(e *edit) { body[*history.Scan](e, find[*history.Scan](e, 0, nil)).Unknown = 1 }},
	{"fencing", "a write after the end", func(e *edit) { body[*history.Scan](e, find[*history.Scan](e, -1, nil)).Sum++ }},

	{"rma", "a guard page was written", func(e *edit) { body[*history.Scan](e, find[*history.Scan](e, 0, nil)).Guard = 8 }},
	{"rma", "words beside the operation", func(e *edit) { body[*history.Scan](e, find[*history.Scan](e, 0, nil)).Misplaced = 1 }},
	{"rma", "a read brought something else", func(e *edit) { body[*history.RMADone](e, find[*history.RMADone](e, 0, nil)).Bad = ptr(int64(8)) }},
	{"rma", "an operation ends twice", func(e *edit) { e.twice(find[*history.RMADone](e, 0, nil)) }},
	{"rma", "an operation is missing", func(e *edit) {
		e.drop(find(e, 0, func(_ rec, b *history.RMA) bool { return b.Op == 1 && opAfter(e, b) }))
	}},

	{"fence", "a fence that lies", func(e *edit) {
		b := body[*history.Checked](e, find[*history.Checked](e, 0, nil))
		b.Missing = ptr(b.Upto)
	}},
	{"fence", "a fence beyond what has begun", func(e *edit) {
		body[*history.Fenced](e, find(e, 0, func(_ rec, b *history.Fenced) bool { return b.Status == "" })).Upto += 100
	}},
	{"fence", "reported without a fence", func(e *edit) { body[*history.Checked](e, find[*history.Checked](e, 0, nil)).Upto += 100 }},
	{"fence", "an early signal", func(e *edit) {
		b := body[*history.SignalSeen](e, find[*history.SignalSeen](e, 0, nil))
		b.Missing = ptr(b.Value)
	}},
	{"fence", "a signal before it was asked for", func(e *edit) { i := find[*history.SignalSeen](e, 0, nil); e.move(i, e.records[i].At-sec) }},
	{"fence", "a signal twice", func(e *edit) { e.twice(find[*history.SignalSeen](e, 0, nil)) }},
	{"fence", "a late signal", func(e *edit) {
		i := find[*history.SignalSeen](e, 0, nil)
		b := body[*history.SignalSeen](e, i)
		j := find(e, 0, func(_ rec, c *closed) bool { return c.ConnEnd == b.ConnEnd })
		e.move(i, e.records[j].At+1)
	}},

	{"windows", "an operation on a window that is gone", func(e *edit) {
		i := find(e, 0, func(_ rec, b *history.WindowGone) bool { return true })
		w := body[*history.WindowGone](e, i)
		j := find(e, 0, func(_ rec, b *history.RMADone) bool { return lastOp(e, b) })
		done := body[*history.RMADone](e, j)
		end := history.ConnEnd{Conn: done.Conn, Side: done.Side}
		e.insert(i, e.records[j].Source, &history.RMADone{ConnEnd: end, Op: done.Op + 1})
		e.insert(i, e.records[j].Source, &history.RMA{ConnEnd: end, Op: done.Op + 1, Name: "writeto", Window: w.ID, Len: 8})
		e.records[i+2].At++
	}},
	{"windows", "a window's number twice", func(e *edit) { e.twice(find[*history.Window](e, 0, nil)) }},
	{"windows", "a window goes before its last operation", func(e *edit) {
		i := find(e, 0, func(_ rec, b *history.RMA) bool { return true })
		w := body[*history.RMA](e, i).Window
		j := find(e, 0, func(_ rec, b *history.WindowGone) bool { return b.ID == w })
		e.move(j, e.records[i].At-1)
	}},

	{"leaks", "descriptors", func(e *edit) { lastCount(e)["fds"] += 100 }},
	{"leaks", "a window", func(e *edit) { lastCount(e)["windows"]++ }},
	{"leaks", "memory", func(e *edit) { lastCount(e)["rss"] += 11 << 20 }},
	{"leaks", "a port", func(e *edit) { lastCount(e)["ports"]++ }},

	{"recovery", "no connection after the last fault", func(e *edit) {
		i := find(e, -1, func(_ rec, b *ret) bool { return b.Name == "connect" })
		b := body[*ret](e, i)
		b.Status = "ECONNREFUSED"
		e.drop(find(e, 0, func(_ rec, o *history.Opened) bool { return o.Conn == b.Conn && o.Side == history.Client }))
	}},
	{"recovery", "a connection opens late", func(e *edit) {
		i := find(e, -1, func(_ rec, b *ret) bool { return b.Name == "connect" })
		b := body[*ret](e, i)
		b.Status = "ECONNREFUSED"
		j := find(e, 0, func(_ rec, o *history.Opened) bool { return o.Conn == b.Conn && o.Side == history.Client })
		e.move(j, e.records[j].At+6*sec)
	}},
	{"recovery", "one direction never works again", func(e *edit) {
		last := find(e, -1, func(_ rec, b *history.FaultEnd) bool { return true })
		for i := range e.records[last:] {
			if b, ok := e.records[last+i].Body.(*ret); ok && b.Name == "connect" && e.records[last+i].Source.Node == 0 {
				b.Status = "ETIMEDOUT"
			}
			if o, ok := e.records[last+i].Body.(*history.Opened); ok && o.Side == history.Client && e.records[last+i].Source.Node == 0 {
				e.records[last+i].Body = &history.Note{}
			}
		}
	}},

	{"isolation", "a reset between healthy nodes", func(e *edit) {
		b := body[*closed](e, quietEnd(e, history.HowEOF))
		b.How = "ECONNRESET"
		e.drop(find(e, 0, func(_ rec, c *closed) bool { return c.Conn == b.Conn && c.How == history.HowClose }))
	}},
	{"isolation", "a protocol error between healthy nodes", func(e *edit) { body[*closed](e, quietEnd(e, history.HowEOF)).How = "EPROTO" }},
	{"isolation", "a reset at the client", func(e *edit) {
		b := body[*closed](e, quietEnd(e, history.HowClose))
		b.How = "ECONNRESET"
		e.drop(find(e, 0, func(_ rec, c *closed) bool { return c.Conn == b.Conn && c.How == history.HowEOF }))
	}},

	{"stalls", "a message arrives late", func(e *edit) { i := calm(e); e.move(i, e.records[i].At+301*ms) }},
	{"stalls", "the rest of what was sent arrives late", func(e *edit) {
		i := calm(e)
		b := body[*received](e, i)
		rest := *b
		b.To--
		rest.From = b.To
		e.insert(i, e.records[i].Source, &rest)
		e.move(i+1, e.records[i].At+301*ms)
	}},
	{"stalls", "both ends wait for each other", func(e *edit) { deadlock(e, calm(e), 301*ms) }},
	{"stalls", "a message never arrives", func(e *edit) { e.drop(calm(e)) }},

	{"survival", "a daemon ends by itself", func(e *edit) {
		e.insert(find[*history.View](e, -1, nil), history.Lab, &history.Process{Target: history.Daemon(0, 1), Did: history.DidExit, Code: 2})
	}},
	{"survival", "a panic in a log", func(e *edit) {
		e.insert(9, history.Lab, &history.Logged{Target: history.Daemon(0, 1), Line: "panic: runtime error"})
	}},
	{"survival", "a crash that nobody asked for", func(e *edit) {
		e.insert(find[*history.View](e, -1, nil), history.Lab, &history.Process{Target: history.Daemon(0, 1), Did: history.DidCrash})
	}},
}

func TestEveryInvariantFindsWhatIsWrong(t *testing.T) {
	base := correct(11, 4, 600)
	if r := check.Run(base, nil); !r.OK() {
		t.Fatalf("the base is wrong:\n%s", strings.Join(r.Problems(), "\n"))
	}
	count := map[string]int{}
	for _, tt := range wrongs {
		count[tt.invariant]++
		t.Run(tt.invariant+"/"+tt.name, func(t *testing.T) {
			e := newEdit(base)
			tt.spoil(e)
			r := check.Run(e.done(), nil)
			j, ok := r.Invariant(tt.invariant)
			if !ok || j.Verdict != check.Violated {
				t.Fatalf("%s\n%s", j.Verdict, strings.Join(r.Problems(), "\n"))
			}
			for _, v := range j.Violations {
				if v.What == "" || strings.Contains(v.What, "\n") || strings.Contains(v.What, "%!") {
					t.Errorf("says %q", v.What)
				}
			}
		})
	}
	for _, j := range check.Run(base, nil).Invariants {
		if j.Name == ofRealLabs {
			continue
		}
		if count[j.Name] < 3 {
			t.Errorf("%s is tried with %d wrong histories, want 3", j.Name, count[j.Name])
		}
		if j.Verdict != check.Held {
			t.Errorf("%s is %s on the base", j.Name, j.Verdict)
		}
	}
}
