package client

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/rma"
)

// scattered is memory in several pieces, with adjacent windows onto it.
type scattered [][]byte

// bytes returns a copy of the memory.
func (s scattered) bytes() []byte { return bytes.Join(s, nil) }

// set copies b, as many bytes, there.
func (s scattered) set(b []byte) {
	for _, piece := range s {
		b = b[copy(piece, b):]
	}
}

// adjacent registers adjacent windows of the given numbers of pages, and returns their memory, and
// the offset of the first one.
func (p *directPair) adjacent(t testing.TB, c attach.Session, e attach.Endpoint, at int64, pages ...int) (mem scattered, first int64) {
	t.Helper()
	first = at
	for _, n := range pages {
		piece := must(c.Alloc(n * pageSize))(t).Bytes()
		must(e.Register(piece, at, readWrite, rma.MapFixed))(t)
		mem = append(mem, piece)
		at += int64(len(piece))
	}
	return mem, first
}

// The fake node rejects ranges over several windows: a transfer that succeeds was direct.
func TestDirectRangesOverSeveralWindows(t *testing.T) {
	p := newDirectPair(t, nil)
	here, loff := p.adjacent(t, p.ca, p.a, 1<<20, 1, 2, 1, 3)
	there, roff := p.adjacent(t, p.cb, p.b, 2<<20, 2, 1, 1, 1, 2)
	mine, theirs := here.bytes(), there.bytes() // the expected contents
	rapid.Check(t, func(rt *rapid.T) {
		lo := rapid.IntRange(0, len(mine)-1).Draw(rt, "local")
		ro := rapid.IntRange(0, len(theirs)-1).Draw(rt, "remote")
		n := rapid.IntRange(1, min(len(mine)-lo, len(theirs)-ro)).Draw(rt, "n")
		flags := rapid.SampledFrom([]rma.Flags{0, rma.Sync, rma.Ordered}).Draw(rt, "flags")
		for i := range mine {
			mine[i], theirs[i] = byte(i*7+n), byte(i*3+lo)
		}
		here.set(mine)
		there.set(theirs)
		from, to := mine[lo:lo+n], theirs[ro:ro+n]
		var err error
		switch rapid.IntRange(0, 3).Draw(rt, "call") {
		case 0:
			copy(to, from)
			err = p.a.WriteTo(loff+int64(lo), int64(n), roff+int64(ro), flags)
		case 1:
			copy(from, to)
			err = p.a.ReadFrom(loff+int64(lo), int64(n), roff+int64(ro), flags)
		case 2:
			copy(to, from)
			err = p.a.VWriteTo(bytes.Clone(from), roff+int64(ro), flags)
		case 3:
			got := make([]byte, n)
			if err = p.a.VReadFrom(got, roff+int64(ro), flags); !bytes.Equal(got, to) {
				rt.Error("VReadFrom has read something else")
			}
		}
		if err != nil {
			rt.Fatal(err)
		}
		if !bytes.Equal(here.bytes(), mine) || !bytes.Equal(there.bytes(), theirs) {
			rt.Error("memory has something else")
		}
	})
	if got := known(p.a); got != 5 {
		t.Errorf("%d windows are mapped, want 5", got)
	}
	d := directOf(p.a)
	for _, part := range append(d.theirs[:cap(d.theirs)], d.ours[:cap(d.ours)]...) {
		if part != nil {
			t.Fatal("memory is pointed to that may be unmapped")
		}
	}
}

