package client

import (
	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/rma"
)

// maxParts bounds the windows of one end that a direct transfer spans.
const maxParts = maxPeerWindows

// A window is a window of this end or of the peer, mapped in this process.
type window struct {
	off, end int64 // in the space of its end
	prot     rma.Prot
	region   *shm.Region
	memOff   int64

	// Of a window of the peer, whose region is exactly the window. Without a region the node has to
	// copy, and prot is 0.
	epoch   uint64 // at which the node reported the window
	lastUse uint64 // on the endpoint's use clock
	uses    uint64
}

func (w *window) release() {
	if w.region != nil {
		w.region.Release()
	}
}

// endAfter returns the index of the first window of ws, which are in order, that ends after off.
func endAfter(ws []*window, off int64) int {
	lo, hi := 0, len(ws)
	for lo < hi {
		mid := int(uint(lo+hi) / 2)
		if ws[mid].end <= off {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// bytes returns the memory of [off, off+n), which lies in the window.
func (w *window) bytes(off, n int64) []byte {
	at := w.at(off)
	return w.region.Bytes()[at : at+n]
}

// at returns the offset in the region that corresponds to off.
func (w *window) at(off int64) int64 { return w.memOff + off - w.off }

// A byteRange is the memory of a range, in order: one part, or several if the range spans several
// windows.
type byteRange struct {
	first  []byte
	rest   [][]byte
	region *shm.Region // of the last part; nil for memory that is not a window
	end    int64       // of the range, in region
}

// skip drops n bytes, at most those of the first part.
func (r *byteRange) skip(n int) {
	if r.first = r.first[n:]; len(r.first) == 0 && len(r.rest) > 0 {
		r.first, r.rest = r.rest[0], r.rest[1:]
	}
}

// copyRange copies the first n bytes of src to dst, and drops them from both.
func copyRange(dst, src *byteRange, n int64) error {
	for n > 0 {
		k := int(min(n, int64(len(dst.first)), int64(len(src.first))))
		if err := shm.Copy(dst.first[:k], src.first[:k]); err != nil {
			return err
		}
		dst.skip(k)
		src.skip(k)
		n -= int64(k)
	}
	return nil
}

// copyOrdered copies the n bytes of src to dst, both windows, so that a reader that sees the last
// line sees the rest. The line may come from several windows but goes into one: windows are whole
// pages.
func copyOrdered(dst, src *byteRange, n int64) error {
	tail := min(n, (dst.end-1)%shm.LineSize+1)
	if err := copyRange(dst, src, n-tail); err != nil {
		return err
	}
	var line [shm.LineSize]byte
	last := byteRange{first: line[:tail]}
	if err := copyRange(&last, src, tail); err != nil {
		return err
	}
	return dst.region.CopyOrdered(dst.end-tail, line[:tail])
}

// rangeOf returns the memory of [off, off+n), which lies in ws. It appends the parts after the
// first to parts, and returns that too.
func rangeOf(parts [][]byte, ws []*window, off, n int64) (byteRange, [][]byte) {
	end := off + n
	last := ws[0]
	r := byteRange{first: last.bytes(off, min(n, last.end-off))}
	for _, w := range ws[1:] {
		last = w
		parts = append(parts, last.bytes(last.off, min(end, last.end)-last.off))
	}
	r.rest, r.region, r.end = parts, last.region, last.at(end)
	return r, parts
}
