package wire

import "github.com/fabricd/fabricd/internal/status"

// AppendTo appends the encoded frame to b; the caller sends Length payload
// bytes right after it.
//
//	 0    8        16       20
//	+----+--------+--------+
//	| op | offset | length |
//	+----+--------+--------+
func (f Write) AppendTo(b []byte) []byte {
	start := len(b)
	b = begin(b, TypeWrite, flag(f.Last, flagLast)|flag(f.Ordered, flagOrdered))
	b = order.AppendUint64(b, f.Op)
	b = order.AppendUint64(b, f.Offset)
	b = order.AppendUint32(b, f.Length)
	return end(b, start)
}

// ParseWrite parses a Write that fills body exactly. Length is 1 to MaxPayload.
func ParseWrite(flags uint8, body []byte) (Write, error) {
	d := decode(body, flags, flagLast|flagOrdered)
	return result(&d, Write{
		Op:      d.U64(),
		Offset:  d.U64(),
		Length:  d.payload(),
		Last:    flags&flagLast != 0,
		Ordered: flags&flagOrdered != 0,
	})
}

// AppendTo appends the encoded frame to b.
//
//	 0    8        16       24
//	+----+--------+--------+
//	| op | offset | length |
//	+----+--------+--------+
func (f Read) AppendTo(b []byte) []byte {
	return append3(b, TypeRead, f.Op, f.Offset, f.Length)
}

// ParseRead parses a Read that fills body exactly.
func ParseRead(flags uint8, body []byte) (Read, error) {
	d := decode(body, flags, 0)
	return result(&d, Read{Op: d.U64(), Offset: d.U64(), Length: d.U64()})
}

// AppendTo appends the encoded frame to b; the caller sends Length payload
// bytes right after it.
//
//	 0    8        12
//	+----+--------+
//	| op | length |
//	+----+--------+
func (f ReadData) AppendTo(b []byte) []byte {
	start := len(b)
	b = begin(b, TypeReadData, flag(f.Last, flagLast))
	b = order.AppendUint64(b, f.Op)
	b = order.AppendUint32(b, f.Length)
	return end(b, start)
}

// ParseReadData parses a ReadData that fills body exactly. Length is 1 to
// MaxPayload.
func ParseReadData(flags uint8, body []byte) (ReadData, error) {
	d := decode(body, flags, flagLast)
	return result(&d, ReadData{Op: d.U64(), Length: d.payload(), Last: flags&flagLast != 0})
}

// AppendTo appends the encoded frame to b.
//
//	 0    8
//	+----+
//	| op |
//	+----+
func (f Done) AppendTo(b []byte) []byte { return append1(b, TypeDone, f.Op) }

// ParseDone parses a Done that fills body exactly.
func ParseDone(flags uint8, body []byte) (Done, error) {
	d := decode(body, flags, 0)
	return result(&d, Done{Op: d.U64()})
}

// AppendTo appends the encoded frame to b.
//
//	 0    8      10
//	+----+------+
//	| op | code |
//	+----+------+
func (f Fail) AppendTo(b []byte) []byte { return appendCoded(b, TypeFail, f.Op, f.Code) }

// ParseFail parses a Fail that fills body exactly. Code is not status.OK.
func ParseFail(flags uint8, body []byte) (Fail, error) {
	d := decode(body, flags, 0)
	return result(&d, Fail{Op: d.U64(), Code: d.failure()})
}

// AppendTo appends the encoded frame to b.
//
//	 0    8        16      24
//	+----+--------+-------+
//	| op | offset | value |
//	+----+--------+-------+
func (f Signal) AppendTo(b []byte) []byte {
	return append3(b, TypeSignal, f.Op, f.Offset, f.Value)
}

// ParseSignal parses a Signal that fills body exactly.
func ParseSignal(flags uint8, body []byte) (Signal, error) {
	d := decode(body, flags, 0)
	return result(&d, Signal{Op: d.U64(), Offset: d.U64(), Value: d.U64()})
}

// AppendTo appends the encoded frame to b.
//
//	 0    8      9       10       18        26        34
//	+----+------+-------+--------+---------+---------+
//	| op | kind | width | offset | operand | compare |
//	+----+------+-------+--------+---------+---------+
func (f Atomic) AppendTo(b []byte) []byte {
	start := len(b)
	b = begin(b, TypeAtomic, flag(f.Posted, flagPosted))
	b = order.AppendUint64(b, f.Op)
	b = append(b, f.Kind, f.Width)
	b = order.AppendUint64(b, f.Offset)
	b = order.AppendUint64(b, f.Operand)
	b = order.AppendUint64(b, f.Compare)
	return end(b, start)
}

// ParseAtomic parses an Atomic that fills body exactly.
func ParseAtomic(flags uint8, body []byte) (Atomic, error) {
	d := decode(body, flags, flagPosted)
	return result(&d, Atomic{
		Op:      d.U64(),
		Kind:    d.U8(),
		Width:   d.U8(),
		Offset:  d.U64(),
		Operand: d.U64(),
		Compare: d.U64(),
		Posted:  flags&flagPosted != 0,
	})
}

// AppendTo appends the encoded frame to b.
//
//	 0    8       16
//	+----+-------+
//	| op | value |
//	+----+-------+
func (f Result) AppendTo(b []byte) []byte { return append2(b, TypeResult, f.Op, f.Value) }

// ParseResult parses a Result that fills body exactly.
func ParseResult(flags uint8, body []byte) (Result, error) {
	d := decode(body, flags, 0)
	return result(&d, Result{Op: d.U64(), Value: d.U64()})
}

// append3 appends a frame whose body is three integers.
func append3(b []byte, t Type, v, w, x uint64) []byte {
	b = append(b, byte(t), 0, 0, 0, 0, 0, 0, 24)
	b = order.AppendUint64(b, v)
	b = order.AppendUint64(b, w)
	return order.AppendUint64(b, x)
}

// appendCoded appends a frame whose body is an integer and a status.
func appendCoded(b []byte, t Type, v uint64, c status.Code) []byte {
	b = append(b, byte(t), 0, 0, 0, 0, 0, 0, 10)
	b = order.AppendUint64(b, v)
	return order.AppendUint16(b, uint16(c))
}
