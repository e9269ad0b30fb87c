package wire

import "github.com/fabricd/fabricd/fabric/addr"

// Of the control stream, since version 6: the links of a node.
const (
	TypeAskLinks Type = 26
	TypeLinks    Type = 27
)

// MaxLinkRows bounds the rows of a Links.
const MaxLinkRows = 64

const (
	linkRowLen   = 26
	wholeLoss    = 10_000 // all packets, in LinkRow.Loss
	flagFallback = 1 << 0 // LinkRow
)

// The carrier of a link, in a LinkRow.
const (
	CarrierOther uint8 = iota
	CarrierQUIC
	CarrierTCP
)

// AskLinks asks for the peer's links. Links answers.
type AskLinks struct{ Request uint64 }

// Links answers an AskLinks with its number.
type Links struct {
	Request uint64
	Rows    []LinkRow // by node, each once; there may be more
}

// A LinkRow is a link as one of its ends measures it. Times are in the units of their names.
type LinkRow struct {
	Peer        addr.Incarnation
	Carrier     uint8
	Fallback    bool // a preferred provider was tried and did not reach the peer
	SilentMS    uint32
	RoundTripUS uint32 // smoothed; 0: none yet
	DeviationUS uint32
	ShortestUS  uint32
	Loss        uint16 // lately, in parts of 10,000
}

// AppendTo appends the encoded frame to b.
func (f AskLinks) AppendTo(b []byte) []byte { return appendFrame(b, TypeAskLinks, 0, u64(f.Request)) }

// ParseAskLinks parses an AskLinks that fills body exactly.
func ParseAskLinks(flags uint8, body []byte) (AskLinks, error) {
	d := decode(body, flags, 0)
	return result(&d, AskLinks{d.U64()})
}

// AppendTo appends the encoded frame to b, with the first MaxLinkRows rows.
//
//	 0         8       9      15        16      17       21      25          29         33     35
//	+---------+-------+------+---------+-------+--------+-------+-----------+----------+------+-----
//	| request | count | incarnation | carrier | flags | silent | round | deviation | shortest | loss | ...
//	+---------+-------+------+---------+-------+--------+-------+-----------+----------+------+-----
func (f Links) AppendTo(b []byte) []byte {
	start := len(b)
	rows := f.Rows[:min(len(f.Rows), MaxLinkRows)]
	b = appendFrame(b, TypeLinks, 0, u64(f.Request), u8(uint8(len(rows))))
	for _, r := range rows {
		b = appendIncarnation(b, r.Peer)
		b = append(b, r.Carrier, flag(r.Fallback, flagFallback))
		for _, v := range []uint32{r.SilentMS, r.RoundTripUS, r.DeviationUS, r.ShortestUS} {
			b = order.AppendUint32(b, v)
		}
		b = order.AppendUint16(b, r.Loss)
	}
	return end(b, start)
}

// ParseLinks parses a Links that fills body exactly.
func ParseLinks(flags uint8, body []byte) (Links, error) {
	d := decode(body, flags, 0)
	f := Links{Request: d.U64()}
	for range d.Count(MaxLinkRows) {
		r := LinkRow{Peer: d.Incarnation(), Carrier: d.U8()}
		bits := d.U8()
		r.Fallback = bits&flagFallback != 0
		r.SilentMS, r.RoundTripUS, r.DeviationUS, r.ShortestUS, r.Loss = d.U32(), d.U32(), d.U32(), d.U32(), d.U16()
		d.Require(r.Carrier <= CarrierTCP && bits&^flagFallback == 0 && r.Loss <= wholeLoss)
		d.Require(len(f.Rows) == 0 || f.Rows[len(f.Rows)-1].Peer.Node < r.Peer.Node)
		f.Rows = append(f.Rows, r)
	}
	return result(&d, f)
}
