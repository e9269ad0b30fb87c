package workload

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/internal/bubble"
	"github.com/fabricd/fabricd/internal/history"
)

// TestHalfAWord scans a window while a transfer has written the first bytes of a
// word, which then has the number of no operation of that place: it is misplaced
// only if it stays so.
func TestHalfAWord(t *testing.T) {
	g := newGeometry(RMA{Min: 8, Max: 4096, Window: 64 << 10})
	owner := history.ConnEnd{Conn: 5, Side: history.Server}
	peer := history.ConnEnd{Conn: 5, Side: history.Client}
	slots := uint64(g.slots)
	later := 0x100 / slots * slots // the next one of its slot, whose number has another upper byte
	later += slots
	const at = 8
	for name, tt := range map[string]struct {
		rest bool
		want int64
	}{"the rest comes": {true, 0}, "the rest does not come": {false, 1}} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := &window{id: 7, g: g, owner: owner, bytes: make([]byte, g.window), app: &App{known: newWriters()}}
				stamp(w.bytes[:g.slotsEnd()], fillOf(w.id), 0)
				stamp(w.bytes[:64], writerOf(peer), later-slots)
				whole := make([]byte, 64)
				stamp(whole, writerOf(peer), later)
				copy(w.bytes[at:], whole[at:at+2]) // and a nibble of the number
				if tt.rest {
					timer := time.AfterFunc(10*tornEvery, func() { fabric.StoreUint64(w.bytes[at:], binary.LittleEndian.Uint64(whole[at:])) })
					defer timer.Stop()
				}
				word := tag(binary.LittleEndian.Uint64(w.bytes[at:]))
				if g.fits(word, at) {
					t.Fatalf("half of operation %d and of %d is one that fits", later, later-slots)
				}
				r, found := &history.Scan{}, map[uint32]*history.WindowWriter{}
				if w.place(r, found, word, at) {
					t.Fatal("half a word is taken for whole")
				}
				w.lookAgain(r, found, []int{at})
				if r.Misplaced != tt.want {
					t.Errorf("%d words are misplaced, want %d", r.Misplaced, tt.want)
				}
			})
		})
	}
}
