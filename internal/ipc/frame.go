package ipc

import (
	"encoding/binary"
	"fmt"

	"github.com/fabricd/fabricd/internal/status"
)

// The versions of the attach protocol that this implementation speaks.
const (
	VersionMin uint16 = 1
	VersionMax uint16 = 1
)

// Limits of the format.
const (
	headerLen = 16
	maxFrame  = 1 << 16 // bytes of a packet, header included
	maxText   = 512     // bytes of an error's text, of a name, of a reason
	maxStage  = 1 << 20 // bytes that one VWRITETO or VREADFROM moves
	maxLabels = 64      // of a peer's node; more are left out
)

// maxRequests bounds the requests of a session that connect and are not yet
// answered, and those that move bytes; more are answered with status.NoBufs. See
// [bounds] for the others.
const maxRequests = 1024

// An op is what a frame asks for, answers or tells. Numbers are never reused.
type op uint16

// opReply is set in the answer to a request.
const opReply op = 0x8000

const (
	opHello       op = 1
	opBye         op = 2
	opCancel      op = 3
	opSelf        op = 4
	opNodes       op = 5
	opWatch       op = 6
	opOpen        op = 7
	opClose       op = 8
	opBind        op = 9
	opListen      op = 10
	opConnect     op = 11
	opTryConnect  op = 12
	opAccept      op = 13
	opTryAccept   op = 14
	opReady       op = 15
	opMemAdd      op = 16
	opMemDrop     op = 17
	opRegister    op = 18
	opUnregister  op = 19
	opWriteTo     op = 20
	opReadFrom    op = 21
	opVWriteTo    op = 22
	opVReadFrom   op = 23
	opAtomic      op = 24
	opMmap        op = 25
	opFenceMark   op = 26
	opFenceWait   op = 27
	opFenceSignal op = 28
	opEnding      op = 29
	opAddress     op = 30
	opMunmap      op = 31
	opChannel     op = 32
	opBell        op = 33
	opJoined      op = 34
	opPostAtomic  op = 36
	opPutSignal   op = 37
	opVPutSignal  op = 38
	opWindow      op = 40
	opEpochs      op = 41
	opRings       op = 42
	opCheck       op = 43
	opShare       op = 50
	opRetire      op = 51

	// Told by the node unasked, with request 0.
	opState     op = 0x4001 // an endpoint's poll events may have changed
	opEvent     op = 0x4002 // a node event
	opSelfState op = 0x4003 // the node's own place in the cluster changed
	opOffer     op = 0x4004 // the peer asks for a channel
	opStale     op = 0x4006 // windows that an endpoint has mapped are withdrawn
	opShared    op = 0x4010 // other applications have memory of the session
)

// Access.
const (
	opListenAllow op = 60
	opPeer        op = 61
)

// The ends of connections.
const (
	opCause op = 62
	opAbort op = 63
)

// Paths.
const opPath op = 64 // asks for the connection's path

// RMA paths.
const (
	opRMAPath   op = 70 // asks for the path
	opNoRMAPath op = 71 // the application cannot use it, or not any more
	opFarWindow op = 72 // tells of a window of a peer on another node
)

const opShut op = 68 // the end of the data socket's write side is a half-close

// A header begins every packet, in little-endian order.
//
//	0      2      4            8                       16
//	+------+------+------------+------------------------+---------+
//	| op   | code | endpoint   | request                | body ...|
//	+------+------+------------+------------------------+---------+
type header struct {
	Op       op
	Code     status.Code // of an answer; 0 otherwise
	Endpoint uint32      // 0: the session
	Request  uint64      // chosen by the application, not 0; 0 in CANCEL and in what the node tells
}

// appendFrame appends a packet with body, which may be nil.
func appendFrame(b []byte, h header, body message) []byte {
	c := coder{b: b, encoding: true}
	c.frame(h, body)
	return c.b
}

// frame appends a packet.
func (c *coder) frame(h header, body message) {
	c.b = binary.LittleEndian.AppendUint16(c.b, uint16(h.Op))
	c.b = binary.LittleEndian.AppendUint16(c.b, uint16(h.Code))
	c.b = binary.LittleEndian.AppendUint32(c.b, h.Endpoint)
	c.b = binary.LittleEndian.AppendUint64(c.b, h.Request)
	if body != nil {
		body.fields(c)
	}
}

// parseFrame splits a packet. The body is part of p.
func parseFrame(p []byte) (h header, body []byte, err error) {
	if len(p) < headerLen {
		return header{}, nil, fmt.Errorf("packet of %d bytes, want at least %d: %w", len(p), headerLen, status.Protocol)
	}
	h = header{
		Op:       op(binary.LittleEndian.Uint16(p)),
		Code:     status.Code(binary.LittleEndian.Uint16(p[2:])),
		Endpoint: binary.LittleEndian.Uint32(p[4:]),
		Request:  binary.LittleEndian.Uint64(p[8:]),
	}
	return h, p[headerLen:], nil
}

