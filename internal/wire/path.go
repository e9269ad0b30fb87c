package wire

// Path announces that the sender's application wants a path for the connection, with the data that
// the peer needs for it. Each side sends it at most once in an attempt. The side that has dialed
// the link then dials the peer's data port and presents the peer's token.
type Path struct {
	Token     [16]byte // opens the path at the sender, once
	Key       [32]byte // SHA-256 of the public key of the sender's application; zeros with Plaintext
	Plaintext bool     // flag bit 0: the sender's side uses no TLS
}

// NoPath reports that the connection gets no path: the sender could not make or use it. The other
// side answers with its own, unless it has sent one in this attempt.
type NoPath struct {
	Reason  string // at most MaxReason bytes, UTF-8
	Passing bool   // flag bit 0: another attempt may follow
}

// flagPlaintext belongs to Path, flagPassing to NoPath and NoRMAPath.
const (
	flagPlaintext = 1
	flagPassing   = 1
)

// AppendTo appends the encoded frame to b.
//
//	 0       16    48
//	+-------+-----+
//	| token | key |
//	+-------+-----+
func (f Path) AppendTo(b []byte) []byte {
	start := len(b)
	b = begin(b, TypePath, flag(f.Plaintext, flagPlaintext))
	b = append(b, f.Token[:]...)
	b = append(b, f.Key[:]...)
	return end(b, start)
}

// ParsePath parses a Path that fills body exactly.
func ParsePath(flags uint8, body []byte) (Path, error) {
	d := decode(body, flags, flagPlaintext)
	f := Path{Plaintext: flags&flagPlaintext != 0}
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
func (f NoPath) AppendTo(b []byte) []byte {
	return appendTextFrame(b, TypeNoPath, flag(f.Passing, flagPassing), f.Reason)
}

// ParseNoPath parses a NoPath that fills body exactly.
func ParseNoPath(flags uint8, body []byte) (NoPath, error) {
	d := decode(body, flags, flagPassing)
	return result(&d, NoPath{Reason: d.reason(), Passing: flags&flagPassing != 0})
}
