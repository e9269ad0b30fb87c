package conformance

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"syscall"

	"github.com/fabricd/fabricd/fabric"
)

func markAny(_ *check, e end) error { return errOf(e.FenceMark(fabric.InitSelf)) }

func waitAny(c *check, e end) error { return e.FenceWait(c.ctx, fabric.Mark{Side: fabric.InitSelf}) }

func signalAny(_ *check, e end) error {
	return e.FenceSignal(fabric.Signal{By: fabric.InitSelf, Where: fabric.SignalRemote})
}

func fenceRows() []row {
	var rows []row
	for _, by := range []fabric.Side{0, 3, 4, 8, 0x10} {
		rows = append(rows, row{call: "fence_mark", name: fmt.Sprintf("CONNECTED/side %#x=EINVAL", uint8(by)), conn: func(c *check, near, _ end) {
			c.want(errOf(near.FenceMark(by)), syscall.EINVAL)
		}})
	}
	return slices.Concat(rows, markRows, waitRows, signalRows(), signalArgumentRows())
}

var markRows = slices.Concat(
	needsConnection("fence_mark", "", markAny),
	inStates("fence_mark", "/side 0, after the state", syscall.ENOTCONN, []state{unbound}, func(_ *check, e end) error {
		return errOf(e.FenceMark(0))
	}),
	[]row{
		{call: "fence_mark", name: "CONNECTED/INIT_SELF, nothing begun=complete", conn: func(c *check, near, _ end) {
			c.fence(near, fabric.InitSelf)
		}},
		{call: "fence_mark", name: "CONNECTED/INIT_PEER, nothing begun=complete", conn: func(c *check, near, _ end) {
			c.fence(near, fabric.InitPeer)
		}},
		{call: "fence_mark", name: "accepted/INIT_PEER=ok", check: func(c *check) {
			_, far := c.connected()
			c.want(errOf(far.FenceMark(fabric.InitPeer)), ok)
		}},
		{call: "fence_mark", name: "CONNECTED/1000 marks outstanding=ok", conn: func(c *check, near, far end) {
			r := c.window(far, 1, rw)
			marks := make([]fabric.Mark, 1000)
			for i := range marks {
				c.must(near.VWriteTo([]byte{byte(i)}, r.off, 0))
				m := c.mark(near, fabric.InitSelf)
				marks[i] = m
			}
			for _, m := range slices.Backward(marks) {
				c.want(near.FenceWait(c.ctx, m), ok)
			}
			c.same(r.mem[:1], []byte{999 & 0xff})
		}},
	},
)

