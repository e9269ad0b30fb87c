package wire

// AppendTo appends the encoded frame to b.
//
//	 0         8
//	+---------+
//	| request |
//	+---------+
func (f Mark) AppendTo(b []byte) []byte { return appendFrame(b, TypeMark, 0, u64(f.Request)) }

// ParseMark parses a Mark that fills body exactly.
func ParseMark(flags uint8, body []byte) (Mark, error) {
	d := decode(body, flags, 0)
	return result(&d, Mark{Request: d.U64()})
}

// AppendTo appends the encoded frame to b.
//
//	 0         8     16
//	+---------+-----+
//	| request | seq |
//	+---------+-----+
func (f Marked) AppendTo(b []byte) []byte {
	return appendFrame(b, TypeMarked, 0, u64(f.Request), u64(f.Seq))
}

// ParseMarked parses a Marked that fills body exactly.
func ParseMarked(flags uint8, body []byte) (Marked, error) {
	d := decode(body, flags, 0)
	return result(&d, Marked{Request: d.U64(), Seq: d.U64()})
}

// AppendTo appends the encoded frame to b; it is laid out like a Marked.
func (f Wait) AppendTo(b []byte) []byte {
	return appendFrame(b, TypeWait, 0, u64(f.Request), u64(f.Seq))
}

// ParseWait parses a Wait that fills body exactly.
func ParseWait(flags uint8, body []byte) (Wait, error) {
	d := decode(body, flags, 0)
	return result(&d, Wait{Request: d.U64(), Seq: d.U64()})
}

// AppendTo appends the encoded frame to b.
//
//	 0         8      10
//	+---------+------+
//	| request | code |
//	+---------+------+
func (f Waited) AppendTo(b []byte) []byte {
	return appendFrame(b, TypeWaited, 0, u64(f.Request), u16(uint16(f.Code)))
}

// ParseWaited parses a Waited that fills body exactly.
func ParseWaited(flags uint8, body []byte) (Waited, error) {
	d := decode(body, flags, 0)
	return result(&d, Waited{Request: d.U64(), Code: d.code()})
}

// AppendTo appends the encoded frame to b.
//
//	 0         8       9              17            25              33             41
//	+---------+-------+--------------+-------------+---------------+--------------+
//	| request | where | local offset | local value | remote offset | remote value |
//	+---------+-------+--------------+-------------+---------------+--------------+
func (f PeerSignal) AppendTo(b []byte) []byte {
	return appendFrame(b, TypePeerSignal, 0, u64(f.Request), u8(f.Where),
		u64(f.LocalOffset), u64(f.LocalValue), u64(f.RemoteOffset), u64(f.RemoteValue))
}

// ParsePeerSignal parses a PeerSignal that fills body exactly.
func ParsePeerSignal(flags uint8, body []byte) (PeerSignal, error) {
	d := decode(body, flags, 0)
	return result(&d, PeerSignal{
		Request:      d.U64(),
		Where:        d.U8(),
		LocalOffset:  d.U64(),
		LocalValue:   d.U64(),
		RemoteOffset: d.U64(),
		RemoteValue:  d.U64(),
	})
}

// AppendTo appends the encoded frame to b; it is laid out like a Waited.
func (f PeerSignaled) AppendTo(b []byte) []byte {
	return appendFrame(b, TypePeerSignaled, 0, u64(f.Request), u16(uint16(f.Code)))
}

// ParsePeerSignaled parses a PeerSignaled that fills body exactly.
func ParsePeerSignaled(flags uint8, body []byte) (PeerSignaled, error) {
	d := decode(body, flags, 0)
	return result(&d, PeerSignaled{Request: d.U64(), Code: d.code()})
}
