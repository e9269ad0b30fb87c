package client

import (
	"sync"

	"github.com/fabricd/fabricd/internal/attach/proto"
)

// A pad has room for the messages of operations that are made often. What is
// passed as a message is else allocated with every call: the compiler does not see
// that nobody keeps it.
type pad struct {
	transfer proto.Transfer
	staged   proto.VTransfer
	atomic   proto.AtomicBody
	word     proto.WordBody
	side     proto.SideBody
	mark     proto.MarkBody
	signal   proto.SignalBody
}

var pads = sync.Pool{New: func() any { return new(pad) }}

// usePad gives f a pad until it returns.
func usePad(f func(*pad) error) error {
	p := pads.Get().(*pad)
	defer pads.Put(p)
	return f(p)
}
