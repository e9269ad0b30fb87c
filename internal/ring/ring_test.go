package ring

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

func pair(t testing.TB, p Params) (*Writer, *Reader) {
	t.Helper()
	mem := memory(p.Size())
	w, err := NewWriter(mem, p)
	if err != nil {
		t.Fatal(err)
	}
	r, err := NewReader(mem, p)
	if err != nil {
		t.Fatal(err)
	}
	return w, r
}

var small = Params{Slots: 4, Data: 4 << 10}

// Bytes written in any pieces are read in order, once, and bytes that do not fit are not accepted.
func TestStreamIsKept(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w, r := pair(t, Params{Slots: 1 << rapid.IntRange(2, 6).Draw(rt, "slots"), Data: 4 << 10 << rapid.IntRange(0, 2).Draw(rt, "data"),
			Release: rapid.SampledFrom([]int{0, 25, 50, MaxRelease}).Draw(rt, "release")})
		var next, seen byte
		inside := 0
		rt.Repeat(map[string]func(*rapid.T){
			"write": func(rt *rapid.T) {
				p := make([]byte, rapid.SampledFrom([]int{1, 8, 55, 56, 57, 64, 300, 1024, 5000, 20000}).Draw(rt, "n"))
				for i := range p {
					p[i] = next + byte(i)
				}
				room := w.Room()
				n, err := w.Write(p)
				if err != nil {
					rt.Fatal(err)
				}
				if room && n == 0 {
					rt.Fatalf("Room, and %d bytes are not taken at all", len(p))
				}
				next += byte(n)
				inside += n
				if n > 0 && !r.Pending() {
					rt.Fatal("written, and nothing is pending")
				}
			},
			"read": func(rt *rapid.T) {
				p := make([]byte, rapid.SampledFrom([]int{1, 7, 56, 100, 4096, 100000}).Draw(rt, "n"))
				pending := r.Pending()
				n, err := r.Read(p)
				if err != nil || n != min(len(p), inside) || pending != (inside > 0) {
					rt.Fatalf("Read = %d, %v with %d bytes inside, pending %v", n, err, inside, pending)
				}
				for _, b := range p[:n] {
					if b != seen {
						rt.Fatalf("byte %d, want %d", b, seen)
					}
					seen++
				}
				inside -= n
			},
			"release": func(rt *rapid.T) {
				r.Release()
				if inside == 0 && !w.Room() {
					rt.Fatal("empty and released, and there is no room")
				}
			},
		})
	})
}

