package client

import (
	"sync"

	"github.com/fabricd/fabricd/internal/attach/proto"
)

// A pad has space for the messages of frequent operations. Passed as an interface, a message would
// otherwise be allocated with every call: escape analysis does not see that no callee retains it.
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

// usePad lends f a pad until f returns.
func usePad(f func(*pad) error) error {
	p := pads.Get().(*pad)
	defer pads.Put(p)
	return f(p)
}
