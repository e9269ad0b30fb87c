package wire

// AppendTo appends the encoded frame to b.
//
//	 0       8
//	+-------+
//	| limit |
//	+-------+
func (f Credit) AppendTo(b []byte) []byte { return append1(b, TypeCredit, f.Limit) }

// ParseCredit parses a Credit that fills body exactly.
func ParseCredit(flags uint8, body []byte) (Credit, error) {
	d := decode(body, flags, 0)
	return result(&d, Credit{Limit: d.U64()})
}

// AppendTo appends the encoded frame to b.
//
//	 0      8
//	+------+
//	| sent |
//	+------+
func (f End) AppendTo(b []byte) []byte { return append1(b, TypeEnd, f.Sent) }

// ParseEnd parses an End that fills body exactly.
func ParseEnd(flags uint8, body []byte) (End, error) {
	d := decode(body, flags, 0)
	return result(&d, End{Sent: d.U64()})
}

// AppendTo appends the encoded frame to b.
//
//	 0      8
//	+------+-----------+
//	| sent | cause ... |
//	+------+-----------+
//
// The cause is present only with Reset.
func (f Close) AppendTo(b []byte) []byte {
	if !f.Reset {
		return append1(b, TypeClose, f.Sent)
	}
	start := len(b)
	b = begin(b, TypeClose, flagReset)
	b = order.AppendUint64(b, f.Sent)
	b = appendReason(b, f.Cause)
	return end(b, start)
}

// ParseClose parses a Close that fills body exactly.
func ParseClose(flags uint8, body []byte) (Close, error) {
	d := decode(body, flags, flagReset)
	f := Close{Sent: d.U64(), Reset: flags&flagReset != 0}
	if f.Reset {
		f.Cause = d.reason()
	}
	return result(&d, f)
}

// AppendTo appends the encoded frame to b.
//
//	 0        8        16     17
//	+--------+--------+------+
//	| offset | length | prot |
//	+--------+--------+------+
func (f Register) AppendTo(b []byte) []byte {
	start := len(b)
	b = begin(b, TypeRegister, 0)
	b = order.AppendUint64(b, f.Offset)
	b = order.AppendUint64(b, f.Length)
	b = append(b, f.Prot)
	return end(b, start)
}

// ParseRegister parses a Register that fills body exactly.
func ParseRegister(flags uint8, body []byte) (Register, error) {
	d := decode(body, flags, 0)
	return result(&d, Register{Offset: d.U64(), Length: d.U64(), Prot: d.U8()})
}

// AppendTo appends the encoded frame to b.
//
//	 0        8
//	+--------+
//	| offset |
//	+--------+
func (f Registered) AppendTo(b []byte) []byte { return append1(b, TypeRegistered, f.Offset) }

// ParseRegistered parses a Registered that fills body exactly.
func ParseRegistered(flags uint8, body []byte) (Registered, error) {
	d := decode(body, flags, 0)
	return result(&d, Registered{Offset: d.U64()})
}

// AppendTo appends the encoded frame to b.
//
//	 0        8        16
//	+--------+--------+
//	| offset | length |
//	+--------+--------+
func (f Unregister) AppendTo(b []byte) []byte {
	return append2(b, TypeUnregister, f.Offset, f.Length)
}

// ParseUnregister parses an Unregister that fills body exactly.
func ParseUnregister(flags uint8, body []byte) (Unregister, error) {
	d := decode(body, flags, 0)
	return result(&d, Unregister{Offset: d.U64(), Length: d.U64()})
}

// AppendTo appends the encoded frame to b.
//
//	 0        8
//	+--------+
//	| offset |
//	+--------+
func (f Unregistered) AppendTo(b []byte) []byte { return append1(b, TypeUnregistered, f.Offset) }

// ParseUnregistered parses an Unregistered that fills body exactly.
func ParseUnregistered(flags uint8, body []byte) (Unregistered, error) {
	d := decode(body, flags, 0)
	return result(&d, Unregistered{Offset: d.U64()})
}

// append1 appends a frame whose body is one integer.
func append1(b []byte, t Type, v uint64) []byte {
	b = append(b, byte(t), 0, 0, 0, 0, 0, 0, 8)
	return order.AppendUint64(b, v)
}

// append2 appends a frame whose body is two integers.
func append2(b []byte, t Type, v, w uint64) []byte {
	b = append(b, byte(t), 0, 0, 0, 0, 0, 0, 16)
	b = order.AppendUint64(b, v)
	return order.AppendUint64(b, w)
}
