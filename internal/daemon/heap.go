package daemon

import (
	"math"
	"os"
	"runtime/debug"
	"sync/atomic"
)

// heapPart is Go's part of the memory limit, in per cent, before its collector works harder:
// without that it lets garbage grow to as much as is in use, and a container of 64 MiB ends with 35
// MiB in use.
const heapPart = 80

// A Heap keeps Go's memory below the limit of the process, where $GOMEMLIMIT says
// nothing. It is the process that is bounded: fabricd does it, and no program that
// embeds a node. [Options] take one.
type Heap struct {
	ours bool // $GOMEMLIMIT says nothing
	last atomic.Int64
}

// NewHeap returns a Heap that bounds nothing yet.
func NewHeap() *Heap { return &Heap{ours: os.Getenv("GOMEMLIMIT") == ""} }

// bound takes over a limit, in bytes. Without a Heap it does nothing.
func (h *Heap) bound(limit int64) {
	if h != nil && h.ours && h.last.Swap(limit) != limit {
		debug.SetMemoryLimit(limit / 100 * heapPart)
	}
}

// Close takes the bound back.
func (h *Heap) Close() {
	if h.ours {
		debug.SetMemoryLimit(math.MaxInt64)
	}
}
