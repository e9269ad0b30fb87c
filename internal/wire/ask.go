package wire

import (
	"strings"
	"unicode"

	"github.com/fabricd/fabricd/fabric/addr"
)

// Frames of the control stream: a dry run of a Connect.
const (
	TypeAsk    Type = 24
	TypeAnswer Type = 25
)

const (
	flagAllowed   uint8 = 1 << 0 // Answer
	flagListening uint8 = 1 << 1 // Answer
)

// Ask asks for the result of a Connect to a port by an application of a user. Answer answers;
// nothing else happens.
type Ask struct {
	Request uint64
	To      addr.Port
	UID     uint32
}

// Answer answers an Ask with its number. A connect is queued if it is allowed,
// the port has a listener, and fewer than Backlog requests wait.
type Answer struct {
	Request   uint64
	Allowed   bool   // flag bit 0
	Listening bool   // flag bit 1
	Waiting   uint16 // requests at the port
	Backlog   uint16
	By        string // the deciding rule, as Reason: printable
}

// AppendTo appends the encoded frame to b.
//
//	 0         8    10    14
//	+---------+----+-----+
//	| request | to | uid |
//	+---------+----+-----+
func (f Ask) AppendTo(b []byte) []byte {
	return appendFrame(b, TypeAsk, 0, u64(f.Request), u16(uint16(f.To)), u32(f.UID))
}

// ParseAsk parses an Ask that fills body exactly. The port is not 0.
func ParseAsk(flags uint8, body []byte) (Ask, error) {
	d := decode(body, flags, 0)
	f := Ask{Request: d.U64(), To: d.port(), UID: d.U32()}
	d.Require(f.To != 0)
	return result(&d, f)
}

// AppendTo appends the encoded frame to b. A longer By is cut.
//
//	 0         8         10        12       14
//	+---------+---------+---------+--------+--------+
//	| request | waiting | backlog | length | by ... |
//	+---------+---------+---------+--------+--------+
func (f Answer) AppendTo(b []byte) []byte {
	flags := flag(f.Allowed, flagAllowed) | flag(f.Listening, flagListening)
	return appendTextFrame(b, TypeAnswer, flags, f.By, u64(f.Request), u16(f.Waiting), u16(f.Backlog))
}

// ParseAnswer parses an Answer that fills body exactly. By is printable.
func ParseAnswer(flags uint8, body []byte) (Answer, error) {
	d := decode(body, flags, flagAllowed|flagListening)
	f := Answer{
		Request:   d.U64(),
		Allowed:   flags&flagAllowed != 0,
		Listening: flags&flagListening != 0,
		Waiting:   d.U16(),
		Backlog:   d.U16(),
		By:        d.reason(),
	}
	d.Require(!strings.ContainsFunc(f.By, func(r rune) bool { return !unicode.IsPrint(r) }))
	return result(&d, f)
}