var waitRows = slices.Concat(
	needsConnection("fence_wait", "", waitAny),
	[]row{
		{call: "fence_wait", name: "CONNECTED/INIT_SELF=own transfers are complete", conn: func(c *check, near, far end) {
			l, r := c.window(near, 64, rw), c.window(far, 64, rw)
			copy(l.mem, pattern(len(l.mem), 14))
			c.must(near.WriteTo(l.off, int64(len(l.mem)), r.off, 0))
			c.fence(near, fabric.InitSelf)
			c.same(r.mem, l.mem)
		}},
		{call: "fence_wait", name: "CONNECTED/INIT_PEER=the peer's transfers are complete", conn: func(c *check, near, far end) {
			mine := c.window(near, 64, rw)
			want := pattern(len(mine.mem), 15)
			c.must(far.VWriteTo(want, mine.off, 0))
			c.fence(near, fabric.InitPeer)
			c.same(mine.mem, want)
		}},
		{call: "fence_wait", name: "CONNECTED/INIT_PEER, the peer reads=complete", conn: func(c *check, near, far end) {
			mine, theirs := c.window(near, 16, rw), c.window(far, 16, rw)
			copy(mine.mem, pattern(len(mine.mem), 16))
			c.must(far.ReadFrom(theirs.off, int64(len(mine.mem)), mine.off, 0))
			c.fence(near, fabric.InitPeer)
			c.same(theirs.mem, mine.mem)
		}},
		{call: "fence_wait", name: "CONNECTED/same mark again=ok", conn: func(c *check, near, far end) {
			r := c.window(far, 1, rw)
			c.must(near.VWriteTo([]byte("x"), r.off, 0))
			m := c.mark(near, fabric.InitSelf)
			for range 3 {
				c.want(near.FenceWait(c.ctx, m), ok)
			}
		}},
		{call: "fence_wait", name: "CONNECTED/younger mark first=ok", conn: func(c *check, near, far end) {
			r := c.window(far, 1, rw)
			c.must(near.VWriteTo([]byte("1"), r.off, 0))
			old := c.mark(near, fabric.InitSelf)
			c.must(near.VWriteTo([]byte("2"), r.off, 0))
			young := c.mark(near, fabric.InitSelf)
			c.want(near.FenceWait(c.ctx, young), ok)
			c.same(r.mem[:1], []byte("2"))
			c.want(near.FenceWait(c.ctx, old), ok)
		}},
		{call: "fence_wait", name: "CONNECTED/after more transfers=old mark is good", conn: func(c *check, near, far end) {
			r := c.window(far, 1, rw)
			m := c.mark(near, fabric.InitSelf)
			for range 100 {
				c.must(near.VWriteTo([]byte("x"), r.off, 0))
			}
			c.want(near.FenceWait(c.ctx, m), ok)
		}},
		{call: "fence_wait", name: "CONNECTED/mark of no side=EINVAL", conn: func(c *check, near, _ end) {
			c.want(near.FenceWait(c.ctx, fabric.Mark{}), syscall.EINVAL)
			c.want(near.FenceWait(c.ctx, fabric.Mark{Side: 3}), syscall.EINVAL)
		}},
		{call: "fence_wait", name: "CONNECTED/mark behind transfers that never began=EINVAL", conn: func(c *check, near, _ end) {
			for _, by := range []fabric.Side{fabric.InitSelf, fabric.InitPeer} {
				c.want(near.FenceWait(c.ctx, fabric.Mark{Side: by, Seq: 1 << 40}), syscall.EINVAL)
			}
		}},
		{call: "fence_wait", name: "DISCONNECTED/mark taken before=ECONNRESET", conn: func(c *check, near, far end) {
			m := c.mark(near, fabric.InitSelf)
			c.closeEnd(far)
			c.await(near, fabric.PollHup)
			c.want(near.FenceWait(c.ctx, m), syscall.ECONNRESET)
		}},
		{call: "fence_wait", name: "DISCONNECTED/mark of the peer taken before=ECONNRESET", conn: func(c *check, near, far end) {
			m := c.mark(near, fabric.InitPeer)
			c.closeEnd(far)
			c.await(near, fabric.PollHup)
			c.want(near.FenceWait(c.ctx, m), syscall.ECONNRESET)
		}},
		{call: "fence_wait", name: "CONNECTED/context done, complete=ok", conn: func(c *check, near, _ end) {
			m := c.mark(near, fabric.InitSelf)
			c.want(near.FenceWait(c.ctx, m), ok)
			c.want(near.FenceWait(done(), m), ok)
		}},
	},
)

const both = fabric.SignalLocal | fabric.SignalRemote

