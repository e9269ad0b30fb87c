package tcp

import (
	"bytes"
	"encoding/hex"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// vectors are the golden frames of SPEC.md: add, never edit.
var vectors = map[string][]byte{
	"hello":       hello{from: 2, to: 2, plaintext: true, bulk: 2, laneWindow: 2 << 20, sessionWindow: 64 << 20, lanes: 4096}.appendTo(nil),
	"hello-plain": hello{from: 2, to: 2, plaintext: true, plainFirst: true, bulk: 2, laneWindow: 2 << 20, sessionWindow: 64 << 20, lanes: 4096}.appendTo(nil),
	"data":        append(header{kind: typeData, length: 5, lane: 3, value: 700}.appendTo(nil), "hello"...),
	"data-fin":    header{kind: typeData, flags: flagFin, lane: 3, value: 705}.appendTo(nil),
	"reset":       header{kind: typeReset, lane: 3, value: 705}.appendTo(nil),
	"stop":        header{kind: typeStop, lane: 9}.appendTo(nil),
	"credit":      header{kind: typeCredit, lane: 9, value: 3 << 20}.appendTo(nil),
	"credit-all":  header{kind: typeCredit, value: 80 << 20}.appendTo(nil),
	"lanes":       header{kind: typeLanes, value: 4100}.appendTo(nil),
	"datagram":    append(header{kind: typeDatagram, length: 4}.appendTo(nil), "beat"...),
	"close":       append(header{kind: typeClose, length: 6, value: 5}.appendTo(nil), "fenced"...),
	"want":        header{kind: typeWant}.appendTo(nil),
	"token":       append(header{kind: typeToken, length: tokenLen, lane: 2, value: 1 << 63}.appendTo(nil), bytes.Repeat([]byte{7}, tokenLen)...),
	"bound":       header{kind: typeBound}.appendTo(nil),
	"ack":         header{kind: typeAck, lane: 2, value: 525336}.appendTo(nil),
	"lost":        header{kind: typeLost, lane: 2, value: 525000}.appendTo(nil),
	"binding":     binding{session: 1 << 63, token: [tokenLen]byte{1, 2, 3}}.appendTo(nil),
}

func TestGoldenVectors(t *testing.T) {
	for name, got := range vectors {
		path := filepath.Join("testdata", "v2", name+".hex")
		text, err := os.ReadFile(path)
		if err != nil {
			t.Errorf("%v; it should hold %x", err, got)
			continue
		}
		if want, err := hex.DecodeString(strings.TrimSpace(string(text))); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: encoded %x, want %x (%v)", name, got, want, err)
		}
		if name == "binding" {
			continue
		}
		h, err := parseHeader(got, maxSmall)
		if err != nil || !bytes.Equal(h.appendTo(nil), got[:headerLen]) || int(h.length) != len(got)-headerLen {
			t.Errorf("%s: decoded %+v, %v", name, h, err)
		}
	}
}

func TestMalformedHeaders(t *testing.T) {
	for name, h := range map[string]header{
		"unknown type":        {kind: 14},
		"token of no number":  {kind: typeToken, length: tokenLen},
		"ack of no number":    {kind: typeAck, value: 1},
		"lost with a body":    {kind: typeLost, lane: 1, length: 1},
		"type 0":              {},
		"data of lane 0":      {kind: typeData, length: 1},
		"data without bytes":  {kind: typeData, lane: 1},
		"data too long":       {kind: typeData, lane: 1, length: maxSmall + 1},
		"data far away":       {kind: typeData, lane: 1, length: 1, value: maxOffset + 1},
		"unknown flag":        {kind: typeData, lane: 1, length: 1, flags: 2},
		"reset with a body":   {kind: typeReset, lane: 1, length: 1},
		"stop with a value":   {kind: typeStop, lane: 1, value: 1},
		"long datagram":       {kind: typeDatagram, length: 1001},
		"long reason":         {kind: typeClose, length: maxReason + 1},
		"short token":         {kind: typeToken, length: tokenLen - 1},
		"short hello":         {kind: typeHello, length: helloLen - 1},
		"credit with a flag":  {kind: typeCredit, flags: 1, lane: 1, value: 1},
		"lanes of a lane":     {kind: typeLanes, lane: 1, value: 1},
		"an enormous credit":  {kind: typeCredit, lane: 1, value: 1 << 63},
		"a want with a value": {kind: typeWant, value: 1},
	} {
		if _, err := parseHeader(h.appendTo(nil), maxSmall); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	b := vectors["data"][:headerLen:headerLen]
	for _, i := range []int{2, 3} {
		bad := bytes.Clone(b)
		bad[i] = 1
		if _, err := parseHeader(bad, maxSmall); err == nil {
			t.Errorf("byte %d is not zero: accepted", i)
		}
	}
}

func FuzzHeader(f *testing.F) {
	for _, v := range vectors {
		f.Add(v)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < headerLen {
			return
		}
		h, err := parseHeader(b, maxPiece)
		if err != nil {
			return
		}
		if got := h.appendTo(nil); !bytes.Equal(got, b[:headerLen]) {
			t.Errorf("% x became % x", b[:headerLen], got)
		}
		if h.length > maxPiece || h.value > maxOffset && h.kind != typeToken {
			t.Errorf("out of bounds: %+v", h)
		}
	})
}

