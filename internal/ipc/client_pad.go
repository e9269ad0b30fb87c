package ipc

import "sync"

// A pad has room for the messages of operations that are made often. What is
// passed as a message is else allocated with every call: the compiler does not see
// that nobody keeps it.
type pad struct {
	transfer Transfer
	staged   VTransfer
	atomic   AtomicBody
	word     WordBody
	side     SideBody
	mark     MarkBody
	signal   SignalBody
}

var pads = sync.Pool{New: func() any { return new(pad) }}

// usePad gives f a pad until it returns.
func usePad(f func(*pad) error) error {
	p := pads.Get().(*pad)
	defer pads.Put(p)
	return f(p)
}
