package conformance

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/fabric/fabrictest"
	"github.com/fabricd/fabricd/fence"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/client"
	"github.com/fabricd/fabricd/internal/attach/server"
	"github.com/fabricd/fabricd/internal/hook"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/rma"
)

// directLimit bounds waits for events that should come soon.
const directLimit = 30 * time.Second

// serveDirect serves one node whose applications copy to each other by
// themselves, and through the node if noDirect is set. It returns the socket.
func serveDirect(t *testing.T, c *fabrictest.Cluster, noDirect bool, calls *atomic.Int64) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "fabric")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "s")
	ln, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	server, err := server.NewServer(ctx, server.Options{NoDirect: noDirect, NewSession: func(cred attach.Credentials) (attach.NodeSession, error) {
		return countingSession{hook.Session(c, 0, cred), calls}, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(ln) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return path
}

// A countingSession counts the transfers that reach the node.
type countingSession struct {
	attach.NodeSession
	calls *atomic.Int64
}

func (s countingSession) Open() (attach.NodeEndpoint, error) {
	e, err := s.NodeSession.Open()
	if err != nil {
		return nil, err
	}
	return countingEndpoint{e, s.calls}, nil
}

type countingEndpoint struct {
	attach.NodeEndpoint
	calls *atomic.Int64
}

func (e countingEndpoint) wrap(ep attach.NodeEndpoint, from addr.Addr, err error) (attach.NodeEndpoint, addr.Addr, error) {
	if err != nil {
		return nil, from, err
	}
	return countingEndpoint{ep, e.calls}, from, nil
}

func (e countingEndpoint) Accept(ctx context.Context) (attach.NodeEndpoint, addr.Addr, error) {
	return e.wrap(e.NodeEndpoint.Accept(ctx))
}

func (e countingEndpoint) WriteTo(loff, n, roff int64, flags rma.Flags) error {
	e.calls.Add(1)
	return e.NodeEndpoint.WriteTo(loff, n, roff, flags)
}

func (e countingEndpoint) ReadFrom(loff, n, roff int64, flags rma.Flags) error {
	e.calls.Add(1)
	return e.NodeEndpoint.ReadFrom(loff, n, roff, flags)
}

func (e countingEndpoint) VWriteTo(p []byte, roff int64, flags rma.Flags) error {
	e.calls.Add(1)
	return e.NodeEndpoint.VWriteTo(p, roff, flags)
}

func (e countingEndpoint) VReadFrom(p []byte, roff int64, flags rma.Flags) error {
	e.calls.Add(1)
	return e.NodeEndpoint.VReadFrom(p, roff, flags)
}

func (e countingEndpoint) Atomic(ctx context.Context, a rma.Atomic) (uint64, error) {
	e.calls.Add(1)
	return e.NodeEndpoint.Atomic(ctx, a)
}

// A world is two applications on one node, each with some memory, and a
// connection between them. Its ends are 0 and 1.
type world struct {
	sessions [2]attach.Session
	mem      [2][]byte
	ends     [2]attach.Endpoint
	fresh    [2]attach.Memory // of mem
	calls    atomic.Int64     // transfers that reached the node
}

const worldPages = 6

func newWorld(t *testing.T, c *fabrictest.Cluster, noDirect bool) *world {
	t.Helper()
	w := new(world)
	path := serveDirect(t, c, noDirect, &w.calls)
	ctx, cancel := context.WithTimeout(context.Background(), directLimit)
	defer cancel()
	for i := range w.sessions {
		s, err := client.Dial(ctx, path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		w.sessions[i] = s
	}
	return w
}

// A failer is a *testing.T or a *rapid.T.
type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

// connect makes a fresh connection, with fresh memory at both ends.
func (w *world) connect(t failer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), directLimit)
	defer cancel()
	var errs [4]error
	l, err := w.sessions[1].Open()
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	defer l.Close()
	port, err := l.Bind(0)
	if err == nil {
		err = l.Listen(1)
	}
	if err != nil {
		t.Fatalf("listen: %v", err)
	}
	w.ends[0], errs[0] = w.sessions[0].Open()
	var accept sync.WaitGroup
	accept.Go(func() { w.ends[1], _, errs[1] = l.Accept(ctx) })
	if errs[0] == nil {
		_, errs[2] = w.ends[0].Connect(ctx, addr.Addr{Node: 0, Port: port})
	}
	accept.Wait()
	for _, err := range errs {
		if err != nil {
			t.Fatalf("connect: %v", err)
		}
	}
	for i, s := range w.sessions {
		if w.fresh[i] != nil {
			w.fresh[i].Close()
		}
		if w.fresh[i], err = s.Alloc(worldPages * rma.PageSize); err != nil {
			t.Fatalf("alloc: %v", err)
		}
		w.mem[i] = w.fresh[i].Bytes()
	}
}

func (w *world) close() {
	for _, e := range w.ends {
		e.Close()
	}
}

// A move is one call of a program, with a result that worlds can be compared by.
type move struct {
	name string
	run  func(w *world) (string, error)
}

func noResult(f func(w *world) error) func(w *world) (string, error) {
	return func(w *world) (string, error) { return "", f(w) }
}

// drawer draws the arguments of moves.
type drawer struct{ *rapid.T }

func (d drawer) pick(name string, from ...int64) int64 {
	return rapid.SampledFrom(from).Draw(d.T, name)
}

// offset prefers the few pages in which windows meet, and their edges.
func (d drawer) offset(name string) int64 {
	const first = rma.FirstOffset
	base := d.pick(name, first, first, first, first, first, first, first, 0, 0x10000)
	return base + rma.PageSize*d.pick(name+" page", 0, 0, 0, 1, 1, 2, 3, 4) + d.pick(name+" skew", 0, 0, 0, 8, 64, 1, 60, 4090, 0, -1)
}

func (d drawer) length() int64 {
	return d.pick("length", 1, 4, 8, 8, 64, 65, 100, 100, 100, 4096, 4100, 8192, 12288, 0, -1)
}

func (d drawer) flags() rma.Flags {
	return rma.Flags(d.pick("flags", 0, 0, 4, 8, 12, 1, 2, 0x10, 0x14))
}

func (d drawer) move() move {
	end := int(d.pick("end", 0, 0, 0, 1))
	switch d.pick("call", 0, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 5, 5, 5, 6, 6, 6, 7, 7, 8, 8, 9, 10, 10) {
	case 0:
		return d.register(end)
	case 1:
		return d.unregister(end)
	case 2, 3:
		return d.transfer(end)
	case 4, 5:
		return d.vtransfer(end)
	case 6:
		return d.atomic(end)
	case 7:
		return d.signal(end)
	case 8:
		return move{fmt.Sprintf("mark and wait at %d", end), noResult(func(w *world) error {
			m, err := w.ends[end].FenceMark(fence.InitSelf)
			if err == nil {
				err = w.ends[end].FenceWait(context.Background(), m)
			}
			return err
		})}
	case 10:
		return d.put(end)
	}
	return d.local(end)
}

func (d drawer) register(end int) move {
	page, pages := d.pick("memory page", 0, 1, 2, 3), d.pick("pages", 1, 1, 2, 3)
	off, prot := d.offset("offset"), rma.Prot(d.pick("prot", 3, 3, 3, 1, 2, 0, 4))
	flags := rma.MapFlags(d.pick("map flags", 0, 0x10, 0x10, 0x20))
	page = min(page, worldPages-pages)
	return move{fmt.Sprintf("%d: register pages %d+%d at %#x, prot %d, flags %#x", end, page, pages, off, prot, flags),
		func(w *world) (string, error) {
			got, err := w.ends[end].Register(w.mem[end][page*rma.PageSize:(page+pages)*rma.PageSize], off, prot, flags)
			return fmt.Sprintf("%#x", got), err
		}}
}

func (d drawer) unregister(end int) move {
	off, n := d.offset("offset")&^(rma.PageSize-1), rma.PageSize*d.pick("pages", 1, 2, 3, 6, 0)
	return move{fmt.Sprintf("%d: unregister %#x+%#x", end, off, n), noResult(func(w *world) error {
		return w.ends[end].Unregister(off, n)
	})}
}

func (d drawer) transfer(end int) move {
	loff, n, roff, flags, read := d.offset("local"), d.length(), d.offset("remote"), d.flags(), rapid.Bool().Draw(d.T, "read")
	return move{fmt.Sprintf("%d: transfer %#x+%#x to %#x, flags %#x, read %v", end, loff, n, roff, flags, read),
		noResult(func(w *world) error {
			if read {
				return w.ends[end].ReadFrom(loff, n, roff, flags)
			}
			return w.ends[end].WriteTo(loff, n, roff, flags)
		})}
}

func (d drawer) vtransfer(end int) move {
	n, roff, flags, read := max(d.length(), 0), d.offset("remote"), d.flags(), rapid.Bool().Draw(d.T, "read")
	fill := byte(d.pick("fill", 1, 2, 3, 4, 5))
	return move{fmt.Sprintf("%d: %d bytes %d at %#x, flags %#x, read %v", end, n, fill, roff, flags, read),
		func(w *world) (string, error) {
			p := bytes.Repeat([]byte{fill}, int(n))
			if read {
				err := w.ends[end].VReadFrom(p, roff, flags)
				return string(p), err
			}
			return "", w.ends[end].VWriteTo(p, roff, flags)
		}}
}

func (d drawer) atomic(end int) move {
	a := rma.Atomic{Op: rma.AtomicOp(d.pick("op", 1, 2, 3, 4, 5, 6, 7, 8, 9)), Width: uint8(d.pick("width", 4, 8, 8, 2)),
		Offset: d.offset("remote"), Operand: uint64(d.pick("operand", 1, 7, -1, 1<<33)), Compare: uint64(d.pick("compare", 0, 1))}
	return move{fmt.Sprintf("%d: atomic %+v", end, a), func(w *world) (string, error) {
		old, err := w.ends[end].Atomic(context.Background(), a)
		return fmt.Sprint(old), err
	}}
}

func (d drawer) signal(end int) move {
	s := fence.Signal{By: fence.Side(d.pick("by", 1, 2)), Where: fence.Where(d.pick("where", 0x10, 0x20, 0x30)),
		LocalOffset: d.offset("local"), LocalValue: 0x1122334455667788, RemoteOffset: d.offset("remote"), RemoteValue: 99}
	return move{fmt.Sprintf("%d: signal %+v", end, s), noResult(func(w *world) error { return w.ends[end].FenceSignal(s) })}
}

func (d drawer) put(end int) move {
	n, loff := max(d.length(), 0), d.offset("local")
	p := rma.Put{Offset: d.offset("remote"), Word: d.offset("word"), Value: 0x123456789abcdef}
	if rapid.Bool().Draw(d.T, "window") {
		return move{fmt.Sprintf("%d: put %#x+%#x, %+v", end, loff, n, p), noResult(func(w *world) error {
			return w.ends[end].PutSignal(loff, n, p)
		})}
	}
	return move{fmt.Sprintf("%d: put %d bytes, %+v", end, n, p), noResult(func(w *world) error {
		return w.ends[end].VPutSignal(bytes.Repeat([]byte{6}, int(n)), p)
	})}
}

// local is a store of an application into its own memory.
func (d drawer) local(end int) move {
	at, v := d.pick("at", 0, 8, 4096, 5000, 8191), byte(d.pick("value", 11, 12, 13))
	return move{fmt.Sprintf("%d: store %d at %d", end, v, at), noResult(func(w *world) error {
		w.mem[end][at] = v
		return nil
	})}
}

// TestDirectUseChangesNoResult runs random programs in two worlds: one whose
// applications copy by themselves, one whose node does everything. Every
// result and every byte of memory is the same.
func TestDirectUseChangesNoResult(t *testing.T) {
	c := fabrictest.NewCluster(t, 1)
	direct, through := newWorld(t, c, false), newWorld(t, c, true)
	worlds := []*world{direct, through}
	rapid.Check(t, func(t *rapid.T) {
		for _, w := range worlds {
			w.connect(t)
			defer w.close()
		}
		d := drawer{t}
		var done []string
		both := func(s move) {
			var results [2]string
			var errs [2]error
			for i, w := range worlds {
				results[i], errs[i] = s.run(w)
			}
			done = append(done, fmt.Sprintf("%s: %v", s.name, errs[1]))
			if status.Of(errs[0]) != status.Of(errs[1]) || results[0] != results[1] {
				t.Fatalf("%s\ndirect: %q, %v\nthrough the node: %q, %v", done, results[0], errs[0], results[1], errs[1])
			}
			for end := range 2 {
				if !bytes.Equal(direct.mem[end], through.mem[end]) {
					t.Fatalf("%s\nmemory of end %d differs", done, end)
				}
			}
		}
		for end := range 2 { // something that succeeds
			both(move{fmt.Sprintf("%d: register all", end), func(w *world) (string, error) {
				off, err := w.ends[end].Register(w.mem[end], 0, 3, 0) // a part of the memory would not be direct
				return fmt.Sprintf("%#x", off), err
			}})
		}
		for range rapid.IntRange(10, 80).Draw(t, "moves") {
			both(d.move())
		}
		if rapid.Bool().Draw(t, "the other end closes") {
			for _, w := range worlds {
				w.ends[1].Close()
				awaitHup(w.ends[0])
			}
			for range 5 {
				both(d.move())
			}
		}
	})
	// Many of the programs' transfers are wrong somehow, which is the node's to
	// say, and mappings that do not pay make others go there too.
	t.Logf("transfers in the node: %d with direct use, %d without", direct.calls.Load(), through.calls.Load())
	if direct.calls.Load() >= through.calls.Load() {
		t.Errorf("%d transfers went through the node with direct use, %d without: want fewer", direct.calls.Load(), through.calls.Load())
	}
}

// awaitHup waits until the peer of e has closed.
func awaitHup(e attach.Endpoint) {
	changed := make(chan struct{}, 1)
	defer e.Notify(changed)()
	for e.Ready()&attach.PollHup == 0 {
		<-changed
	}
}

// TestDirectUseEndsWithTheWindow has one application write while the other one
// registers, unregisters and closes. A write that begins after the window is gone does
// not land, and every call returns one of its allowed results.
func TestDirectUseEndsWithTheWindow(t *testing.T) {
	c := fabrictest.NewCluster(t, 1)
	w := newWorld(t, c, false)
	for range 4 {
		w.connect(t)
		w.race(t)
		w.close()
	}
	t.Logf("%d transfers went through the node", w.calls.Load())
}

func (w *world) race(t *testing.T) {
	const at, rounds = 64, 15
	var begun, landed atomic.Uint64
	var stop atomic.Bool
	ctx, cancel := context.WithTimeout(context.Background(), directLimit)
	defer cancel()
	tried := make(chan struct{}, 1) // the writer has ended a write
	await := func(ok func() bool) {
		for !ok() && ctx.Err() == nil {
			select {
			case <-tried:
			case <-ctx.Done():
			}
		}
	}
	word := func(mem []byte) uint64 { w, _ := fabric.Word64At(mem, at); return w.Load() }
	var writer sync.WaitGroup
	writer.Go(func() {
		for !stop.Load() && ctx.Err() == nil {
			v := begun.Add(1)
			_, err := w.ends[0].Atomic(context.Background(), rma.Atomic{Op: rma.AtomicSwap, Width: 8, Offset: at, Operand: v})
			switch status.Of(err) {
			case status.OK:
				landed.Store(v)
			case status.NoAddress:
			case status.Reset:
				return
			default:
				t.Errorf("write %d: %v", v, err)
				return
			}
			select {
			case tried <- struct{}{}:
			default:
			}
		}
	})
	for i := range rounds {
		if _, err := w.ends[1].Register(w.mem[1], 0, 3, rma.MapFixed); err != nil {
			t.Fatal(err)
		}
		was := landed.Load()
		await(func() bool { return landed.Load() >= was+5 })
		if i == rounds-1 {
			w.ends[1].Close()
		} else if err := w.ends[1].Unregister(0, int64(len(w.mem[1]))); err != nil {
			t.Fatal(err)
		}
		last := begun.Load()
		if i < rounds-1 {
			await(func() bool { return begun.Load() >= last+2 })
		} else {
			writer.Wait()
		}
		if got := word(w.mem[1]); got > last {
			t.Errorf("write %d has landed, which began after %d, when the window was gone", got, last)
		}
	}
	stop.Store(true)
	writer.Wait()
	if ctx.Err() != nil {
		t.Error("it took too long")
	}
}
