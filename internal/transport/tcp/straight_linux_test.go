package tcp

import (
	"bytes"
	"io"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"testing"

	"github.com/fabricd/fabricd/internal/transport"
)

// writesOfThread returns how many system calls of this thread have written something.
func writesOfThread(t *testing.T) int {
	text, err := os.ReadFile("/proc/thread-self/io")
	if err != nil {
		t.Fatalf("system calls are not counted: %v", err)
	}
	n, err := strconv.Atoi(string(regexp.MustCompile(`(?m)^syscw: (\d+)$`).FindSubmatch(text)[1]))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// The header of a frame and its payload, which lies in several places, go out in one
// system call, from there.
func TestAFrameIsOneSystemCall(t *testing.T) {
	near, far := rawPair(t)
	if err := near.(interface{ SetWriteBuffer(int) error }).SetWriteBuffer(1 << 20); err != nil {
		t.Fatal(err)
	}
	b := newBulk(&session{company: &company{}}, 1, near, nil, nil)
	window := random(1, 128<<10)
	parts := []transport.Part{
		{Head: []byte("first"), Payload: window[:50<<10]},
		{Head: []byte("second"), Payload: window[50<<10 : 100<<10]},
	}
	g := newGather(parts, nil)
	n := g.left
	s := newSheaf(header{kind: typeData, length: uint32(n), lane: 1, value: 7}, &g)
	defer s.free()
	for i, p := range []*byte{&window[0], &window[50<<10]} {
		if &s.slices[2*i+1][0] != p {
			t.Errorf("part %d is written from a copy", i)
		}
	}
	done := make(chan []byte)
	go func() {
		p := make([]byte, headerLen+n)
		_, _ = io.ReadFull(far, p)
		done <- p
	}()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := writesOfThread(t)
	rest, err := b.write(s.slices)
	calls := writesOfThread(t) - before
	if err != nil || rest != nil {
		t.Fatalf("%d bytes are left: %v", len(rest), err)
	}
	if calls != 1 {
		t.Errorf("%d system calls have written a frame of %d bytes in %d places, want 1", calls, n, len(s.slices))
	}
	want := header{kind: typeData, length: uint32(n), lane: 1, value: 7}.appendTo(nil)
	for _, p := range parts {
		want = append(append(want, p.Head...), p.Payload...)
	}
	if !bytes.Equal(<-done, want) {
		t.Error("other bytes have come")
	}
}
