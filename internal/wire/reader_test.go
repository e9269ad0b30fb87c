package wire

import (
	"bytes"
	"errors"
	"io"
	"os"
	"reflect"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"
)

// chunks is a stream that delivers its bytes in the given pieces; after piece
// stall it fails once with a deadline.
type chunks struct {
	b     []byte
	sizes []int // used in turn; none: as much as fits
	stall int   // 0: never
	reads int
	last  []byte // the memory of the last Read
}

func (c *chunks) Read(p []byte) (int, error) {
	c.reads++
	if c.stall > 0 && c.reads == c.stall {
		return 0, os.ErrDeadlineExceeded
	}
	if len(c.b) == 0 {
		return 0, io.EOF
	}
	n := min(len(p), len(c.b))
	if len(c.sizes) > 0 {
		n = min(n, c.sizes[c.reads%len(c.sizes)])
	}
	copy(p, c.b[:n])
	c.last = p[:n]
	c.b = c.b[n:]
	return n, nil
}

func payloadOf(n uint32) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(i * 7)
	}
	return p
}

func TestReaderReadsWhatWasWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		frames := rapid.SliceOfN(anyFrame(), 0, 12).Draw(t, "frames")
		tail := rapid.SliceOfN(rapid.Byte(), 0, 6000).Draw(t, "tail")
		var b []byte
		for i, f := range frames {
			if w, ok := f.(Write); ok {
				w.Length = w.Length%9000 + 1
				frames[i] = w
				b = append(w.AppendTo(b), payloadOf(w.Length)...)
				continue
			}
			b = f.AppendTo(b)
		}
		c := &chunks{
			b:     append(b, tail...),
			sizes: rapid.SliceOfN(rapid.IntRange(1, 5000), 0, 5).Draw(t, "sizes"),
			stall: rapid.IntRange(0, 10).Draw(t, "stall"),
		}
		readBack(t, NewReader(c), frames, tail)
	})
}

// readBack reads frames and then the raw tail, and continues after a deadline.
func readBack(t *rapid.T, r *Reader, frames []frame, tail []byte) {
	for _, want := range frames {
		h, body, err := r.Next()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			h, body, err = r.Next()
		}
		if err != nil {
			t.Fatalf("Next: %v, want %+v", err, want)
		}
		if h.Type == TypeHeartbeat || h.Type == TypeHeartbeatAck {
			if enc := want.AppendTo(nil); !bytes.Equal(enc[HeaderLen:], body) {
				t.Fatalf("body %x, want that of %+v", body, want)
			}
			continue
		}
		got, err := parsers[h.Type](h.Flags, body)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("Next = %+v, %v; want %+v", got, err, want)
		}
		if w, ok := got.(Write); ok {
			readPayload(t, r, w.Length)
		}
	}
	var got []byte
	for p := make([]byte, 700); ; {
		n, err := r.Read(p)
		got = append(got, p[:n]...)
		if err == io.EOF {
			break
		}
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(got, tail) {
		t.Fatalf("raw bytes after the frames: %d of them, want %d", len(got), len(tail))
	}
}

func readPayload(t *rapid.T, r *Reader, n uint32) {
	want := payloadOf(n)
	if rapid.Bool().Draw(t, "discard") {
		skip := rapid.Uint32Range(0, n).Draw(t, "skip")
		err := r.Discard(int(skip))
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Skip("a payload is not resumed")
		}
		if err != nil {
			t.Fatalf("Discard(%d): %v", skip, err)
		}
		want = want[skip:]
	}
	got := make([]byte, len(want))
	err := r.Payload(got)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Skip("a payload is not resumed")
	}
	if err != nil || !bytes.Equal(got, want) {
		t.Fatalf("Payload of %d bytes: %v", len(want), err)
	}
}