// No byte moves unless every window permits the access.
func TestRangesOverSeveralWindowsAreCheckedFirst(t *testing.T) {
	p := newDirectPair(t, nil)
	theirs, roff := p.adjacent(t, p.cb, p.b, 1<<20, 1, 1)
	must(p.b.Register(must(p.cb.Alloc(pageSize))(t).Bytes(), roff+2*pageSize, rma.ProtRead, rma.MapFixed))(t)
	mine, loff := p.adjacent(t, p.ca, p.a, 1<<20, 1, 1)
	must(p.a.Register(must(p.ca.Alloc(pageSize))(t).Bytes(), loff+2*pageSize, rma.ProtWrite, rma.MapFixed))(t)
	mine.set(bytes.Repeat([]byte{1}, 2*pageSize))
	check(t, "warm", p.a.VReadFrom(make([]byte, 3*pageSize), roff, 0), status.OK)
	d := directOf(p.a)
	for name, done := range map[string]bool{
		"a write over a window that only reads":     d.transfer(&transfer{write: true, local: loff, n: 2 * pageSize, remote: roff + pageSize}),
		"a write from a window that only writes":    d.transfer(&transfer{write: true, local: loff + pageSize, n: 2 * pageSize, remote: roff}),
		"a write over the end":                      d.transfer(&transfer{write: true, plain: true, memory: make([]byte, 3*pageSize+1), n: 3*pageSize + 1, remote: roff}),
		"a read over the end":                       d.transfer(&transfer{local: loff, n: 3*pageSize + 1, remote: roff}),
		"a write from behind the end":               d.transfer(&transfer{write: true, local: loff + pageSize, n: 2*pageSize + 1, remote: roff}),
		"a write with an end that no offset has":    d.transfer(&transfer{write: true, local: loff, n: 1 << 62, remote: 1 << 62}),
		"a read into a window that only reads, not": d.transfer(&transfer{local: loff, n: 3 * pageSize, remote: roff - 1}),
	} {
		if done {
			t.Errorf("%s is done directly", name)
		}
	}
	if !bytes.Equal(theirs.bytes(), make([]byte, 2*pageSize)) || !bytes.Equal(mine.bytes(), bytes.Repeat([]byte{1}, 2*pageSize)) {
		t.Error("something has moved")
	}
}

// An invalidation of any window of a range counts.
func TestEveryWindowOfARangeIsOfTheEpoch(t *testing.T) {
	p := newDirectPair(t, nil)
	theirs, roff := p.adjacent(t, p.cb, p.b, 1<<20, 1, 1, 1)
	buf := bytes.Repeat([]byte{9}, 3*pageSize)
	check(t, "a write", p.a.VWriteTo(buf, roff, 0), status.OK)
	theirs.set(make([]byte, 3*pageSize))
	check(t, "Unregister", p.b.Unregister(roff+pageSize, pageSize), status.OK)
	check(t, "a write over the hole", p.a.VWriteTo(buf, roff, 0), status.NoAddress)
	check(t, "a write to the hole", p.a.VWriteTo(buf[:1], roff+pageSize, 0), status.NoAddress)
	if !bytes.Equal(theirs.bytes(), make([]byte, 3*pageSize)) {
		t.Error("a write over a hole has begun")
	}
}

// A range over more windows than one operation asks for is known in the end.
func TestARangeOverManyWindows(t *testing.T) {
	p := newDirectPair(t, nil)
	pages := make([]int, 3*maxObstacles)
	for i := range pages {
		pages[i] = 1
	}
	theirs, roff := p.adjacent(t, p.cb, p.b, 1<<20, pages...)
	buf := bytes.Repeat([]byte{5}, len(pages)*pageSize)
	for range 4 {
		p.a.VWriteTo(buf, roff, 0) // the fake node cannot
	}
	check(t, "a write", p.a.VWriteTo(buf, roff, 0), status.OK)
	if !bytes.Equal(theirs.bytes(), buf) {
		t.Error("something else was written")
	}
}

// The last line of an ordered transfer is stored at once, wherever its bytes
// come from.
func TestOrderedCopiesGatherTheLastLine(t *testing.T) {
	region := must(shm.Create("test", 2*pageSize))(t)
	defer region.Release()
	for _, n := range []int{1, 8, 63, 64, 65, 70, 200} {
		for end := pageSize - 3; end < pageSize+66; end++ {
			clear(region.Bytes())
			src := make([]byte, n)
			for i := range src {
				src[i] = byte(i + 1)
			}
			for cut := range n {
				dst := byteRange{first: region.Bytes()[end-n : end], region: region, end: int64(end)}
				from := byteRange{first: src[:cut], rest: [][]byte{src[cut:]}}
				if cut == 0 {
					from = byteRange{first: src}
				}
				if err := copyOrdered(&dst, &from, int64(n)); err != nil || !bytes.Equal(region.Bytes()[end-n:end], src) {
					t.Fatalf("%d bytes cut at %d to %d: %v", n, cut, end, err)
				}
			}
		}
	}
}
