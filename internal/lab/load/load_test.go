package load

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/lab/history"
)

func TestBytesAreAFunctionOfTheirPosition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		end := history.ConnEnd{Conn: rapid.Uint64Min(1).Draw(t, "nonce"), Side: history.Client}
		pos := rapid.Int64Range(0, 1<<40).Draw(t, "pos")
		p := make([]byte, rapid.IntRange(1, 300).Draw(t, "len"))
		fill(p, end, pos)
		if bad := verify(p, end, pos); bad != -1 {
			t.Fatalf("own bytes: bad at %d", bad)
		}
		cut := rapid.IntRange(0, len(p)-1).Draw(t, "cut")
		q := make([]byte, len(p)-cut)
		fill(q, end, pos+int64(cut))
		if !bytes.Equal(q, p[cut:]) {
			t.Fatal("filled in two parts they differ")
		}
		p[cut] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
		if bad := verify(p, end, pos); bad != cut {
			t.Fatalf("changed at %d, bad at %d", cut, bad)
		}
	})
}

// TestVisibleFindsWhatIsMissing writes the operations of one end in order into a
// window and takes a word of one of them away.
func TestVisibleFindsWhatIsMissing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.Int64Range(8, 4096).Draw(t, "size")
		g := newGeometry(RMA{Min: 8, Max: size, Window: rapid.Int64Range(4096, 1<<18).Draw(t, "window"), Reads: 0.3})
		end := history.ConnEnd{Conn: rapid.Uint64Min(1).Draw(t, "nonce"), Side: history.Server}
		last := rapid.Uint64Range(1, 300).Draw(t, "operations")
		window := make([]byte, g.window)
		stamp(window[:g.slotsEnd()], fillOf(7), 0)
		written := func(upto uint64) {
			for n := uint64(1); n <= upto; n++ {
				if op := g.operation(end, n); op.Verb.writes() {
					stamp(window[op.off:op.off+op.Len], writerOf(end), n)
				}
			}
		}
		written(last)
		reported := rapid.Uint64Range(0, last).Draw(t, "reported")
		if missing, ok := g.visible(window, binary.LittleEndian.Uint64, end, 0, reported); !ok {
			t.Fatalf("of %d operations, %d is missing up to %d", last, missing, reported)
		}
		n := rapid.Uint64Range(1, last).Draw(t, "lost")
		op := g.operation(end, n)
		if !op.Verb.writes() {
			return
		}
		word := op.off + 8*rapid.IntRange(0, op.Len/8-1).Draw(t, "word")
		stamp(window[word:word+8], fillOf(7), 0)
		if missing, ok := g.visible(window, binary.LittleEndian.Uint64, end, 0, last); ok || missing > n {
			t.Fatalf("a word of operation %d is gone: missing %d, %v", n, missing, ok)
		}
	})
}

// A stub is an application of a test.
type stub struct {
	Env
	puts    []history.Body
	bugs    []string
	writers Writers
	nonces  uint64
	now     time.Duration
}

type slab []byte

func (s slab) Bytes() []byte { return s }
func (s slab) Close() error  { return nil }

func (s *stub) Now() time.Duration                            { return s.now }
func (s *stub) Put(b history.Body)                            { s.puts = append(s.puts, b) }
func (s *stub) Bug(format string, args ...any)                { s.bugs = append(s.bugs, fmt.Sprintf(format, args...)) }
func (s *stub) Nonce() uint64                                 { s.nonces++; return Nonce(1, history.App(1, 1), s.nonces) }
func (s *stub) Alloc(n int) (Memory, error)                   { return make(slab, n), nil }
func (s *stub) Load(word []byte) uint64                       { return binary.LittleEndian.Uint64(word) }
func (s *stub) Writer(hash uint32, conn uint64) (Known, bool) { return s.writers.Find(hash, conn) }
func (s *stub) Slow() int                                     { return 0 }

