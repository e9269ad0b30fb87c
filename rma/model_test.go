package rma_test

import (
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/rma"
)

const page = rma.PageSize

// A modelSpace is a Space that knows its windows in no order and tries all.
type modelSpace struct {
	max     int
	windows []*modelWindow // that are not gone
}

type modelWindow struct {
	off, n int64
	prot   rma.Prot
	mem    int
	live   bool // takes new operations
	peer   bool // takes the peer's operations
	refs   int
}

func (m *modelSpace) free(off, n int64) bool {
	for _, w := range m.windows {
		if off < w.off+w.n && w.off < off+n {
			return false
		}
	}
	return off+n > off
}

// lowestFree tries the only offsets that can be lowest: the first one and
// those right after a window.
func (m *modelSpace) lowestFree(n int64) (int64, bool) {
	best, found := int64(0), false
	try := func(off int64) {
		if off >= rma.FirstOffset && m.free(off, n) && (!found || off < best) {
			best, found = off, true
		}
	}
	try(rma.FirstOffset)
	for _, w := range m.windows {
		try(w.off + w.n)
	}
	return best, found
}

func (m *modelSpace) register(mem int, n, off int64, prot rma.Prot, flags rma.MapFlags) (int64, error) {
	switch {
	case flags != 0 && flags != rma.MapFixed,
		flags == rma.MapFixed && (off < 0 || off%page != 0 || n < 0 || off+n < off),
		prot > 3,
		n <= 0 || n%page != 0:
		return 0, status.Invalid
	case flags == rma.MapFixed && !m.free(off, n):
		return 0, status.InUse
	}
	if flags == 0 && (off <= 0 || off%page != 0 || !m.free(off, n)) {
		var ok bool
		if off, ok = m.lowestFree(n); !ok {
			return 0, status.NoMemory
		}
	}
	if len(m.windows) == m.max {
		return 0, status.NoMemory
	}
	w := &modelWindow{off: off, n: n, prot: prot, mem: mem, live: true, peer: true, refs: 1}
	m.windows = append(m.windows, w)
	return off, nil
}

func (m *modelSpace) unregister(off, n int64) ([]*modelWindow, error) {
	if off < 0 || n <= 0 || off%page != 0 || n%page != 0 || off+n < off {
		return nil, status.Invalid
	}
	var out []*modelWindow
	for _, w := range m.sorted() {
		if !w.live || w.off >= off+n || w.off+w.n <= off {
			continue
		}
		if w.off < off || w.off+w.n > off+n {
			return nil, status.Invalid
		}
		out = append(out, w)
	}
	for _, w := range out {
		w.live = false
	}
	return out, nil
}

func (m *modelSpace) drop(w *modelWindow) (gone bool) {
	w.refs--
	if w.refs > 0 {
		return false
	}
	m.windows = slices.DeleteFunc(m.windows, func(x *modelWindow) bool { return x == w })
	return true
}

func (m *modelSpace) sorted() []*modelWindow {
	s := slices.Clone(m.windows)
	slices.SortFunc(s, func(a, b *modelWindow) int { return int((a.off - b.off) / page) })
	return s
}

func (m *modelSpace) at(off int64) *modelWindow {
	for _, w := range m.windows {
		if w.off <= off && off-w.off < w.n {
			return w
		}
	}
	return nil
}

// A modelByte is where one byte of the space is.
type modelByte struct {
	w   *modelWindow
	off int64 // from the beginning of its memory
}

// bytes resolves the range one byte at a time.
func (m *modelSpace) bytes(off, n int64, need rma.Prot, peer bool) ([]modelByte, error) {
	if n <= 0 {
		return nil, status.Invalid
	}
	if off < 0 || off+n < off {
		return nil, status.NoAddress
	}
	out := make([]modelByte, 0, n)
	for o := off; o < off+n; o++ {
		w := m.at(o)
		if w == nil || !w.live && !(peer && w.peer) {
			return nil, status.NoAddress
		}
		if w.prot&need != need {
			return nil, status.Access
		}
		out = append(out, modelByte{w, o - w.off})
	}
	return out, nil
}

// A pair runs a Space and its model side by side.
type pair struct {
	space   rma.Space[int]
	model   modelSpace
	held    []heldWindow // references beyond the registrations
	pending []heldWindow // withdrawn, not retired
	next    int
}

type heldWindow struct {
	w *rma.Window[int]
	m *modelWindow
}

// anyOffset prefers the few pages that make windows meet, and the edges.
func anyOffset(t *rapid.T) int64 {
	base := rapid.SampledFrom([]int64{0, 0x10000, rma.FirstOffset, 1<<63 - 6*page}).Draw(t, "base")
	off := base + page*rapid.Int64Range(0, 5).Draw(t, "page")
	return off + rapid.SampledFrom([]int64{0, 0, 0, 0, 0, 1, -1, 2048, -2 * page}).Draw(t, "skew")
}

