package client

import (
	"bytes"
	"testing"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/internal/attach/server"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/rma"
)

// A transfer that goes through the node in pieces moves nothing when its end is
// out of range.
func TestAllOfALongTransferIsCheckedFirst(t *testing.T) {
	p := newDirectPair(t, func(o *server.Options) { o.NoDirect = true })
	const size = 3 << 20
	mem, off := p.window(t, p.cb, p.b, size/pageSize, readWrite)
	_, readOnly := p.window(t, p.cb, p.b, size/pageSize, rma.ProtRead)
	for i := range mem {
		mem[i] = byte(i * 5)
	}
	want := bytes.Clone(mem)
	own := must(p.ca.Alloc(size))(t).Bytes()
	for name, buf := range map[string][]byte{"any memory": make([]byte, size), "window memory": own} {
		check(t, name+": VWriteTo over the end", p.a.VWriteTo(buf, off+1, 0), status.NoAddress)
		check(t, name+": VReadFrom over the end", p.a.VReadFrom(buf, off+pageSize, rma.Sync), status.NoAddress)
		check(t, name+": VWriteTo of what only reads", p.a.VWriteTo(buf, readOnly, 0), status.Access)
		if !bytes.Equal(mem, want) || !bytes.Equal(buf, make([]byte, size)) {
			t.Errorf("%s: a piece has moved", name)
		}
		check(t, name+": VReadFrom", p.a.VReadFrom(buf, off, 0), status.OK)
		if !bytes.Equal(buf, want) {
			t.Errorf("%s: VReadFrom has read something else", name)
		}
	}
	e := p.a.(*endpoint)
	check(t, "CHECK for nothing", e.ask(t.Context(), proto.OpCheck, &proto.CheckBody{Remote: off, Len: 1}, nil), status.Invalid)
	check(t, "CHECK for all", e.ask(t.Context(), proto.OpCheck, &proto.CheckBody{Remote: off, Len: 1, Need: readWrite}, nil), status.Invalid)
	p.b.Close()
	eventually(t, "a sees the end", func() bool { return p.a.Ready()&attach.PollHup != 0 })
	check(t, "VWriteTo at the end", p.a.VWriteTo(own, off, 0), status.Reset)
}