func TestStreamThatEnds(t *testing.T) {
	whole := append(Write{Op: 1, Length: 5}.AppendTo(nil), "hello"...)
	frameLen := len(whole) - 5
	for n := range whole {
		r := NewReader(iotest.OneByteReader(bytes.NewReader(whole[:n])))
		_, _, err := r.Next()
		switch {
		case n == 0 && err != io.EOF:
			t.Errorf("stream without a frame: %v, want io.EOF", err)
		case 0 < n && n < frameLen && err != io.ErrUnexpectedEOF:
			t.Errorf("stream with %d bytes of a frame: %v, want io.ErrUnexpectedEOF", n, err)
		case n >= frameLen && err != nil:
			t.Errorf("stream with a frame: %v", err)
		case n >= frameLen:
			if err := r.Payload(make([]byte, 5)); err != io.ErrUnexpectedEOF {
				t.Errorf("stream with %d bytes of payload: %v, want io.ErrUnexpectedEOF", n-frameLen, err)
			}
		}
		r = NewReader(bytes.NewReader(whole[:n]))
		if _, _, err := r.Next(); err == nil {
			if err := r.Discard(5); err != io.ErrUnexpectedEOF {
				t.Errorf("Discard with %d bytes of payload: %v, want io.ErrUnexpectedEOF", n-frameLen, err)
			}
		}
	}
}

func TestReaderStopsAtBadHeader(t *testing.T) {
	for _, tt := range []struct {
		b    []byte
		want error
	}{
		{[]byte{250, 0, 0, 0, 0, 0, 0, 0}, ErrUnknownType},
		{[]byte{byte(TypeCredit), 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF}, ErrMalformed},
		{[]byte{byte(TypeCredit), 0, 0, 0, 0, 0, 0, 9}, ErrMalformed},
		{[]byte{byte(TypeCredit), 1, 0, 0, 0, 0, 0, 8}, ErrMalformed},
	} {
		r := NewReader(bytes.NewReader(append(tt.b, make([]byte, 100)...)))
		for range 2 {
			if _, _, err := r.Next(); !errors.Is(err, tt.want) {
				t.Errorf("Next of %x: %v, want %v", tt.b, err, tt.want)
			}
		}
	}
}

func TestStreamThatDeliversNothing(t *testing.T) {
	r := NewReader(readerFunc(func([]byte) (int, error) { return 0, nil }))
	if _, _, err := r.Next(); !errors.Is(err, io.ErrNoProgress) {
		t.Errorf("Next: %v, want io.ErrNoProgress", err)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestPayloadGoesStraightToItsMemory(t *testing.T) {
	c := &chunks{b: append(Write{Op: 1, Length: MaxPayload}.AppendTo(nil), payloadOf(MaxPayload)...)}
	r := NewReader(c)
	if _, _, err := r.Next(); err != nil {
		t.Fatal(err)
	}
	buffered := r.Buffered()
	p := make([]byte, MaxPayload)
	if err := r.Payload(p); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(p, payloadOf(MaxPayload)) {
		t.Error("the payload is damaged")
	}
	if c.reads != 2 || &c.last[0] != &p[buffered] {
		t.Errorf("%d reads of the stream, want one for the frame and one into the payload's memory", c.reads)
	}
}

func TestReaderDoesNotAllocate(t *testing.T) {
	one := append(Write{Op: 1, Length: 64}.AppendTo(nil), make([]byte, 64)...)
	one = Done{Op: 9}.AppendTo(one)
	src := &loop{b: one}
	r := NewReader(src)
	p := make([]byte, 64)
	if n := testing.AllocsPerRun(1000, func() {
		r.Next()
		r.Payload(p)
		r.Next()
	}); n != 0 {
		t.Errorf("reading two frames: %v allocations, want 0", n)
	}
}

// loop delivers b for ever.
type loop struct {
	b  []byte
	at int
}

func (l *loop) Read(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		k := copy(p[n:], l.b[l.at:])
		n += k
		l.at = (l.at + k) % len(l.b)
	}
	return n, nil
}

func BenchmarkReader(b *testing.B) {
	r := NewReader(&loop{b: append(Write{Op: 1, Length: 64}.AppendTo(nil), make([]byte, 64)...)})
	p := make([]byte, 64)
	b.ReportAllocs()
	for b.Loop() {
		h, body, err := r.Next()
		if err != nil {
			b.Fatal(err)
		}
		if _, err := ParseWrite(h.Flags, body); err != nil {
			b.Fatal(err)
		}
		if err := r.Payload(p); err != nil {
			b.Fatal(err)
		}
	}
}
