package client

import (
	"context"
	"fmt"
	"os"
	"slices"
	"syscall"
	"testing"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/internal/attach/server"
	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/rma"
)

// asUsers lets the sessions that attach be of these users, in order.
func asUsers(uids ...uint32) func(*server.Options) {
	return func(o *server.Options) {
		o.Authorize = func(c attach.Credentials) (attach.Credentials, error) {
			c.UID, uids = uids[0], uids[1:]
			return c, nil
		}
	}
}

// windowOf asks the node for the peer's window at off, and returns the descriptor that
// comes with the answer.
func windowOf(t *testing.T, e attach.Endpoint, off int64) (proto.WindowBody, *os.File) {
	t.Helper()
	var out proto.WindowBody
	f, err := e.(*endpoint).request(t.Context(), request{op: proto.OpWindow, body: &proto.Offset{Off: off}, ended: status.Reset}, &out)
	check(t, "WINDOW", err, status.OK)
	if f != nil {
		t.Cleanup(func() { f.Close() })
	}
	return out, f
}

// TestOthersGetAWindowAndNothingElse: a descriptor that reaches more than the window is
// not handed out; the node copies.
func TestOthersGetAWindowAndNothingElse(t *testing.T) {
	p := newDirectPair(t, nil)
	mem := must(p.cb.Alloc(4 * pageSize))(t).Bytes()
	part := must(p.b.Register(mem[pageSize:2*pageSize], 0, readWrite, 0))(t)
	if w, f := windowOf(t, p.a, part); f != nil || w.Prot != 0 || w.Off != part || w.Len != pageSize {
		t.Errorf("a window of 1 page of 4 is answered with %+v, descriptor %v", w, f)
	}
	_, err := p.a.Mmap(part, pageSize, readWrite)
	check(t, "Mmap of a part", err, status.NotSupp)
	check(t, "the write that asks for the window", p.a.VWriteTo([]byte{9}, part+5, 0), status.OK)
	before := p.asked()
	for i := range byte(3) {
		check(t, "a write", p.a.VWriteTo([]byte{i + 1}, part+5, 0), status.OK)
		if mem[pageSize+5] != i+1 || mem[5] != 0 {
			t.Errorf("the memory has %d, want %d", mem[pageSize+5], i+1)
		}
	}
	if got := p.asked() - before; got != 3 {
		t.Errorf("the node was asked %d times, want for 3 writes and no window again", got)
	}
	whole := must(p.b.Register(mem, 0, readWrite, 0))(t)
	w, f := windowOf(t, p.a, whole)
	if f == nil || w.Size != 4*pageSize {
		t.Fatalf("a window of all the memory is answered with %+v", w)
	}
	if info, err := f.Stat(); err != nil || info.Size() != w.Len {
		t.Errorf("the descriptor reaches %d bytes, %v, the window has %d", info.Size(), err, w.Len)
	}
	m := must(p.a.Mmap(whole+pageSize, pageSize, readWrite))(t)
	if got := m.Bytes()[5]; got != 3 {
		t.Errorf("the mapping has %d, want 3", got)
	}
	check(t, "Close", m.Close(), status.OK)
	check(t, "a write", p.a.VWriteTo([]byte{7}, part+5, 0), status.OK)
	if mem[pageSize+5] != 7 {
		t.Error("the window of a part does not work beside one of all")
	}
}