// newScanned returns a window for operations up to 4 KiB, and its environment.
func newScanned(t *testing.T) (*Window, *stub) {
	env := &stub{}
	w, err := (&End{ID: history.ConnEnd{Conn: 5, Side: history.Server}, env: env}).newWindow(newGeometry(RMA{Min: 8, Max: 4096, Window: 64 << 10}))
	if err != nil {
		t.Fatal(err)
	}
	w.ID = 7
	stamp(w.bytes[:w.g.slotsEnd()], fillOf(w.ID), 0)
	env.writers.Add(&End{ID: w.owner})
	return w, env
}

// TestHalfAWord scans a window while a transfer has written the first bytes of a
// word, over an operation before it or over the window's fill. The word then has the
// number of no operation of that place, or an operation of the fill, or half a writer:
// it is wrong only if it stays so.
func TestHalfAWord(t *testing.T) {
	const at = 8
	for _, tt := range []struct {
		name               string
		before             bool // an operation has been there
		half               int  // bytes that have come
		misplaced, unknown int64
	}{
		{"over an operation", true, 2, 1, 0},
		{"over the fill", false, 2, 1, 0},
		{"over the fill, into the writer", false, 5, 0, 1},
	} {
		for _, rest := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, the rest comes: %v", tt.name, rest), func(t *testing.T) {
				w, _ := newScanned(t)
				peer, slots := writerOf(w.owner.Other()), uint64(w.g.slots)
				later := 0x100/slots*slots + slots // the next one of its slot, whose number has another upper byte
				if tt.before {
					stamp(w.bytes[:64], peer, later-slots)
				}
				whole := make([]byte, 64)
				stamp(whole, peer, later)
				copy(w.bytes[at:], whole[at:at+tt.half])
				s := w.Scan()
				if !s.Torn() {
					t.Fatal("half a word is taken for whole")
				}
				misplaced, unknown := tt.misplaced, tt.unknown
				if rest {
					misplaced, unknown = 0, 0
					copy(w.bytes[at:at+8], whole[at:])
					if s.Torn() {
						t.Error("a word is torn when all of it is there")
					}
				}
				if r := s.Record(); r.Misplaced != misplaced || r.Unknown != unknown || r.Guard != 0 {
					t.Errorf("%d words are misplaced and %d unknown, want %d and %d", r.Misplaced, r.Unknown, misplaced, unknown)
				}
			})
		}
	}
}

// TestAForeignWordIsSeenAtOnce scans a window that holds a word of another connection,
// which is soon overwritten. The scan still reports it.
func TestAForeignWordIsSeenAtOnce(t *testing.T) {
	w, env := newScanned(t)
	other := history.ConnEnd{Conn: 6, Side: history.Client}
	env.writers.Add(&End{ID: other})
	stamp(w.bytes[8:16], writerOf(other), 3)
	w.mem.Bytes()[0] = 0
	s := w.Scan()
	stamp(w.bytes[8:16], fillOf(w.ID), 0)
	if r := s.Record(); len(r.Writers) != 1 || r.Writers[0].Conn != 6 || r.Writers[0].Words != 1 || r.Guard != 1 {
		t.Errorf("%+v", r)
	}
}

// TestStepsAreTakenOnBeats: as many as their rate says, none of them before it is due,
// and none later than one beat.
func TestStepsAreTakenOnBeats(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		ms := func(name string, from, to int) time.Duration {
			return time.Duration(rapid.IntRange(from, to).Draw(r, name)) * time.Millisecond
		}
		every, beat, begun := ms("every", 1, 200), ms("beat", 0, 200), ms("begun", 0, 500)
		p, now := (&Plan{Beat: beat}).Each(every, begun), begun
		for i := range 50 {
			now = max(now, p.Due(now))
			p.Taken(now)
			if due := begun + time.Duration(i)*every; now < due || now > due && (now >= due+beat || now%beat != 0) {
				r.Fatalf("step %d of one each %v, due at %v, is taken at %v; the beat is %v", i, every, due, now, beat)
			}
		}
	})
}

