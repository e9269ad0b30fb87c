package rma

// A Window is a registered range of an endpoint's offset space. Its fields are
// set by the space and do not change.
//
//	            Unregister              Retire, and the last Release
//	registered ------------> withdrawn -----------------------------> gone
//
// A withdrawn window accepts no new operation of this end, but those of the peer that were in
// progress when it was withdrawn. Its offsets stay in use until it is gone. The registration itself
// is one reference, which Retire drops.
type Window[M any] struct {
	Offset int64 // of the first byte; a multiple of PageSize
	Length int64 // in bytes, a positive multiple of PageSize
	Prot   Prot  // access of the peer
	Mem    M     // the memory behind it, as given to Register

	state windowState
	refs  int // > 0 until the window is gone
}

type windowState uint8

const (
	registered windowState = iota
	withdrawn              // only the peer's operations still find it
	retired                // no operation finds it; references keep it
	gone
)

// End returns the offset after the window's last byte.
func (w *Window[M]) End() int64 { return w.Offset + w.Length }

// Registered reports whether the window takes new operations.
func (w *Window[M]) Registered() bool { return w.state == registered }

// Gone reports whether the window's last reference has been dropped, so that its memory is unused.
func (w *Window[M]) Gone() bool { return w.state == gone }

// A Span is a part of one window.
type Span[M any] struct {
	Window *Window[M]
	Offset int64 // of the first byte, from the beginning of the window's memory
	Length int64 // in bytes, positive
}