// reopened tries to write to the memory of f, in all ways that a process of the owner's user has.
// It returns the successful ones.
func reopened(t *testing.T, f *os.File) (through []string) {
	t.Helper()
	path := fmt.Sprintf("/proc/self/fd/%d", f.Fd())
	_ = os.Chmod(path, 0o666)
	g := f
	if rw, err := os.OpenFile(path, os.O_RDWR, 0); err == nil {
		defer rw.Close()
		g = rw
	}
	try := func(what string, err error) {
		if err == nil {
			through = append(through, what)
		}
	}
	_, err := g.WriteAt([]byte{0xEE}, 0)
	try("write", err)
	b, err := syscall.Mmap(int(g.Fd()), 0, pageSize, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err == nil {
		syscall.Munmap(b)
	}
	try("map", err)
	b, err = syscall.Mmap(int(g.Fd()), 0, pageSize, syscall.PROT_READ, syscall.MAP_SHARED)
	if err == nil {
		err = syscall.Mprotect(b, syscall.PROT_READ|syscall.PROT_WRITE)
		syscall.Munmap(b)
	}
	try("mprotect", err)
	try("punch a hole", syscall.Fallocate(int(g.Fd()), 3, 0, pageSize))
	return through
}

// TestReadOnlyHoldsAgainstTheSameUser: a process with a read-only descriptor cannot get a writable
// one from it; the owner, the node and a later writable window still work.
func TestReadOnlyHoldsAgainstTheSameUser(t *testing.T) {
	p := newDirectPair(t, nil)
	mem, off := p.window(t, p.cb, p.b, 1, rma.ProtRead)
	mem[0] = 1
	_, f := windowOf(t, p.a, off)
	if f == nil {
		t.Fatal("a window for reading is not handed out")
	}
	if through := reopened(t, f); through != nil {
		t.Errorf("these got through: %q", through)
	}
	mem[0] = 2
	got := []byte{0}
	check(t, "a read", p.a.VReadFrom(got, off, 0), status.OK)
	if got[0] != 2 {
		t.Errorf("%d was read, want what the owner has written", got[0])
	}
	writable := must(p.b.Register(mem, 0, readWrite, 0))(t)
	if w, f := windowOf(t, p.a, writable); f != nil || w.Prot != 0 {
		t.Error("memory that others have for reading is handed out for writing")
	}
	check(t, "a write", p.a.VWriteTo([]byte{3}, writable, 0), status.OK)
	if mem[0] != 3 {
		t.Errorf("the memory has %d, want what the node has written", mem[0])
	}
	check(t, "a write to the other window", p.a.VWriteTo([]byte{4}, off, 0), status.Access)
}

// TestMemoryWithWindowsToWrite is not handed out for reading: nothing could keep its
// reader from writing.
func TestMemoryWithWindowsToWrite(t *testing.T) {
	p := newDirectPair(t, nil)
	mem, writable := p.window(t, p.cb, p.b, 1, readWrite)
	readable := must(p.b.Register(mem, 0, rma.ProtRead, 0))(t)
	if w, f := windowOf(t, p.a, readable); f != nil || w.Prot != 0 {
		t.Errorf("the window for reading is answered with %+v", w)
	}
	_, err := p.a.Mmap(readable, pageSize, rma.ProtRead)
	check(t, "Mmap for reading", err, status.NotSupp)
	mem[7] = 9
	got := []byte{0}
	check(t, "a read", p.a.VReadFrom(got, readable+7, 0), status.OK)
	if got[0] != 9 {
		t.Errorf("%d was read", got[0])
	}
	_, f := windowOf(t, p.a, writable)
	if f == nil {
		t.Fatal("the window for writing is not handed out")
	}
	if err := shm.SealWriting(f); err == nil {
		t.Error("who may write keeps others from it")
	}
	if through := reopened(t, f); !slices.Contains(through, "map") {
		t.Errorf("only these got through: %q", through)
	}
}

// TestWindowsOfAnotherUser go through the node, unless the owner shares them.
func TestWindowsOfAnotherUser(t *testing.T) {
	p := newDirectPair(t, asUsers(7, 8))
	p.memB[0] = 5
	_, err := p.a.Mmap(p.offB, pageSize, rma.ProtRead)
	check(t, "Mmap", err, status.NotSupp)
	check(t, "the write that asks for the window", p.a.VWriteTo([]byte{5}, p.offB, 0), status.OK)
	before := p.asked()
	got := []byte{0}
	check(t, "a read", p.a.VReadFrom(got, p.offB, 0), status.OK)
	check(t, "a write", p.a.VWriteTo([]byte{6}, p.offB+1, 0), status.OK)
	if got[0] != 5 || p.memB[1] != 6 || known(p.a) != 0 || p.asked() != before+2 {
		t.Errorf("%d was read, %d written, the node asked %d times, %d windows are mapped", got[0], p.memB[1], p.asked()-before, known(p.a))
	}
	check(t, "SHARE", p.cb.(*session).shareWindows(t.Context()), status.OK)
	m := must(p.a.Mmap(p.offB, pageSize, readWrite))(t)
	defer m.Close()
	m.Bytes()[2] = 4
	if p.memB[2] != 4 {
		t.Error("the mapping is other memory")
	}
	// The other way round nothing was said.
	_, err = p.b.Mmap(p.offA, pageSize, rma.ProtRead)
	check(t, "Mmap of an owner that does not share", err, status.NotSupp)
}

// TestWhatAPeerKeepsIsNoMemoryOfTheOwner: after Unregister, Close of the endpoint and
// Close of the session.
func TestWhatAPeerKeepsIsNoMemoryOfTheOwner(t *testing.T) {
	for name, end := range map[string]func(p *directPair) error{
		"Unregister":                  func(p *directPair) error { return p.b.Unregister(p.offB, 4*pageSize) },
		"Close of the endpoint":       func(p *directPair) error { return p.b.Close() },
		"Close of the session":        func(p *directPair) error { return p.cb.Close() },
		"Close when the node is gone": func(p *directPair) error { p.s.end(); <-p.cb.Done(); return p.b.Close() },
		"Close after the peer's":      func(p *directPair) error { p.a.Close(); return p.b.Close() },
		"Unregister with the connection": func(p *directPair) error {
			p.s.node.lose()
			p.b.Unregister(p.offB, 4*pageSize)
			return p.b.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newDirectPair(t, nil)
			m := must(p.a.Mmap(p.offB, 4*pageSize, readWrite))(t)
			_, f := windowOf(t, p.a, p.offB)
			copy(p.memB, "before")
			if string(m.Bytes()[:6]) != "before" {
				t.Fatal("the mapping is other memory")
			}
			check(t, "the end", end(p), status.OK)
			if string(p.memB[:6]) != "before" {
				t.Errorf("the owner has %q", p.memB[:6])
			}
			copy(p.memB, "secret")
			copy(m.Bytes()[10:], "scribble") // it is still there
			if got := m.Bytes()[:6]; string(got) != "before" {
				t.Errorf("the peer sees %q", got)
			}
			if p.memB[10] != 0 {
				t.Errorf("the peer has written %q", p.memB[10:18])
			}
			if f != nil {
				var b [6]byte
				f.ReadAt(b[:], 0)
				if string(b[:]) != "before" {
					t.Errorf("the peer's descriptor reads %q", b)
				}
			}
		})
	}
}