// signals is a row about a signal after a large transfer that by begins.
func signals(name string, by fabric.Side, where fabric.Where) row {
	return row{call: "fence_signal", name: "CONNECTED/" + name + "=stored after the transfer", conn: func(c *check, near, far end) {
		l, r := c.window(near, 64, rw), c.window(far, 64, rw)
		const size = 60 * page
		want := pattern(size, 17)
		if by == fabric.InitSelf {
			copy(l.mem, want)
			c.must(near.WriteTo(l.off, size, r.off, 0))
		} else {
			copy(r.mem, want)
			c.must(far.WriteTo(r.off, size, l.off, 0))
		}
		c.must(near.FenceSignal(fabric.Signal{
			By: by, Where: where,
			LocalOffset: l.off + size, LocalValue: 0x1122334455667788,
			RemoteOffset: r.off + size + 8, RemoteValue: 0x99aabbccddeeff00,
		}))
		if where&fabric.SignalRemote != 0 {
			c.spin(r.mem[size+8:], 0x99aabbccddeeff00)
		}
		if where&fabric.SignalLocal != 0 {
			c.spin(l.mem[size:], 0x1122334455667788)
		}
		c.same(l.mem[:size], want)
		c.same(r.mem[:size], want)
		if where&fabric.SignalRemote == 0 {
			c.same(r.mem[size:], make([]byte, 4*page))
		}
		if where&fabric.SignalLocal == 0 {
			c.same(l.mem[size:], make([]byte, 4*page))
		}
	}}
}

// spin polls the word at p until it is v, as programs of SCIF do.
func (c *check) spin(p []byte, v uint64) {
	c.Helper()
	for i := 0; fabric.LoadUint64(p) != v; i++ {
		if i%1024 == 0 && c.ctx.Err() != nil {
			c.Fatalf("the word is %#x, want %#x", fabric.LoadUint64(p), v)
		}
		yield()
	}
}

func signalRows() []row {
	return slices.Concat(
		needsConnection("fence_signal", "", signalAny),
		[]row{
			signals("INIT_SELF, LOCAL", fabric.InitSelf, fabric.SignalLocal),
			signals("INIT_SELF, REMOTE", fabric.InitSelf, fabric.SignalRemote),
			signals("INIT_SELF, LOCAL|REMOTE", fabric.InitSelf, both),
			signals("INIT_PEER, LOCAL", fabric.InitPeer, fabric.SignalLocal),
			signals("INIT_PEER, REMOTE", fabric.InitPeer, fabric.SignalRemote),
			signals("INIT_PEER, LOCAL|REMOTE", fabric.InitPeer, both),
			{call: "fence_signal", name: "CONNECTED/nothing begun=stored", conn: func(c *check, near, far end) {
				r := c.window(far, 1, rw)
				c.must(near.FenceSignal(fabric.Signal{By: fabric.InitSelf, Where: fabric.SignalRemote, RemoteOffset: r.off, RemoteValue: 1}))
				c.spin(r.mem, 1)
			}},
			{call: "fence_signal", name: "CONNECTED/several=in order", conn: func(c *check, near, far end) {
				r := c.window(far, 1, rw)
				for i := range uint64(100) {
					c.must(near.FenceSignal(fabric.Signal{By: fabric.InitSelf, Where: fabric.SignalRemote, RemoteOffset: r.off, RemoteValue: i + 1}))
				}
				var last uint64
				for last != 100 {
					v := fabric.LoadUint64(r.mem)
					if v < last {
						c.Fatalf("the word went from %d to %d", last, v)
					}
					if last = v; c.ctx.Err() != nil {
						c.Fatalf("the word stays %d", v)
					}
					yield()
				}
			}},
			{call: "fence_signal", name: "CONNECTED/offset a multiple of 4 only=all 8 bytes stored", conn: func(c *check, near, far end) {
				r := c.window(far, 1, rw)
				c.must(near.FenceSignal(fabric.Signal{By: fabric.InitSelf, Where: fabric.SignalRemote, RemoteOffset: r.off + 4, RemoteValue: math.MaxUint64}))
				want := append(make([]byte, 4), bytes.Repeat([]byte{0xff}, 8)...)
				for !bytes.Equal(c.pull(near, r.off, 12), want) {
					if c.ctx.Err() != nil {
						c.Fatalf("got %x", c.pull(near, r.off, 12))
					}
				}
			}},
		},
	)
}