// A reader that reads everything and never sleeps, such as a poller, leaves its writer room for a
// piece, however long it defers the release.
func TestWriterIsNeverLeftWithoutRoom(t *testing.T) {
	for _, p := range []Params{
		{Slots: MinSlots, Data: MinData, Release: MaxRelease},
		{Slots: 8, Data: 64 << 10, Release: MaxRelease},
		{Slots: 4096, Data: MinData, Release: MaxRelease},
	} {
		for _, size := range []int{1, Inline, Inline + 1, p.least(), p.chunk(), p.chunk() + 1, p.Data - 1} {
			w, r := pair(t, p)
			buf := make([]byte, size)
			for i := range 3 * p.Slots {
				if n, err := w.Write(buf); n == 0 || err != nil {
					t.Fatalf("%+v: piece %d of %d bytes: %d, %v beside a reader that has read everything", p, i, size, n, err)
				}
				for r.Pending() {
					if _, err := r.Read(buf); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
	}
}

// The reader reports room once it has consumed the part of the ring that Release gives, and not
// before.
func TestReleaseIsAPartOfTheRing(t *testing.T) {
	for release, want := range map[int]int{0: 1, 25: 16, 50: 32, MaxRelease: 57} {
		w, r := pair(t, Params{Slots: 64, Data: 4 << 10, Release: release})
		taken := 0
		for published := false; !published; {
			if n, err := w.Write([]byte("x")); n != 1 || err != nil {
				t.Fatal(n, err)
			}
			if n, err := r.Read(make([]byte, 1)); n != 1 || err != nil {
				t.Fatal(n, err)
			}
			taken++
			published = w.word64(offHead).Load() != 0
		}
		if taken != want {
			t.Errorf("release %d%% of 64 slots: published after %d, want %d", release, taken, want)
		}
	}
}

// Both sides sleep whenever they can, and neither sleeps for ever.
func TestNobodySleepsThroughAWakeUp(t *testing.T) {
	for _, p := range []Params{small, {Slots: 16, Data: 64 << 10, Release: 25}, {Slots: 16, Data: 64 << 10, Release: MaxRelease}} {
		w, r := pair(t, p)
		data, space := make(chan struct{}, 1), make(chan struct{}, 1)
		const total = 1 << 20
		var wg sync.WaitGroup
		wg.Go(func() { writeAll(t, w, total, data, space) })
		wg.Go(func() { readAll(t, r, total, data, space) })
		wg.Wait()
	}
}

func ring(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func writeAll(t *testing.T, w *Writer, total int, data, space chan struct{}) {
	rng := rand.New(rand.NewPCG(1, 2))
	for at := 0; at < total; {
		p := make([]byte, min(1+rng.IntN(3000), total-at))
		for i := range p {
			p[i] = byte(at + i)
		}
		for len(p) > 0 {
			n, err := w.Write(p)
			if err != nil {
				t.Error(err)
				return
			}
			if n > 0 && w.WakeReader() {
				ring(data)
			}
			at, p = at+n, p[n:]
			if n > 0 {
				continue
			}
			w.Arm()
			if w.Room() {
				continue
			}
			<-space
		}
	}
}

func readAll(t *testing.T, r *Reader, total int, data, space chan struct{}) {
	rng := rand.New(rand.NewPCG(3, 4))
	buf := make([]byte, 5000)
	for at := 0; at < total; {
		n, err := r.Read(buf[:1+rng.IntN(len(buf))])
		if err != nil {
			t.Error(err)
			return
		}
		for i, b := range buf[:n] {
			if b != byte(at+i) {
				t.Errorf("byte %d is %d", at+i, b)
				return
			}
		}
		at += n
		if n == 0 {
			r.Release()
		}
		if r.WakeWriter() {
			ring(space)
		}
		if n > 0 {
			continue
		}
		r.Arm()
		if r.Pending() {
			continue
		}
		<-data
	}
}

func TestParams(t *testing.T) {
	for p, want := range map[Params]string{
		{Slots: 3, Data: 4096}:              "slots 3",
		{Slots: 6, Data: 4096}:              "slots 6",
		{Slots: 1 << 17, Data: 4096}:        "from 4 to 65536",
		{Slots: 4, Data: 0}:                 "data 0",
		{Slots: 4, Data: 5000}:              "power of two",
		{Slots: 4, Data: 128 << 20}:         "67108864",
		{Slots: -4, Data: 4096}:             "slots -4",
		{Slots: 4, Data: -4096}:             "data -4096",
		{Slots: 1 << 16, Data: 2048}:        "data 2048",
		{Slots: 65536, Data: 1 << 31}:       "data",
		{Slots: 4, Data: 4096, Release: -1}: "release -1%, want 0 to 90",
		{Slots: 4, Data: 4096, Release: 91}: "release 91%",
	} {
		if err := p.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want it to say %q", p, err, want)
		}
	}
	if err := Default.Check(); err != nil {
		t.Error(err)
	}
	if _, err := NewReader(memory(small.Size())[:100], small); err == nil {
		t.Error("short memory is taken")
	}
	if _, err := NewWriter(memory(small.Size() + 8)[8:], small); err == nil {
		t.Error("memory beside a cache line is taken")
	}
}

func TestFlags(t *testing.T) {
	w, r := pair(t, small)
	if _, ok := r.Switched(); ok || r.Closed() || w.Gone() || w.ReaderReady() {
		t.Fatal("a fresh ring has flags set")
	}
	r.Ready()
	w.Start(77)
	w.Close()
	r.Gone()
	start, ok := r.Switched()
	if start != 77 || !ok || !r.Closed() || !w.Gone() || !w.ReaderReady() {
		t.Fatal("flags are lost")
	}
}

// A place that cannot be true is found by the writer, a length that cannot be
// true by the reader.
func TestCorruptionIsFound(t *testing.T) {
	w, r := pair(t, small)
	for range small.Slots {
		if n, err := w.Write([]byte("x")); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	w.word64(offHead).Store(9)
	if n, err := w.Write([]byte("x")); n != 0 || !errors.Is(err, ErrCorrupt) {
		t.Errorf("head beyond the tail: %d, %v", n, err)
	}
	for _, size := range []uint32{0, 1025, 1 << 31} {
		r.at64(0).Store(1<<32 | uint64(size))
		if n, err := r.Read(make([]byte, 10)); n != 0 || !errors.Is(err, ErrCorrupt) {
			t.Errorf("piece of %d bytes: %d, %v", size, n, err)
		}
	}
}

// Neither side accesses memory outside the ring, or loops for ever, for any stores of the other
// side.
func FuzzHostileMemory(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 128, 0, 255, 200, 64, 7, 7, 7})
	f.Add(bytes.Repeat([]byte{3, 0, 9}, 40))
	f.Fuzz(func(t *testing.T, script []byte) {
		p := small
		p.Release = len(script) % (MaxRelease + 1)
		whole := memory(p.Size() + 128)
		guard := whole[p.Size():]
		w, _ := NewWriter(whole, p)
		r, _ := NewReader(whole, p)
		buf := make([]byte, 3000)
		for len(script) >= 4 && len(script) < 4096 {
			at := (int(script[1])<<8 | int(script[2])) % p.Size()
			switch script[0] % 4 {
			case 0:
				w.Write(buf[:at%len(buf)])
			case 1:
				if n, _ := r.Read(buf[:at%len(buf)]); n > at {
					t.Fatal("read more than asked for")
				}
			case 2:
				whole[at] = script[3]
			case 3:
				w.Room()
				r.Pending()
				r.Release()
			}
			script = script[4:]
		}
		if !bytes.Equal(guard, make([]byte, len(guard))) {
			t.Fatal("memory behind the ring was written")
		}
	})
}

func BenchmarkShort(b *testing.B) {
	w, r := pair(b, Default)
	p, q := make([]byte, 8), make([]byte, 64)
	b.ReportAllocs()
	for b.Loop() {
		w.Write(p)
		r.Read(q)
	}
}

func BenchmarkLong(b *testing.B) {
	w, r := pair(b, Default)
	p, q := make([]byte, 32<<10), make([]byte, 32<<10)
	b.SetBytes(int64(len(p)))
	b.ReportAllocs()
	for b.Loop() {
		w.Write(p)
		r.Read(q)
	}
}