// TestMovedMemoryIsRegisteredAgain, and is as shared as before.
func TestMovedMemoryIsRegisteredAgain(t *testing.T) {
	p := newDirectPair(t, nil)
	for i := range byte(3) {
		m := must(p.a.Mmap(p.offB, pageSize, readWrite))(t)
		check(t, "Unregister", p.b.Unregister(p.offB, 4*pageSize), status.OK)
		check(t, "Munmap", m.Close(), status.OK)
		must(p.b.Register(p.memB, p.offB, readWrite, rma.MapFixed))(t)
		check(t, "a write", p.a.VWriteTo([]byte{i + 1}, p.offB, 0), status.OK)
		if p.memB[0] != i+1 {
			t.Fatalf("the window has %d, want %d", p.memB[0], i+1)
		}
		copy(p.memB[8:], "staged")
		check(t, "a write from moved memory", p.b.VWriteTo(p.memB[8:14], p.offA, 0), status.OK)
		if string(p.memA[:6]) != "staged" {
			t.Fatalf("a has %q", p.memA[:6])
		}
	}
}

// TestMemoryWithAWindowLeftIsNotMoved: the window is shared with the node.
func TestMemoryWithAWindowLeftIsNotMoved(t *testing.T) {
	p := newDirectPair(t, nil)
	p.warm(t)
	other := must(p.b.Register(p.memB, 0, readWrite, 0))(t)
	check(t, "Unregister", p.b.Unregister(p.offB, 4*pageSize), status.OK)
	check(t, "a write", p.a.VWriteTo([]byte{8}, other+1, 0), status.OK)
	if p.memB[1] != 8 {
		t.Error("the window that is left is on other memory")
	}
	had := must(p.a.Mmap(other, pageSize, readWrite))(t)
	defer had.Close()
	check(t, "Unregister", p.b.Unregister(other, 4*pageSize), status.OK)
	if p.memB[1] = 9; had.Bytes()[1] == 9 {
		t.Error("the last window is gone, and the memory is still shared")
	}
}

// TestMemoryThatNobodyHasStays: only memory that was handed out is copied.
func TestMemoryThatNobodyHasStays(t *testing.T) {
	p := newDirectPair(t, nil)
	before := p.cb.(*session).memory.list[0].region.File()
	check(t, "Unregister", p.b.Unregister(p.offB, 4*pageSize), status.OK)
	if p.cb.(*session).memory.list[0].region.File() != before {
		t.Error("the memory was moved")
	}
}

// TestMovesBesideRegistrations: for any order of concurrent calls, a window is on the memory that
// its owner sees.
func TestMovesBesideRegistrations(t *testing.T) {
	p := newDirectPair(t, nil)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	mem := must(p.cb.Alloc(pageSize))(t).Bytes()
	done := make(chan error, 2)
	for i := range 2 {
		go func() {
			done <- func() error {
				for n := range 200 {
					off, err := p.b.Register(mem, 0, readWrite, 0)
					if err != nil {
						return err
					}
					at, v := int64(8*i), byte(n)
					if err := p.a.VWriteTo([]byte{v}, off+at, 0); err != nil {
						return err
					}
					// The other goroutine moves the memory concurrently: bytes written here are
					// read through the window, before it is gone.
					got := []byte{0}
					if err := p.a.VReadFrom(got, off+at, 0); err != nil || got[0] != v {
						return fmt.Errorf("%d was read, %d written: %w", got[0], v, err)
					}
					if err := p.b.Unregister(off, pageSize); err != nil {
						return err
					}
				}
				return nil
			}()
		}()
	}
	for range 2 {
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-ctx.Done():
			t.Fatal("it does not end")
		}
	}
	off := must(p.b.Register(mem, 0, readWrite, 0))(t)
	check(t, "a write", p.a.VWriteTo([]byte{77}, off+16, 0), status.OK)
	if mem[16] != 77 {
		t.Errorf("the owner sees %d", mem[16])
	}
}
