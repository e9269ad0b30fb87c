package wire

// AppendTo appends the encoded frame to b; the caller sends Length payload
// bytes right after it.
//
//	 0    8        16       20
//	+----+--------+--------+
//	| op | offset | length |
//	+----+--------+--------+
func (f Write) AppendTo(b []byte) []byte {
	flags := flag(f.Last, flagLast) | flag(f.Ordered, flagOrdered)
	return appendFrame(b, TypeWrite, flags, u64(f.Op), u64(f.Offset), u32(f.Length))
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
	return appendFrame(b, TypeRead, 0, u64(f.Op), u64(f.Offset), u64(f.Length))
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
	return appendFrame(b, TypeReadData, flag(f.Last, flagLast), u64(f.Op), u32(f.Length))
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
func (f Done) AppendTo(b []byte) []byte { return appendFrame(b, TypeDone, 0, u64(f.Op)) }

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
func (f Fail) AppendTo(b []byte) []byte {
	return appendFrame(b, TypeFail, 0, u64(f.Op), u16(uint16(f.Code)))
}

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
	return appendFrame(b, TypeSignal, 0, u64(f.Op), u64(f.Offset), u64(f.Value))
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
	return appendFrame(b, TypeAtomic, flag(f.Posted, flagPosted),
		u64(f.Op), u8(f.Kind), u8(f.Width), u64(f.Offset), u64(f.Operand), u64(f.Compare))
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
func (f Result) AppendTo(b []byte) []byte {
	return appendFrame(b, TypeResult, 0, u64(f.Op), u64(f.Value))
}

// ParseResult parses a Result that fills body exactly.
func ParseResult(flags uint8, body []byte) (Result, error) {
	d := decode(body, flags, 0)
	return result(&d, Result{Op: d.U64(), Value: d.U64()})
}
