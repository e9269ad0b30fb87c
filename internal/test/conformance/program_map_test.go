package conformance

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/fabricd/fabricd/fabric"
)

// mappingSteps are further steps of a program on one node, or more frequent ones.
var mappingSteps = []programStep{
	{"mmap", 12, isConnected, (*programRun).mmap},
	{"store", 10, "", (*programRun).store},
	{"load", 10, "", (*programRun).load},
	{"munmap", 2, "", (*programRun).munmap},
	{"unregister", 6, isConnected, (*programRun).unregister}, // its mappings stay
}

// A programMap is a mapping of a program, which stays when the window, the
// connection and both ends are gone.
type programMap struct {
	of   *programEnd // the end that maps
	m    *fabric.Mapping
	prot fabric.Prot
	mem  []byte // the same bytes, as the other end has registered them
	in   window // that has them
}

// mmap maps pages in or near one of the peer's windows.
func (r *programRun) mmap(e *programEnd, s step) string {
	if e.ep == nil {
		return "-"
	}
	off, n := e.peer.offset(s.b), int64(s.a>>8%4)*page
	if s.a%8 < 6 {
		off &^= page - 1
	}
	if s.a>>16%2 == 0 && e.peer != nil && len(e.peer.windows) > 0 { // the rest of a window
		w := e.peer.windows[s.b%uint64(len(e.peer.windows))]
		off = w.off + int64(s.b>>8%uint64(len(w.mem)))&^(page-1)
		n = w.off + int64(len(w.mem)) - off
	}
	prot := []fabric.Prot{rw, rw, rw, fabric.ProtRead, fabric.ProtRead, fabric.ProtWrite, 0, 4}[s.c%8]
	m, err := e.ep.Mmap(off, n, prot)
	if err != nil {
		return outcome(err)
	}
	x := &programMap{of: e, m: m, prot: prot}
	for _, w := range e.peer.windows {
		if at := off - w.off; at >= 0 && at+n <= int64(len(w.mem)) {
			x.mem, x.in = w.mem[at:at+n], w
		}
	}
	if len(x.mem) != len(m.Bytes()) {
		r.must("mmap", fmt.Errorf("%d bytes are mapped that are %d of a window", len(m.Bytes()), len(x.mem)))
	}
	r.maps = append(r.maps, x)
	return fmt.Sprintf("ok, %d bytes", n)
}

// mapped chooses a mapping, nil for none. Nothing moves in its memory then.
func (r *programRun) mapped(s step) *programMap {
	if len(r.maps) == 0 {
		return nil
	}
	x := r.maps[s.b%uint64(len(r.maps))]
	r.settle(x.of)
	r.settle(x.of.peer)
	// As behind fence: the race detector learns the order by a call at each end.
	x.of.ep.FenceMark(fabric.InitSelf)
	x.of.peer.ep.FenceMark(fabric.InitSelf)
	return x
}

// store stores through a mapping, which the other side sees at once.
func (r *programRun) store(_ *programEnd, s step) string {
	x := r.mapped(s)
	if x == nil {
		return "-"
	}
	if x.prot&fabric.ProtWrite == 0 {
		return "not allowed"
	}
	at := int(s.a % uint64(len(x.mem)))
	p := pattern(min(len(x.mem)-at, int(s.c%300)), byte(r.n))
	copy(x.m.Bytes()[at:], p)
	if x.open() && !bytes.Equal(x.mem[at:][:len(p)], p) {
		r.must("store", fmt.Errorf("the window's memory has other bytes than were stored through its mapping"))
	}
	if !bytes.Equal(x.m.Bytes()[at:][:len(p)], p) {
		r.must("store", fmt.Errorf("the mapping has other bytes than were stored through it"))
	}
	return x.look()
}

// load stores into the memory of a window, which the mapping shows at once.
func (r *programRun) load(_ *programEnd, s step) string {
	x := r.mapped(s)
	if x == nil {
		return "-"
	}
	if x.prot&fabric.ProtRead == 0 {
		return "not allowed"
	}
	at := int(s.a % uint64(len(x.mem)))
	copy(x.mem[at:], pattern(int(s.c%300), byte(r.n)))
	if x.open() && !bytes.Equal(x.m.Bytes(), x.mem) {
		r.must("load", fmt.Errorf("the mapping shows other bytes than the window's memory has"))
	}
	return x.look()
}

// registered reports whether the window is still there.
func (x *programMap) registered() bool {
	return slices.ContainsFunc(x.of.peer.windows, func(w window) bool { return &w.mem[0] == &x.in.mem[0] })
}

// open reports whether the mapping is the owner's memory: afterwards it is, for an
// application that attaches, memory that the owner no longer uses.
func (x *programMap) open() bool { return x.registered() && x.of.peer.state != isClosed }

// look describes the memory's content, the window and the ends.
func (x *programMap) look() string {
	what, has := "no window", ""
	if x.registered() {
		what = "a window"
	}
	if x.open() {
		has = fmt.Sprintf("%08x, ", crc32.ChecksumIEEE(x.mem))
	}
	return fmt.Sprintf("ok, %s%s of one that is %s, mapped by one that is %s", has, what, x.of.peer.state, x.of.state)
}

func (r *programRun) munmap(_ *programEnd, s step) string {
	x := r.mapped(s)
	if x == nil {
		return "-"
	}
	left := r.maps[:0]
	for _, o := range r.maps {
		if o != x {
			left = append(left, o)
		}
	}
	r.maps = left
	return outcome(x.m.Close()) + ", again: " + outcome(x.m.Close())
}

// unmap takes a last look through every mapping, when all endpoints are closed.
func (r *programRun) unmap() (trace []string) {
	for i, x := range r.maps {
		trace = append(trace, "last store: "+r.store(nil, step{a: uint64(i), b: uint64(i), c: 100}))
		trace = append(trace, "last load: "+r.load(nil, step{a: uint64(i), b: uint64(i), c: 100}))
		r.must("munmap", x.m.Close())
	}
	return trace
}

// TestMappedProgramsOutliveWindows checks the states that a long program reaches.
func TestMappedProgramsOutliveWindows(t *testing.T) {
	here := slices.IndexFunc(stages, func(g stage) bool { return g.maps })
	program := newProgram(rand.New(rand.NewPCG(1, 0)), 20*programLength, slices.Concat(programSteps, mappingSteps))
	trace := strings.Join(traceOf(t, stages[here].start(t), program), "\n")
	for _, of := range []string{"a window of one that is connected, mapped by one that is connected",
		"no window of one that is connected, mapped by one that is connected",
		"of one that is closed, mapped by one that is disconnected", "of one that is disconnected, mapped by one that is closed",
		"of one that is closed, mapped by one that is closed", ": EACCES", "munmap"} {
		if !strings.Contains(trace, of) {
			t.Errorf("a program of %d steps has no %q", len(program), of)
		}
	}
}
