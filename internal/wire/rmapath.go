package wire

// RMAPath negotiates a path for the RMA operations of one end of a connection. The node of that end
// sends it once in an attempt. The other node, which has the windows, answers with its own, or with
// NoRMAPath.
// The side that has dialed the link then dials the peer's data port and presents the peer's token.
type RMAPath struct {
	Token     [16]byte // opens the path at the sender, once
	Key       [32]byte // SHA-256 of the public key of the sender's end; zeros with Plaintext
	Plaintext bool     // flag bit 0: the sender's side uses no TLS
	Answer    bool     // flag bit 1: the sender applies the operations
}

// NoRMAPath reports that there is no such path, or no longer. The side that would apply the
// operations answers one with Passing with its own, unless it has sent one in this attempt.
type NoRMAPath struct {
	Answer  bool   // flag bit 1: the sender is the side that would apply the operations
	Passing bool   // flag bit 0: another attempt may follow; not before version 7
	Reason  string // at most MaxReason bytes, UTF-8
}

// RMAPassed orders the frames after it behind the operations in the first Bytes bytes that the
// sender's application has written to its RMA path.
type RMAPassed struct{ Bytes uint64 }

// flagApplies belongs to RMAPath and NoRMAPath.
const flagApplies = 2

// AppendTo appends the encoded frame to b.
//
//	 0       16    48
//	+-------+-----+
//	| token | key |
//	+-------+-----+
func (f RMAPath) AppendTo(b []byte) []byte {
	start := len(b)
	b = begin(b, TypeRMAPath, flag(f.Plaintext, flagPlaintext)|flag(f.Answer, flagApplies))
	b = append(b, f.Token[:]...)
	b = append(b, f.Key[:]...)
	return end(b, start)
}

// ParseRMAPath parses an RMAPath that fills body exactly.
func ParseRMAPath(flags uint8, body []byte) (RMAPath, error) {
	d := decode(body, flags, flagPlaintext|flagApplies)
	f := RMAPath{Plaintext: flags&flagPlaintext != 0, Answer: flags&flagApplies != 0}
	copy(f.Token[:], d.Take(len(f.Token)))
	copy(f.Key[:], d.Take(len(f.Key)))
	return result(&d, f)
}

// AppendTo appends the encoded frame to b. A longer reason is cut.
//
//	 0        2
//	+--------+------------+
//	| length | reason ... |
//	+--------+------------+
func (f NoRMAPath) AppendTo(b []byte) []byte {
	return appendTextFrame(b, TypeNoRMAPath, flag(f.Answer, flagApplies)|flag(f.Passing, flagPassing), f.Reason)
}

// ParseNoRMAPath parses a NoRMAPath that fills body exactly.
func ParseNoRMAPath(flags uint8, body []byte) (NoRMAPath, error) {
	d := decode(body, flags, flagApplies|flagPassing)
	return result(&d, NoRMAPath{Answer: flags&flagApplies != 0, Passing: flags&flagPassing != 0, Reason: d.reason()})
}

// AppendTo appends the encoded frame to b.
//
//	 0       8
//	+-------+
//	| bytes |
//	+-------+
func (f RMAPassed) AppendTo(b []byte) []byte { return appendFrame(b, TypeRMAPassed, 0, u64(f.Bytes)) }

// ParseRMAPassed parses an RMAPassed that fills body exactly.
func ParseRMAPassed(flags uint8, body []byte) (RMAPassed, error) {
	d := decode(body, flags, 0)
	return result(&d, RMAPassed{Bytes: d.U64()})
}
