package wire

// AppendTo appends the encoded frame to b.
//
//	 0       8
//	+-------+
//	| limit |
//	+-------+
func (f Credit) AppendTo(b []byte) []byte { return appendFrame(b, TypeCredit, 0, u64(f.Limit)) }

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
func (f End) AppendTo(b []byte) []byte { return appendFrame(b, TypeEnd, 0, u64(f.Sent)) }

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
		return appendFrame(b, TypeClose, 0, u64(f.Sent))
	}
	return appendTextFrame(b, TypeClose, flagReset, f.Cause, u64(f.Sent))
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
	return appendFrame(b, TypeRegister, 0, u64(f.Offset), u64(f.Length), u8(f.Prot))
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
func (f Registered) AppendTo(b []byte) []byte {
	return appendFrame(b, TypeRegistered, 0, u64(f.Offset))
}

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
	return appendFrame(b, TypeUnregister, 0, u64(f.Offset), u64(f.Length))
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
func (f Unregistered) AppendTo(b []byte) []byte {
	return appendFrame(b, TypeUnregistered, 0, u64(f.Offset))
}

// ParseUnregistered parses an Unregistered that fills body exactly.
func ParseUnregistered(flags uint8, body []byte) (Unregistered, error) {
	d := decode(body, flags, 0)
	return result(&d, Unregistered{Offset: d.U64()})
}