func FuzzHello(f *testing.F) {
	f.Add(vectors["hello"][headerLen:])
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < helloLen {
			return
		}
		h, err := parseHello(b)
		if err != nil {
			return
		}
		again, err := parseHello(h.appendTo(nil)[headerLen:])
		if err != nil || again != h {
			t.Errorf("%+v became %+v, %v", h, again, err)
		}
		if h.lanes == 0 || h.lanes > maxLanes || h.laneWindow > maxWindow || h.bulk > maxBulk {
			t.Errorf("out of bounds: %+v", h)
		}
	})
}

func FuzzBinding(f *testing.F) {
	f.Add(vectors["binding"])
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < bindingLen {
			return
		}
		at, err := parseBinding(b[:bindingLen])
		if err == nil && !bytes.Equal(at.appendTo(nil), b[:bindingLen]) {
			t.Errorf("% x became %+v", b[:bindingLen], at)
		}
	})
}

// FuzzAssembly puts pieces in place in the order that the input says, also
// nonsensical ones, and takes them out again.
func FuzzAssembly(f *testing.F) {
	f.Add([]byte{0, 10, 20, 5, 10, 10, 255, 30})
	f.Fuzz(func(t *testing.T, script []byte) {
		var a assembly
		arrived := map[uint64]bool{}
		taken := uint64(0)
		for len(script) >= 2 {
			at, n := taken+uint64(script[0]), int(script[1])
			script = script[2:]
			if n > 200 { // take some
				p := make([]byte, n-200)
				p = p[:a.take(p)]
				for _, b := range p {
					if b != byte(taken*7) || !arrived[taken] {
						t.Fatalf("byte %d is %d", taken, b)
					}
					taken++
				}
				continue
			}
			p := make([]byte, n)
			again := false
			for i := range p {
				off := at + uint64(i)
				p[i] = byte(off * 7)
				again = again || arrived[off]
			}
			err := a.announce(at, at+uint64(n))
			if n > 0 && again && err == nil {
				t.Fatalf("bytes %d to %d were announced twice", at, at+uint64(n))
			}
			if err != nil || n == 0 {
				continue
			}
			a.put(at, p[:n/2+1])
			if n/2+1 < n {
				a.put(at+uint64(n/2+1), p[n/2+1:])
			}
			for i := range p {
				arrived[at+uint64(i)] = true
			}
		}
		for off := taken; arrived[off]; off++ {
			if off >= a.next {
				t.Fatalf("byte %d has arrived, %d are readable from %d", off, a.readable(), taken)
			}
		}
		if arrived[a.next] || a.taken != taken {
			t.Fatalf("next is %d, taken %d of %d", a.next, a.taken, taken)
		}
	})
}

// TestAssemblyInAnyOrder puts pieces in place in random order.
func TestAssemblyInAnyOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		scale := 1 << r.IntN(6) // up to rings that are lent
		want := make([]byte, 1+r.IntN(20000*scale))
		for i := range want {
			want[i] = byte(r.Uint32())
		}
		var cuts []int
		for at := 0; at < len(want); at += 1 + r.IntN(1000*scale) {
			cuts = append(cuts, at)
		}
		var a assembly
		var got []byte
		for _, i := range r.Perm(len(cuts)) {
			end := len(want)
			if i+1 < len(cuts) {
				end = cuts[i+1]
			}
			if err := a.announce(uint64(cuts[i]), uint64(end)); err != nil {
				t.Fatal(err)
			}
			a.put(uint64(cuts[i]), want[cuts[i]:end])
			p := make([]byte, r.IntN(2000*scale))
			got = append(got, p[:a.take(p)]...)
		}
		rest := make([]byte, a.readable())
		a.take(rest)
		if got = append(got, rest...); !bytes.Equal(got, want) {
			t.Fatalf("%d bytes came out of %d", len(got), len(want))
		}
	}
}

// TestALaneKeepsItsSmallRing has a large write come between small ones: its ring is
// given back, and the one of the small ones is used again.
func TestALaneKeepsItsSmallRing(t *testing.T) {
	var a assembly
	comes := func(n int) {
		t.Helper()
		p := bytes.Repeat([]byte{7}, n)
		if err := a.announce(a.next, a.next+uint64(n)); err != nil {
			t.Fatal(err)
		}
		a.put(a.next, p)
		if got := make([]byte, n); a.take(got) != n || !bytes.Equal(got, p) {
			t.Fatalf("of %d bytes others came out", n)
		}
	}
	comes(30)
	small := &a.buf[0]
	for range 3 {
		comes(keptRing + 100)
		comes(100)
		if len(a.buf) != firstRing || &a.buf[0] != small || a.small != nil {
			t.Fatalf("the ring of small writes is another one, of %d bytes; kept: %d", len(a.buf), len(a.small))
		}
	}
}