// A message is the body of a frame. Its one list of fields both encodes and
// decodes it.
type message interface{ fields(c *coder) }

// parseBody decodes b, which m must fill exactly.
func parseBody(b []byte, m message) error { return new(coder).parse(b, m) }

// parse is parseBody with a coder to be used.
func (c *coder) parse(b []byte, m message) error {
	if m == nil {
		m = empty{}
	}
	*c = coder{b: b}
	m.fields(c)
	if c.bad || len(c.b) != 0 {
		return fmt.Errorf("malformed body of %d bytes: %w", len(b), status.Protocol)
	}
	return nil
}

// parseAnswer decodes the answer to a request, into out if it succeeded.
func parseAnswer(h header, body []byte, out message) error {
	return new(coder).parseAnswer(h, body, out)
}

func (c *coder) parseAnswer(h header, body []byte, out message) error {
	if h.Code == status.OK {
		return c.parse(body, out)
	}
	var r refusal
	if err := parseBody(body, &r); err != nil {
		return err
	}
	if r.Text == "" || r.Text == h.Code.Error() {
		return h.Code
	}
	return Failure(h.Code, "%s", r.Text)
}

// A coder appends fields to b or takes them from it. After a field that does
// not fit, every field decodes as zero.
type coder struct {
	b        []byte
	encoding bool
	bad      bool
}

// take returns the next n bytes, nil when there are not as many.
func (c *coder) take(n int) []byte {
	if c.bad || len(c.b) < n {
		c.bad = true
		return nil
	}
	p := c.b[:n]
	c.b = c.b[n:]
	return p
}

func (c *coder) u8(v *uint8) {
	if c.encoding {
		c.b = append(c.b, *v)
	} else if p := c.take(1); p != nil {
		*v = p[0]
	}
}

func (c *coder) u16(v *uint16) {
	if c.encoding {
		c.b = binary.LittleEndian.AppendUint16(c.b, *v)
	} else if p := c.take(2); p != nil {
		*v = binary.LittleEndian.Uint16(p)
	}
}

func (c *coder) u32(v *uint32) {
	if c.encoding {
		c.b = binary.LittleEndian.AppendUint32(c.b, *v)
	} else if p := c.take(4); p != nil {
		*v = binary.LittleEndian.Uint32(p)
	}
}

func (c *coder) u64(v *uint64) {
	if c.encoding {
		c.b = binary.LittleEndian.AppendUint64(c.b, *v)
	} else if p := c.take(8); p != nil {
		*v = binary.LittleEndian.Uint64(p)
	}
}

func (c *coder) i64(v *int64) {
	u := uint64(*v)
	c.u64(&u)
	*v = int64(u)
}

// reserved is n bytes that must be zero.
func (c *coder) reserved(n int) {
	if c.encoding {
		c.b = append(c.b, make([]byte, n)...)
		return
	}
	for _, b := range c.take(n) {
		c.bad = c.bad || b != 0
	}
}

// text is a length of 2 bytes, at most maxText, and as many bytes. Longer text
// is cut when it is encoded.
func (c *coder) text(s *string) {
	if c.encoding {
		cut := (*s)[:min(len(*s), maxText)]
		c.b = binary.LittleEndian.AppendUint16(c.b, uint16(len(cut)))
		c.b = append(c.b, cut...)
		return
	}
	var n uint16
	c.u16(&n)
	if n > maxText {
		c.bad = true
	}
	*s = string(c.take(int(n)))
}

// texts is a count of 2 bytes, at most limit, 2 reserved bytes, and as many
// texts. More are left out when they are encoded.
func (c *coder) texts(list *[]string, limit int) {
	n := uint16(min(len(*list), limit))
	c.u16(&n)
	c.reserved(2)
	if c.encoding {
		for i := range (*list)[:n] {
			c.text(&(*list)[i])
		}
		return
	}
	if int(n) > limit {
		c.bad = true
	}
	for range n {
		var s string
		if c.text(&s); c.bad {
			return
		}
		*list = append(*list, s)
	}
}

// rest is all bytes that are left, at most limit.
func (c *coder) rest(p *[]byte, limit int) {
	if c.encoding {
		c.b = append(c.b, *p...)
		return
	}
	if len(c.b) > limit {
		c.bad = true
	}
	if got := c.take(len(c.b)); len(got) > 0 {
		*p = append([]byte(nil), got...)
	}
}
