package client

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fence"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/server"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/rma"
)

const everywhere = fence.SignalLocal | fence.SignalRemote

// wordOf returns the word at off of memory.
func wordOf(p []byte, off int) uint64 { return binary.NativeEndian.Uint64(p[off:]) }

func TestFencesDoWithoutTheNode(t *testing.T) {
	p := newDirectPair(t, nil)
	p.warm(t)
	before := p.asked()
	check(t, "a write", p.a.WriteTo(p.offA, 8, p.offB, 0), status.OK)
	m, err := p.a.FenceMark(fence.InitSelf)
	check(t, "FenceMark", err, status.OK)
	for range 3 { // marks are not used up
		check(t, "FenceWait", p.a.FenceWait(t.Context(), m), status.OK)
	}
	done, cancel := context.WithCancel(t.Context())
	cancel()
	check(t, "FenceWait, context done", p.a.FenceWait(done, m), status.OK)
	for _, off := range []int64{8, 12} { // aligned, and as SCIF allows too
		s := fence.Signal{By: fence.InitSelf, Where: everywhere,
			LocalOffset: p.offA + off, LocalValue: 0x1122334455667788, RemoteOffset: p.offB + off, RemoteValue: 0x99aabbccddeeff00}
		check(t, "FenceSignal", p.a.FenceSignal(s), status.OK)
		if wordOf(p.memA, int(off)) != s.LocalValue || wordOf(p.memB, int(off)) != s.RemoteValue {
			t.Errorf("signal at %d: words are %#x and %#x", off, wordOf(p.memA, int(off)), wordOf(p.memB, int(off)))
		}
	}
	local := fence.Signal{By: fence.InitSelf, Where: fence.SignalLocal, LocalOffset: p.offA, LocalValue: 3, RemoteOffset: -1}
	check(t, "FenceSignal here", p.a.FenceSignal(local), status.OK)
	if wordOf(p.memA, 0) != 3 {
		t.Errorf("the own word is %d, want 3", wordOf(p.memA, 0))
	}
	if got := p.asked() - before; got != 0 {
		t.Errorf("the node was asked %d times, want never", got)
	}
}

// Both places of a signal are looked at before anything is stored.
func TestWrongSignalsAreTheNodesToJudge(t *testing.T) {
	p := newDirectPair(t, nil)
	p.warm(t)
	_, theirs := p.window(t, p.cb, p.b, 1, rma.ProtRead)
	_, mine := p.window(t, p.ca, p.a, 1, rma.ProtRead)
	good := fence.Signal{By: fence.InitSelf, Where: everywhere, LocalOffset: p.offA, LocalValue: 7, RemoteOffset: p.offB, RemoteValue: 7}
	for name, edit := range map[string]func(s *fence.Signal){
		"no side":                  func(s *fence.Signal) { s.By = 0 },
		"the peer's operations":    func(s *fence.Signal) { s.By = fence.InitPeer },
		"nowhere":                  func(s *fence.Signal) { s.Where = 0 },
		"an odd place":             func(s *fence.Signal) { s.RemoteOffset += 2 },
		"own window only reads":    func(s *fence.Signal) { s.LocalOffset = mine },
		"peer's window only reads": func(s *fence.Signal) { s.RemoteOffset = theirs },
		"behind the own window":    func(s *fence.Signal) { s.LocalOffset = mine + pageSize },
		"behind the peer's window": func(s *fence.Signal) { s.RemoteOffset = theirs + pageSize },
		"own word at the end":      func(s *fence.Signal) { s.LocalOffset = math.MaxInt64 - 7 },
		"peer's word at the end":   func(s *fence.Signal) { s.RemoteOffset = math.MaxInt64 - 7 },
		"own word over the end":    func(s *fence.Signal) { s.LocalOffset = mine - 4 },
		"peer's word over the end": func(s *fence.Signal) { s.RemoteOffset = theirs - 4 },
	} {
		s := good
		edit(&s)
		if directOf(p.a).signal(s) {
			t.Errorf("%s: stored directly", name)
		}
	}
	if wordOf(p.memA, 0) != 0 || wordOf(p.memB, 0) != 0 {
		t.Errorf("words are %d and %d, want nothing stored", wordOf(p.memA, 0), wordOf(p.memB, 0))
	}
	check(t, "the good one", p.a.FenceSignal(good), status.OK)
}

