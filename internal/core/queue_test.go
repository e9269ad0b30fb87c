package core

import (
	"slices"
	"testing"

	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/wire"
)

// A Done stands for all operations before it: of those that wait together only
// the last goes out. Nothing else is left out or changes its place.
func TestDonesThatWaitTogetherGoOutAsOne(t *testing.T) {
	c := NewConn[*memory](Limits{})
	done := func(op uint64) { c.Queue(wire.Done{Op: op}.AppendTo(nil)) }
	credit := func(limit uint64) { c.Queue(wire.Credit{Limit: limit}.AppendTo(nil)) }
	done(1)
	done(2)
	credit(7)
	done(3)
	done(4)
	c.push(Segment[*memory]{Write: &Op[*memory]{}})
	done(5)
	done(9)
	want := slices.Concat(wire.Done{Op: 2}.AppendTo(nil), wire.Credit{Limit: 7}.AppendTo(nil), wire.Done{Op: 4}.AppendTo(nil))
	if got := c.Next(); !slices.Equal(got.Frames, want) {
		t.Errorf("first out is\n%x, want\n%x", got.Frames, want)
	}
	if got := c.Next(); got.Write == nil {
		t.Errorf("then %x, want the write", got.Frames)
	}
	done(10) // nothing of this segment is being written yet
	if got, want := c.Next(), (wire.Done{Op: 10}).AppendTo(nil); !slices.Equal(got.Frames, want) {
		t.Errorf("last out is\n%x, want\n%x", got.Frames, want)
	}
	if c.Writes() || c.out.bytes != 0 {
		t.Errorf("something is to be written, %d bytes", c.out.bytes)
	}
	done(11) // behind the segment taken out to be written
	if got, want := c.Next(), (wire.Done{Op: 11}).AppendTo(nil); !slices.Equal(got.Frames, want) {
		t.Errorf("after all was out\n%x, want\n%x", got.Frames, want)
	}
}

// Each answer that the peer takes for an end comes behind the engine's frame, and
// nothing else does.
func TestAnswersThatEndSomethingArePreceded(t *testing.T) {
	c := NewConn[*memory](Limits{})
	passed, credit := wire.RMAPassed{Bytes: 5}.AppendTo(nil), wire.Credit{Limit: 1}.AppendTo(nil)
	marked := func(id uint64) []byte { return wire.Marked{Request: id}.AppendTo(nil) }
	c.Queue(credit)
	c.replyBehind(marked(1))
	c.replyBehind(marked(2))
	c.Queue(credit)
	for s := c.NextBehind(); s != nil; s = c.NextBehind() {
		c.Precede(s, slices.Clone(passed))
	}
	var got []byte
	for c.Writes() {
		got = append(got, c.Next().Frames...)
	}
	if want := slices.Concat(credit, passed, marked(1), passed, marked(2), credit); !slices.Equal(got, want) || c.out.bytes != 0 {
		t.Errorf("written is, and %d bytes are left,\n%x, want\n%x", c.out.bytes, got, want)
	}
	c.replyBehind(marked(3))
	if c.Next(); c.NextBehind() != nil {
		t.Error("an answer that was taken is still to be preceded")
	}
}

// The stream ends once, behind the segments queued before End; a stream that breaks does not end
// in order, and drops its queue.
func TestTheStreamEndsBehindWhatWasQueued(t *testing.T) {
	c := NewConn[*memory](Limits{})
	frame := wire.Credit{Limit: 1}.AppendTo(nil)
	c.Queue(frame)
	c.End()
	c.Queue(frame)
	if c.StreamEnds() || len(c.Queued()) != 1 {
		t.Fatalf("%d segments are queued, want the one before the end", len(c.Queued()))
	}
	c.Written(c.Next(), status.OK)
	if !c.Writes() || !c.StreamEnds() || c.StreamEnds() || c.Writes() {
		t.Error("the stream does not end once")
	}

	a, b, _, _ := newConnected(t, Limits{})
	w := new(Waiter)
	if _, err := a.conn.Write(Local{Buf: make([]byte, 8), Length: 8}, 0, 0, w); err != nil {
		t.Fatal(err)
	}
	a.conn.Fail(status.Reset)
	if a.conn.Effects() != nil {
		t.Fatal("a write has ended whose memory the stream uses")
	}
	a.conn.Break()
	a.wantWoken("a write whose stream broke", w, status.Reset)
	if a.conn.StreamEnds() || a.conn.Writes() || !a.conn.Broken() {
		t.Error("a stream that broke goes on")
	}
	b.conn.Close(status.Reset)
}
