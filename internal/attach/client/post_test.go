package client

import (
	"bytes"
	"testing"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/rma"
)

func TestPostsAndPuts(t *testing.T) {
	s := serve(t, nil)
	ca, cb := s.dial(t), s.dial(t)
	a, b := connect(t, ca, cb)
	const rw = rma.ProtRead | rma.ProtWrite
	ma, mb := must(ca.Alloc(8192))(t), must(cb.Alloc(4<<20))(t)
	offA, offB := must(a.Register(ma.Bytes(), 0, rw, 0))(t), must(b.Register(mb.Bytes(), 0, rw, 0))(t)

	post := rma.Atomic{Op: rma.AtomicAdd, Width: 8, Offset: offB + 8, Operand: 5}
	for range 2 {
		check(t, "PostAtomic", a.PostAtomic(post), status.OK)
	}
	if mb.Bytes()[8] != 10 {
		t.Errorf("the word is %d, want 10", mb.Bytes()[8])
	}
	post.Offset = offB + 8<<20
	check(t, "PostAtomic that the node refuses", a.PostAtomic(post), status.NoAddress)

	copy(ma.Bytes(), "written by a")
	put := rma.Put{Offset: offB + 100, Word: offB + 16, Value: 3}
	check(t, "PutSignal", a.PutSignal(offA, 12, put), status.OK)
	if string(mb.Bytes()[100:112]) != "written by a" || mb.Bytes()[16] != 3 {
		t.Errorf("b's memory has %q, word %d", mb.Bytes()[100:112], mb.Bytes()[16])
	}

	big := make([]byte, 2<<20+777) // more than the bounce memory's pieces
	for i := range big {
		big[i] = byte(i * 7)
	}
	put = rma.Put{Offset: offB + 4096, Word: offB + 16, Value: 4}
	check(t, "VPutSignal", a.VPutSignal(big, put), status.OK)
	if !bytes.Equal(mb.Bytes()[4096:4096+len(big)], big) || mb.Bytes()[16] != 4 {
		t.Errorf("VPutSignal: other bytes arrived, word %d", mb.Bytes()[16])
	}
	check(t, "VPutSignal of nothing", a.VPutSignal(nil, put), status.Invalid)
	put.Word++
	check(t, "VPutSignal to an odd word", a.VPutSignal(big, put), status.Invalid)
	clear(mb.Bytes())
	put = rma.Put{Offset: offB + 2<<20, Word: offB, Value: 5}
	check(t, "VPutSignal whose end is outside", a.VPutSignal(big, put), status.NoAddress)
	if !bytes.Equal(mb.Bytes(), make([]byte, 4<<20)) {
		t.Error("a piece of a put arrived although the whole does not fit")
	}
	b.Close()
	eventually(t, "a sees the end", func() bool { return a.Ready()&attach.PollHup != 0 })
	check(t, "VPutSignal of nothing at the end", a.VPutSignal(nil, put), status.Reset)
	check(t, "VWriteTo of nothing at the end", a.VWriteTo(nil, offB, 0), status.Reset)
}