// A fence reports operations in the node, until the node has reported their completion.
func TestFencesTellOfWhatTheNodeDoes(t *testing.T) {
	p := newDirectPair(t, nil)
	p.warm(t)
	d := directOf(p.a)
	asks := func(what string, want int, call func() error) {
		t.Helper()
		before := p.asked()
		check(t, what, call(), status.OK)
		if got := p.asked() - before; got != want {
			t.Errorf("%s: the node was asked %d times, want %d", what, got, want)
		}
	}
	var m fence.Mark
	mark := func() (err error) { m, err = p.a.FenceMark(fence.InitSelf); return err }
	wait := func() error { return p.a.FenceWait(t.Context(), m) }
	signal := func() error {
		return p.a.FenceSignal(fence.Signal{By: fence.InitSelf, Where: fence.SignalRemote, RemoteOffset: p.offB, RemoteValue: 1})
	}
	local := func() error {
		return p.a.FenceSignal(fence.Signal{By: fence.InitSelf, Where: fence.SignalLocal, LocalOffset: p.offA})
	}
	asks("a mark with nothing in the node", 0, mark)
	early := m
	d.note()
	asks("a mark of an operation that was posted", 1, mark)
	asks("a mark from before", 0, func() error { return p.a.FenceWait(t.Context(), early) })
	asks("a signal before it has ended", 1, local)
	asks("the wait for it", 1, wait)
	asks("a mark behind it", 0, mark)
	asks("a signal behind it", 0, local)
	d.note()
	asks("a signal there, which waits", 2, signal)
	asks("the next one", 0, signal)
	// An operation that failed may have begun.
	d.through(false, func() error { return status.Fault })
	asks("a signal behind one that failed", 1, signal)
	asks("a signal behind it", 1, local)
	asks("a mark behind it", 1, mark)
	asks("the wait", 1, wait)
	asks("a signal when all has ended well", 0, signal)
	// One is in progress in the node.
	d.through(false, func() error {
		asks("a mark beside a call", 1, mark)
		asks("a signal beside it", 1, local)
		return nil
	})
	asks("a mark behind the call", 0, mark)
	asks("a mark of the peer's operations", 1, func() error { _, err := p.a.FenceMark(fence.InitPeer); return err })
}