func anyLength(t *rapid.T) int64 {
	return rapid.OneOf(
		rapid.SampledFrom([]int64{page, 2 * page, 3 * page}),
		rapid.SampledFrom([]int64{page, 0, -page, 1, page + 1, 1 << 62, 1<<63 - page}),
	).Draw(t, "length")
}

func anyProt(t *rapid.T, most uint8) rma.Prot {
	return rma.Prot(rapid.OneOf(rapid.Just(uint8(3)), rapid.Uint8Range(0, most)).Draw(t, "prot"))
}

func (p *pair) register(t *rapid.T) {
	off, n, prot := anyOffset(t), anyLength(t), anyProt(t, 4)
	flags := rma.MapFlags(rapid.SampledFrom([]uint32{0, 0x10, 0x10, 0x10, 0x20, 0x30}).Draw(t, "flags"))
	p.next++
	got, err := p.space.Register(p.next, n, off, prot, flags)
	want, wantErr := p.model.register(p.next, n, off, prot, flags)
	if got != want || err != wantErr {
		t.Fatalf("Register(n %#x, off %#x, prot %d, flags %#x) = %#x, %v; want %#x, %v",
			n, off, prot, flags, got, err, want, wantErr)
	}
}

func (p *pair) unregister(t *rapid.T) {
	off, n := anyOffset(t), anyLength(t)
	got, err := p.space.Unregister(off, n)
	want, wantErr := p.model.unregister(off, n)
	if err != wantErr || len(got) != len(want) {
		t.Fatalf("Unregister(%#x, %#x) = %d windows, %v; want %d, %v", off, n, len(got), err, len(want), wantErr)
	}
	for i := range got {
		if got[i].Mem != want[i].mem {
			t.Fatalf("Unregister withdrew window %d, want %d", got[i].Mem, want[i].mem)
		}
		p.pending = append(p.pending, heldWindow{got[i], want[i]})
	}
}

func (p *pair) retire(t *rapid.T) {
	h := takeOne(t, &p.pending)
	h.m.peer = false
	if got, want := p.space.Retire(h.w), p.model.drop(h.m); got != want || h.w.Gone() != want {
		t.Fatalf("Retire of window %d = %v, want %v", h.m.mem, got, want)
	}
}

func (p *pair) retain(t *rapid.T) {
	if len(p.model.windows) == 0 {
		t.Skip("no window")
	}
	m := rapid.SampledFrom(p.model.windows).Draw(t, "window")
	w := p.space.At(m.off)
	if w == nil {
		t.Fatalf("At(%#x) = nil, want window %d", m.off, m.mem)
	}
	p.space.Retain(w)
	m.refs++
	p.held = append(p.held, heldWindow{w, m})
}

func (p *pair) release(t *rapid.T) {
	h := takeOne(t, &p.held)
	if got, want := p.space.Release(h.w), p.model.drop(h.m); got != want || h.w.Gone() != want {
		t.Fatalf("Release of window %d = %v, want %v", h.m.mem, got, want)
	}
}

func takeOne(t *rapid.T, from *[]heldWindow) heldWindow {
	if len(*from) == 0 {
		t.Skip("none")
	}
	i := rapid.IntRange(0, len(*from)-1).Draw(t, "index")
	h := (*from)[i]
	*from = slices.Delete(*from, i, i+1)
	return h
}

func (p *pair) lookup(t *rapid.T) {
	off, n, need, peer := anyOffset(t), anyLength(t), anyProt(t, 3), rapid.Bool().Draw(t, "peer")
	if n > 4*page && off >= 0 && off+n > 0 {
		n = 4 * page // the model checks every byte
	}
	spans, within := p.space.Spans, p.space.Within
	if peer {
		spans, within = p.space.PeerSpans, p.space.PeerWithin
	}
	want, wantErr := p.model.bytes(off, n, need, peer)
	got, err := spans(nil, off, n, need)
	if err != wantErr {
		t.Fatalf("Spans(%#x, %#x, need %d, peer %v): %v, want %v", off, n, need, peer, err, wantErr)
	}
	if err == nil {
		compareSpans(t, got, want)
	}
	compareWithin(t, within, off, n, need, want, wantErr)
}