// signalArgumentRows are about one wrong argument each, in windows of one page
// at the near end's and the far end's offset 0.
func signalArgumentRows() []row {
	good := fabric.Signal{By: fabric.InitSelf, Where: both, LocalOffset: 0, RemoteOffset: 8}
	try := func(name string, errno syscall.Errno, mine, theirs fabric.Prot, change func(s *fabric.Signal)) row {
		return row{call: "fence_signal", name: "CONNECTED/" + name + "=" + errnoName(errno), conn: func(c *check, near, far end) {
			c.windowAt(near, 1, 0, mine)
			c.windowAt(far, 1, 0, theirs)
			s := good
			change(&s)
			c.want(near.FenceSignal(s), errno)
		}}
	}
	local := func(off int64) func(*fabric.Signal) { return func(s *fabric.Signal) { s.LocalOffset = off } }
	remote := func(off int64) func(*fabric.Signal) { return func(s *fabric.Signal) { s.RemoteOffset = off } }
	by := func(b fabric.Side) func(*fabric.Signal) { return func(s *fabric.Signal) { s.By = b } }
	where := func(w fabric.Where) func(*fabric.Signal) { return func(s *fabric.Signal) { s.Where = w } }
	rows := []row{
		try("good arguments", ok, rw, rw, func(*fabric.Signal) {}),
		try("just enough protection", ok, fabric.ProtWrite, fabric.ProtWrite, func(*fabric.Signal) {}),
		try("no side", syscall.EINVAL, rw, rw, by(0)),
		try("both sides", syscall.EINVAL, rw, rw, by(3)),
		try("RAS_SELF", syscall.EINVAL, rw, rw, by(4)),
		try("RAS_PEER", syscall.EINVAL, rw, rw, by(8)),
		try("nowhere", syscall.EINVAL, rw, rw, where(0)),
		try("unknown place", syscall.EINVAL, rw, rw, where(0x40)),
		try("known and unknown place", syscall.EINVAL, rw, rw, where(both|0x40)),
		try("own offset 2", syscall.EINVAL, rw, rw, local(2)),
		try("peer's offset 2", syscall.EINVAL, rw, rw, remote(2)),
		try("own offset 12", ok, rw, rw, local(12)),
		try("own offset not registered", syscall.ENXIO, rw, rw, local(page)),
		try("peer's offset not registered", syscall.ENXIO, rw, rw, remote(page)),
		try("own offset negative", syscall.ENXIO, rw, rw, local(-8)),
		try("peer's offset negative", syscall.ENXIO, rw, rw, remote(-8)),
		try("own word ends behind the window", syscall.ENXIO, rw, rw, local(page-4)),
		try("peer's word ends behind the window", syscall.ENXIO, rw, rw, remote(page-4)),
		try("peer's offset at the end of the space", syscall.ENXIO, rw, rw, remote(math.MaxInt64-3)),
		try("own window only reads", syscall.EACCES, fabric.ProtRead, rw, func(*fabric.Signal) {}),
		try("peer's window only reads", syscall.EACCES, rw, fabric.ProtRead, func(*fabric.Signal) {}),
		try("LOCAL, peer's offset is garbage", ok, rw, rw, func(s *fabric.Signal) { s.Where, s.RemoteOffset = fabric.SignalLocal, -3 }),
		try("REMOTE, own offset is garbage", ok, rw, rw, func(s *fabric.Signal) { s.Where, s.LocalOffset = fabric.SignalRemote, -3 }),
		try("INIT_PEER, peer's offset not registered", syscall.ENXIO, rw, rw, func(s *fabric.Signal) { s.By, s.RemoteOffset = fabric.InitPeer, page }),
		try("INIT_PEER, own offset not registered", syscall.ENXIO, rw, rw, func(s *fabric.Signal) { s.By, s.LocalOffset = fabric.InitPeer, page }),
	}
	return append(rows, row{call: "fence_signal", name: "CONNECTED/word across two windows=ENXIO", conn: func(c *check, near, far end) {
		c.windowAt(far, 1, 0, rw)
		c.windowAt(far, 1, page, rw)
		c.want(near.FenceSignal(fabric.Signal{By: fabric.InitSelf, Where: fabric.SignalRemote, RemoteOffset: page - 4}), syscall.ENXIO)
	}})
}