// A mark covers a copy of another goroutine that has begun.
func TestFencesWaitForCopiesUnderWay(t *testing.T) {
	p := newDirectPair(t, nil)
	p.warm(t)
	d := directOf(p.a)
	d.mu.Lock() // as a copy does
	var ended atomic.Bool
	done := make(chan error, 2)
	fences := []func() error{
		func() error { _, err := p.a.FenceMark(fence.InitSelf); return err },
		func() error {
			return p.a.FenceSignal(fence.Signal{By: fence.InitSelf, Where: fence.SignalLocal, LocalOffset: p.offA})
		},
	}
	for _, call := range fences {
		go func() {
			err := call()
			if !ended.Load() {
				err = errors.New("a fence did not wait for a copy")
			}
			done <- err
		}()
	}
	time.Sleep(5 * time.Millisecond) // the fences that do not wait are wrong, and these are sure to be
	ended.Store(true)
	d.mu.Unlock()
	for range fences {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestFencesEndWithTheConnection(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(p *directPair)
		want status.Code
	}{
		"the peer closes":        {func(p *directPair) { p.b.Close() }, status.Reset},
		"the peer detaches":      {func(p *directPair) { p.cb.Close() }, status.Reset},
		"the node is lost":       {func(p *directPair) { p.s.node.lose() }, status.Reset},
		"the endpoint is closed": {func(p *directPair) { p.a.Close() }, status.BadFD},
		"the node ends":          {func(p *directPair) { p.s.end(); <-p.ca.Done() }, status.NoDevice},
	} {
		t.Run(name, func(t *testing.T) {
			p := newDirectPair(t, nil)
			p.warm(t)
			m, err := p.a.FenceMark(fence.InitSelf)
			check(t, "FenceMark", err, status.OK)
			c.end(p)
			if c.want == status.Reset {
				eventually(t, "the connection has ended", func() bool { return p.a.Ready()&attach.PollHup != 0 })
			}
			_, err = p.a.FenceMark(fence.InitSelf)
			check(t, "FenceMark", err, c.want)
			check(t, "FenceWait", p.a.FenceWait(t.Context(), m), c.want)
			for _, where := range []fence.Where{fence.SignalLocal, fence.SignalRemote} {
				s := fence.Signal{By: fence.InitSelf, Where: where, LocalOffset: p.offA, RemoteOffset: p.offB}
				check(t, "FenceSignal", p.a.FenceSignal(s), c.want)
			}
		})
	}
}

// When the peer takes a window away, the node is asked until another one is known.
func TestFencesAfterAnInvalidation(t *testing.T) {
	p := newDirectPair(t, nil)
	_, other := p.window(t, p.cb, p.b, 1, readWrite)
	for range fewUses + 1 { // so that the mapping has paid
		p.warm(t)
	}
	check(t, "Unregister", p.b.Unregister(other, pageSize), status.OK)
	before := p.asked()
	_, err := p.a.FenceMark(fence.InitSelf)
	check(t, "FenceMark", err, status.OK)
	if p.asked() == before {
		t.Error("a mark is made up although the connection may have ended")
	}
	p.warm(t)
	before = p.asked()
	_, err = p.a.FenceMark(fence.InitSelf)
	check(t, "FenceMark", err, status.OK)
	if p.asked() != before {
		t.Error("the node was asked for a mark")
	}
}

func TestPutsDoWithoutTheNode(t *testing.T) {
	p := newDirectPair(t, nil)
	p.warm(t)
	_, other := p.window(t, p.cb, p.b, 1, readWrite)
	_, readOnly := p.window(t, p.cb, p.b, 1, rma.ProtRead)
	put := rma.Put{Offset: p.offB + 100, Word: other + 16, Value: 3}
	copy(p.memA, "written by a")
	check(t, "PutSignal, whose word is asked for", p.a.PutSignal(p.offA, 12, put), status.OK)
	before := p.asked()
	put.Word, put.Value = p.offB+16, 4
	check(t, "PutSignal", p.a.PutSignal(p.offA, 12, put), status.OK)
	if string(p.memB[100:112]) != "written by a" || wordOf(p.memB, 16) != 4 {
		t.Errorf("b's memory has %q, word %d", p.memB[100:112], wordOf(p.memB, 16))
	}
	put.Offset, put.Value = p.offB+200, 5
	check(t, "VPutSignal", p.a.VPutSignal([]byte("and this"), put), status.OK)
	if string(p.memB[200:208]) != "and this" || wordOf(p.memB, 16) != 5 {
		t.Errorf("b's memory has %q, word %d", p.memB[200:208], wordOf(p.memB, 16))
	}
	if got := p.asked() - before; got != 0 {
		t.Errorf("the node was asked %d times, want never", got)
	}
	clear(p.memB)
	for name, edit := range map[string]func(x *rma.Put){
		"an odd word":               func(x *rma.Put) { x.Word++ },
		"a word that no offset has": func(x *rma.Put) { x.Word = math.MaxInt64 - 7 },
		"a negative word":           func(x *rma.Put) { x.Word = -8 },
		"a word of 4":               func(x *rma.Put) { x.Word += 4 },
		"a word nowhere":            func(x *rma.Put) { x.Word = readOnly + pageSize },
		"a word that only reads":    func(x *rma.Put) { x.Word = readOnly },
		"bytes over the end":        func(x *rma.Put) { x.Offset = readOnly + pageSize - 1 },
		"bytes to what only reads":  func(x *rma.Put) { x.Offset = readOnly },
		"one with more behind it":   func(x *rma.Put) { x.More = 1 },
	} {
		x := put
		edit(&x)
		d := directOf(p.a)
		plain := &transfer{write: true, plain: true, memory: []byte("no"), n: 2}
		if d.put(plain, x) || d.put(&transfer{write: true, local: p.offA, n: 2}, x) {
			t.Errorf("%s: done directly", name)
		}
	}
	if directOf(p.a).put(&transfer{write: true, local: p.offA + 4*pageSize, n: 2}, put) {
		t.Error("bytes from nowhere: done directly")
	}
	for i, b := range p.memB {
		if b != 0 {
			t.Fatalf("byte %d was written", i)
		}
	}
}

// BenchmarkFences measures fences between two applications of one node, direct and through the
// node.
func BenchmarkFences(b *testing.B) {
	for name, noDirect := range map[string]bool{"direct": false, "node": true} {
		p := newDirectPair(b, func(o *server.Options) { o.NoDirect = noDirect })
		p.warm(b)
		s := fence.Signal{By: fence.InitSelf, Where: fence.SignalRemote, RemoteOffset: p.offB, RemoteValue: 1}
		buf := make([]byte, 64)
		for _, c := range []struct {
			name string
			call func() error
		}{
			{"mark and wait", func() error {
				m, err := p.a.FenceMark(fence.InitSelf)
				if err != nil {
					return err
				}
				return p.a.FenceWait(context.Background(), m)
			}},
			{"signal", func() error { return p.a.FenceSignal(s) }},
			{"put with signal", func() error {
				return p.a.VPutSignal(buf, rma.Put{Offset: p.offB + 64, Word: p.offB, Value: 1})
			}},
		} {
			b.Run(name+"/"+c.name, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if err := c.call(); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