func compareSpans(t *rapid.T, got []rma.Span[int], want []modelByte) {
	for i, s := range got {
		if s.Length <= 0 || s.Length > int64(len(want)) {
			t.Fatalf("span %d has %d bytes, %d are left", i, s.Length, len(want))
		}
		for k := range s.Length {
			if s.Window.Mem != want[k].w.mem || s.Offset+k != want[k].off {
				t.Fatalf("byte %d of span %d is %d of window %d, want %d of window %d",
					k, i, s.Offset+k, s.Window.Mem, want[k].off, want[k].w.mem)
			}
		}
		want = want[s.Length:]
	}
	if len(want) != 0 {
		t.Fatalf("spans miss the last %d bytes", len(want))
	}
}

func compareWithin(t *rapid.T, within func(off, n int64, need rma.Prot) (rma.Span[int], error),
	off, n int64, need rma.Prot, want []modelByte, wantErr error) {
	got, err := within(off, n, need)
	switch {
	case wantErr == nil && want[0].w == want[len(want)-1].w:
		if err != nil || got.Window.Mem != want[0].w.mem || got.Offset != want[0].off || got.Length != n {
			t.Fatalf("Within(%#x, %#x) = %+v, %v; want %d bytes of window %d", off, n, got, err, n, want[0].w.mem)
		}
	case err == nil:
		t.Fatalf("Within(%#x, %#x) = %+v, want an error", off, n, got)
	case wantErr == nil && err != status.NoAddress:
		t.Fatalf("Within(%#x, %#x) over two windows: %v, want status.NoAddress", off, n, err)
	}
}

func (p *pair) compare(t *rapid.T) {
	want := p.model.sorted()
	i := 0
	for w := range p.space.Windows() {
		if i == len(want) || w.Offset != want[i].off || w.Length != want[i].n || w.Mem != want[i].mem ||
			w.Prot != want[i].prot || w.Registered() != want[i].live || w.Gone() {
			t.Fatalf("window %d of the space is %+v", i, *w)
		}
		i++
	}
	if i != len(want) || p.space.Len() != len(want) {
		t.Fatalf("the space has %d windows, Len %d, want %d", i, p.space.Len(), len(want))
	}
}

// close withdraws everything and drops every reference.
func (p *pair) close(t *rapid.T) {
	for _, w := range p.space.UnregisterAll() {
		i := slices.IndexFunc(p.model.windows, func(m *modelWindow) bool { return m.mem == w.Mem })
		if !p.model.windows[i].live {
			t.Fatalf("UnregisterAll returned window %d, which was withdrawn before", w.Mem)
		}
		p.pending = append(p.pending, heldWindow{w, p.model.windows[i]})
	}
	for len(p.pending) > 0 {
		p.retire(t)
	}
	for len(p.held) > 0 {
		p.release(t)
	}
	if p.space.Len() != 0 {
		t.Fatalf("%d windows are left after every reference", p.space.Len())
	}
}

func TestSpaceAgreesWithModel(t *testing.T) {
	const most = 7
	rapid.Check(t, func(t *rapid.T) {
		p := pair{space: rma.Space[int]{Max: most}, model: modelSpace{max: most}}
		t.Repeat(map[string]func(*rapid.T){
			"register":       p.register,
			"register again": p.register, // twice as often
			"unregister":     p.unregister,
			"retire":         p.retire,
			"retain":         p.retain,
			"release":        p.release,
			"lookup":         p.lookup,
			"":               p.compare,
		})
		p.close(t)
	})
}

func TestMirrorFollowsItsOwner(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var owner rma.Space[int]
		var mirror rma.Space[struct{}]
		t.Repeat(map[string]func(*rapid.T){
			"register": func(t *rapid.T) {
				n, prot := page*rapid.Int64Range(1, 3).Draw(t, "pages"), anyProt(t, 3)
				off, err := owner.Register(0, n, anyOffset(t), prot, 0)
				if err != nil {
					t.Fatal(err)
				}
				if err := mirror.Announce(off, n, prot); err != nil {
					t.Fatalf("Announce(%#x, %#x): %v", off, n, err)
				}
				// Operations in progress must not delay a withdrawal.
				mirror.Retain(mirror.At(off))
			},
			"unregister": func(t *rapid.T) {
				off := max(anyOffset(t)&^(page-1), 0)
				gone, _ := owner.Unregister(off, 3*page)
				for _, w := range gone {
					owner.Retire(w)
					if err := mirror.Withdraw(w.Offset, w.Length); err != nil {
						t.Fatalf("Withdraw(%#x, %#x): %v", w.Offset, w.Length, err)
					}
				}
			},
			"": func(t *rapid.T) {
				off, n, need := anyOffset(t), anyLength(t), anyProt(t, 3)
				_, want := owner.Spans(nil, off, n, need)
				if _, got := mirror.Spans(nil, off, n, need); !errors.Is(got, want) {
					t.Fatalf("Spans(%#x, %#x, %d): mirror %v, owner %v", off, n, need, got, want)
				}
			},
		})
	})
}
