package codec_test

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/codec"
)

// A field can be put and taken; take reports whether it is the one that was put.
type field struct {
	name string
	put  func(*codec.Encoder)
	take func(*codec.Decoder) bool
}

const limit = 40

// drawField draws one of all kinds of fields within its limits.
func drawField(t *rapid.T) field {
	u8, u16 := rapid.Uint8().Draw(t, "u8"), rapid.Uint16().Draw(t, "u16")
	u32, u64 := rapid.Uint32().Draw(t, "u32"), rapid.Uint64().Draw(t, "u64")
	raw := rapid.SliceOfN(rapid.Byte(), 0, limit).Draw(t, "bytes")
	text := rapid.StringN(0, -1, limit).Draw(t, "text")
	list := rapid.SliceOfN(rapid.Uint16(), 0, limit).Draw(t, "list")
	incarnation := addr.Incarnation{Node: addr.NodeID(u16), Generation: addr.Generation(u32)}
	id := addr.UUID{0: u8, 15: u8}
	at := time.Unix(0, int64(u64)).UTC()
	if u64 == 0 {
		at = time.Time{}
	}
	return rapid.SampledFrom([]field{
		{"u8", func(e *codec.Encoder) { e.U8(u8) }, func(d *codec.Decoder) bool { return d.U8() == u8 }},
		{"u16", func(e *codec.Encoder) { e.U16(u16) }, func(d *codec.Decoder) bool { return d.U16() == u16 }},
		{"u32", func(e *codec.Encoder) { e.U32(u32) }, func(d *codec.Decoder) bool { return d.U32() == u32 }},
		{"u64", func(e *codec.Encoder) { e.U64(u64) }, func(d *codec.Decoder) bool { return d.U64() == u64 }},
		{"bool", func(e *codec.Encoder) { e.Bool(u8 > 9) }, func(d *codec.Decoder) bool { return d.Bool() == (u8 > 9) }},
		{"reserved", func(e *codec.Encoder) { e.Reserved(3) }, func(d *codec.Decoder) bool { d.Reserved(3); return d.OK() }},
		{"uuid", func(e *codec.Encoder) { e.UUID(id) }, func(d *codec.Decoder) bool { return d.UUID() == id }},
		{"life", func(e *codec.Encoder) { e.Incarnation(incarnation) }, func(d *codec.Decoder) bool { return d.Incarnation() == incarnation }},
		{"time", func(e *codec.Encoder) { e.Time(at) }, func(d *codec.Decoder) bool { return d.Time().Equal(at) }},
		{"fixed", func(e *codec.Encoder) { e.Fixed(raw) }, func(d *codec.Decoder) bool { return bytes.Equal(d.Take(len(raw)), raw) }},
		{"bytes", func(e *codec.Encoder) { e.Bytes(raw, limit) }, func(d *codec.Decoder) bool { return bytes.Equal(d.Bytes(limit), raw) }},
		{"text", func(e *codec.Encoder) { e.Text(text, limit) }, func(d *codec.Decoder) bool { return d.Text(limit) == text }},
		{"list", func(e *codec.Encoder) { codec.Append(e, list, limit, e.U16) }, func(d *codec.Decoder) bool {
			return slices.Equal(codec.List(d, limit, d.U16), list)
		}},
	}).Draw(t, "kind")
}

// TestWhatIsPutIsTaken puts random fields and takes them: all of them, and then, of a body
// that is cut anywhere, never more than is there.
func TestWhatIsPutIsTaken(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		little := rapid.Bool().Draw(t, "little")
		fields := rapid.SliceOfN(rapid.Custom(drawField), 1, 8).Draw(t, "fields")
		e, from := codec.To(nil), codec.From
		if little {
			e, from = codec.ToLittle(nil), codec.FromLittle
		}
		for _, f := range fields {
			f.put(&e)
		}
		b := e.Encoded()
		if !e.OK() {
			t.Fatal("fields within their limits are bad")
		}
		d := from(b)
		for _, f := range fields {
			if !f.take(&d) {
				t.Fatalf("%s is not what was put", f.name)
			}
		}
		if !d.Whole() {
			t.Fatalf("%d bytes are left", d.Left())
		}
		if len(b) == 0 {
			return
		}
		cut := from(b[:rapid.IntRange(0, len(b)-1).Draw(t, "cut")])
		for _, f := range fields {
			f.take(&cut)
		}
		if cut.Whole() {
			t.Fatal("a body that was cut is whole")
		}
		if cut.OK() {
			t.Fatal("fields that are not there are OK")
		}
	})
}

// TestLimits puts and takes one more than each limit.
func TestLimits(t *testing.T) {
	long := bytes.Repeat([]byte{'x'}, limit+1)
	for _, f := range []field{
		{"bytes", func(e *codec.Encoder) { e.Bytes(long, limit) }, func(d *codec.Decoder) bool { d.Bytes(limit); return d.OK() }},
		{"text", func(e *codec.Encoder) { e.Text(string(long), limit) }, func(d *codec.Decoder) bool { d.Text(limit); return d.OK() }},
		{"not UTF-8", func(e *codec.Encoder) { e.Text("\xff", limit) }, func(d *codec.Decoder) bool { d.Text(limit); return d.OK() }},
		{"list", func(e *codec.Encoder) { codec.Append(e, long, limit, e.U8) }, func(d *codec.Decoder) bool { codec.List(d, limit, d.U8); return d.OK() }},
	} {
		e := codec.To(nil)
		f.put(&e)
		if e.OK() {
			t.Errorf("%s: put beyond its limit", f.name)
		}
		if d := codec.From(e.Encoded()); f.take(&d) {
			t.Errorf("%s: taken beyond its limit", f.name)
		}
	}
	for _, b := range [][]byte{{2}, {0xff}} {
		if d := codec.From(b); d.Bool() || d.OK() {
			t.Errorf("%x is a bool", b)
		}
		if d := codec.From(b); d.OK() {
			if d.Reserved(1); d.OK() {
				t.Errorf("%x is reserved", b)
			}
		}
	}
	if d := codec.From(make([]byte, 9)); d.Rest(8) != nil || d.OK() {
		t.Error("a rest of 9 bytes is within its limit of 8")
	}
}

// FuzzDecoder takes fields of any kinds from any bytes: no field is larger than its limit and the
// remaining bytes, and after a bad field all later ones are zero.
func FuzzDecoder(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8}, []byte{0, 3, 'a', 'b', 'c', 2, 0, 1, 0, 2}, false)
	f.Fuzz(func(t *testing.T, kinds, body []byte, little bool) {
		d := codec.From(body)
		if little {
			d = codec.FromLittle(body)
		}
		for _, kind := range kinds {
			before, ok, got := d.Left(), d.OK(), 0
			switch kind % 9 {
			case 0:
				got = int(d.U8())
			case 1:
				got = int(d.U16())
			case 2:
				got = int(d.U32())
			case 3:
				got = int(d.U64() & 1)
			case 4:
				got = len(d.Bytes(limit))
			case 5:
				got = len(d.Text(limit))
			case 6:
				got = len(codec.List(&d, limit, d.U32))
			case 7:
				d.Reserved(int(kind))
			case 8:
				got = len(d.Rest(limit))
			}
			if !ok && (got != 0 || d.OK()) {
				t.Fatalf("behind a bad field there is %d", got)
			}
			if d.Left() > before {
				t.Fatal("a field has put bytes back")
			}
			if kind%9 >= 4 && got > limit {
				t.Fatalf("%d, more than the limit", got)
			}
		}
		if d.Whole() && d.Left() != 0 {
			t.Fatal("whole, with bytes left")
		}
	})
}