// TestLostTimeIsLost: a loop that could not step for a while does not catch up, except
// for the steps of one beat.
func TestLostTimeIsLost(t *testing.T) {
	const beat, every = 50 * time.Millisecond, 10 * time.Millisecond
	p := (&Plan{Beat: beat}).Each(every, 0)
	p.Taken(0)
	steps := 0
	for now := time.Second; p.Due(now) <= now; steps++ {
		p.Taken(now)
	}
	if want := int((beat+maxLag)/every) + 2; steps > want {
		t.Errorf("%d steps at once after a second without, want at most %d", steps, want)
	}
}

// A wire carries the messages between two ends, and changes the byte at flip.
type wire struct {
	inbox [2][]byte
	sent  int
	flip  int
}

// run makes the calls of two tasks, one of each end, until both are over. A receive waits
// for its bytes; once the task of the other end is over, it finds the connection closed.
func (w *wire) run(tasks [2]Step) {
	over := [2]bool{}
	for !over[0] || !over[1] {
		for i := range tasks {
			for tasks[i].Then != nil {
				r, ok := w.perform(i, tasks[i].Call, over[1-i])
				if !ok {
					break
				}
				tasks[i] = tasks[i].Then(r)
			}
			over[i] = tasks[i].Then == nil
		}
	}
}

func (w *wire) perform(i int, c Call, closed bool) (r Result, ok bool) {
	if c.Do == Send {
		p := bytes.Clone(c.Data)
		if at := w.flip - w.sent; at >= 0 && at < len(p) {
			p[at] ^= 1
		}
		w.sent += len(p)
		w.inbox[1-i] = append(w.inbox[1-i], p...)
		return Result{N: int64(len(p))}, true
	}
	if len(w.inbox[i]) < c.Len {
		return Result{Status: history.HowEOF}, closed
	}
	r.Data, w.inbox[i] = w.inbox[i][:c.Len], w.inbox[i][c.Len:]
	return r, true
}

// TestAShortConnection greets, exchanges and ends, once in order and once with a byte
// changed on its way, whose position the receiver records.
func TestAShortConnection(t *testing.T) {
	for _, flip := range []int{-1, helloSize + answerSize + 3} {
		env := &stub{}
		plan := &Plan{ConnectSize: 40 << 10}
		client, server := NewEnd(env, plan, Short), NewEnd(env, plan, 0)
		client.Local, client.Peer = addr.Incarnation{Node: 1, Generation: 4}, 2
		server.Local, server.Peer = addr.Incarnation{Node: 2, Generation: 7}, 1
		w := &wire{flip: flip}
		w.run([2]Step{client.Greet().First, server.Greet().First})
		if !client.Open || !server.Open || server.Kind != Short || server.ID.Conn != client.ID.Conn || client.Remote != server.Local || server.Remote != client.Local {
			t.Fatalf("greeted: %+v and %+v", client, server)
		}
		w.run([2]Step{client.Tasks()[0].First, server.Tasks()[0].First})
		var sent, received int64
		for _, b := range env.puts {
			switch b := b.(type) {
			case *history.Sent:
				sent += b.Range.To
			case *history.Received:
				received += b.Range.To
				if bad := flip >= 0 && b.Side == history.Server; bad != (b.Bad != nil) || bad && *b.Bad != 3 {
					t.Errorf("flipped at %d: bad at %v of %v", flip, b.Bad, b.ConnEnd)
				}
			}
		}
		if sent == 0 || sent != received || sent != int64(w.sent)-helloSize-answerSize {
			t.Errorf("%d bytes are reported as sent and %d received, of %d", sent, received, w.sent)
		}
	}
}

// TestAStrangersGreetingOpensNothing: an answer that is another node's, or of none.
func TestAStrangersGreetingOpensNothing(t *testing.T) {
	for _, incarnation := range []addr.Incarnation{{Node: 3, Generation: 7}, {Node: 2}} {
		env := &stub{}
		client, server := NewEnd(env, &Plan{}, Stream), NewEnd(env, &Plan{}, 0)
		client.Local, client.Peer = addr.Incarnation{Node: 1, Generation: 4}, 2
		server.Local, server.Peer = incarnation, 1
		(&wire{flip: -1}).run([2]Step{client.Greet().First, server.Greet().First})
		if client.Open {
			t.Errorf("a connection to %v is open, want one to node 2", incarnation)
		}
	}
}
