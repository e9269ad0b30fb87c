package workload

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/internal/lab/history"
	"github.com/fabricd/fabricd/internal/test/bubble"
)

// TestHalfAWord scans a window while a transfer has written the first bytes of a
// word, over an operation before it or over the window's fill. The word then has the
// number of no operation of that place, or an operation of the fill, or half a writer:
// it is wrong only if it stays so.
func TestHalfAWord(t *testing.T) {
	g := newGeometry(RMA{Min: 8, Max: 4096, Window: 64 << 10})
	owner := history.ConnEnd{Conn: 5, Side: history.Server}
	peer := history.ConnEnd{Conn: 5, Side: history.Client}
	slots := uint64(g.slots)
	later := 0x100 / slots * slots // the next one of its slot, whose number has another upper byte
	later += slots
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
				bubble.Test(t, func(t *testing.T) {
					w := &window{id: 7, g: g, owner: owner, bytes: make([]byte, g.window), app: &App{known: newWriters()}}
					stamp(w.bytes[:g.slotsEnd()], fillOf(w.id), 0)
					if tt.before {
						stamp(w.bytes[:64], writerOf(peer), later-slots)
					}
					w.app.known.add(owner.Conn, &end{id: owner})
					whole := make([]byte, 64)
					stamp(whole, writerOf(peer), later)
					copy(w.bytes[at:], whole[at:at+tt.half])
					if rest {
						timer := time.AfterFunc(10*tornEvery, func() { fabric.StoreUint64(w.bytes[at:], binary.LittleEndian.Uint64(whole[at:])) })
						defer timer.Stop()
					}
					r, found := &history.Scan{}, map[uint32]*history.WindowWriter{}
					if w.place(r, found, tag(binary.LittleEndian.Uint64(w.bytes[at:])), at) {
						t.Fatal("half a word is taken for whole")
					}
					w.lookAgain(r, found, []int{at})
					misplaced, unknown := tt.misplaced, tt.unknown
					if rest {
						misplaced, unknown = 0, 0
					}
					if r.Misplaced != misplaced || r.Unknown != unknown {
						t.Errorf("%d words are misplaced and %d unknown, want %d and %d", r.Misplaced, r.Unknown, misplaced, unknown)
					}
				})
			})
		}
	}
}

// TestAForeignWordIsSeenAtOnce scans a window in which a word of another connection
// stands, which is written over soon: that it was there is what counts.
func TestAForeignWordIsSeenAtOnce(t *testing.T) {
	g := newGeometry(RMA{Min: 8, Max: 4096, Window: 64 << 10})
	w := &window{id: 7, g: g, owner: history.ConnEnd{Conn: 5, Side: history.Server}, bytes: make([]byte, g.window), app: &App{known: newWriters()}}
	other := history.ConnEnd{Conn: 6, Side: history.Client}
	w.app.known.add(other.Conn, &end{id: other})
	r, found := &history.Scan{}, map[uint32]*history.WindowWriter{}
	if !w.place(r, found, tagAt(writerOf(other), 3, 1), 8) || found[writerOf(other)] == nil || found[writerOf(other)].Words != 1 {
		t.Errorf("%+v, %v", r, found)
	}
}
