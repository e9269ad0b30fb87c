// Package proto is the attach protocol as both its ends use it: frames, messages, limits, and the
// coder, which encodes and decodes with one list of fields. SPEC.md is for clients in other
// languages. The ends are internal/attach/client and internal/attach/server.
package proto

import (
	"fmt"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/codec"
	"github.com/fabricd/fabricd/internal/status"
)

// The versions of the attach protocol that this implementation speaks.
const (
	VersionMin uint16 = 1
	VersionMax uint16 = 1
)

// Limits of the format.
const (
	HeaderLen = 16
	MaxFrame  = 1 << 16 // bytes of a packet, header included
	maxText   = 512     // bytes of an error's text, a name or a reason
	MaxStage  = 1 << 20 // bytes that one VWRITETO or VREADFROM transfers
	MaxLabels = 64      // of a peer's node; further ones are left out
)

// MaxRequests bounds the unanswered requests of a session: separately those that connect and those
// that move bytes. Further ones are answered with status.NoBufs. See [bounds] for the other kinds.
const MaxRequests = 1024

// An Op identifies a request, its answer or a notification. Numbers are never reused.
type Op uint16

// OpReply is set in the answer to a request.
const OpReply Op = 0x8000

const (
	OpHello       Op = 1  // opens the session: versions and the node's identity
	OpBye         Op = 2  // ends the session, and every endpoint as OpAbort does
	OpCancel      Op = 3  // gives up a request; it has no answer
	OpSelf        Op = 4  // the node's own identity
	OpNodes       Op = 5  // the set of live nodes
	OpWatch       Op = 6  // begins or ends OpEvent
	OpOpen        Op = 7  // a new endpoint
	OpClose       Op = 8  // closes an endpoint
	OpBind        Op = 9  // gives an endpoint its port
	OpListen      Op = 10 // makes an endpoint a listener
	OpConnect     Op = 11 // connects, and waits
	OpTryConnect  Op = 12 // begins to connect, or asks how that ended
	OpAccept      Op = 13 // accepts a connection, and waits
	OpTryAccept   Op = 14 // accepts a connection that is there
	OpReady       Op = 15 // an endpoint's poll events
	OpMemAdd      Op = 16 // gives the node memory of the session
	OpMemDrop     Op = 17 // takes memory back from the node
	OpRegister    Op = 18 // registers a window
	OpUnregister  Op = 19 // unregisters windows
	OpWriteTo     Op = 20 // writes from a window to the peer's
	OpReadFrom    Op = 21 // reads from the peer's window to a window
	OpVWriteTo    Op = 22 // writes from memory to the peer's window
	OpVReadFrom   Op = 23 // reads from the peer's window to memory
	OpAtomic      Op = 24 // an atomic operation on a word of the peer's window
	OpMmap        Op = 25 // maps the peer's window
	OpFenceMark   Op = 26 // marks the operations so far
	OpFenceWait   Op = 27 // waits until a mark is reached
	OpFenceSignal Op = 28 // stores words when the operations so far have ended
	OpEnding      Op = 29 // how the peer's bytes ended
	OpAddress     Op = 30 // an endpoint's local address
	OpMunmap      Op = 31 // gives up a mapping
	OpShmPath     Op = 32 // asks for a shared-memory path with the peer
	OpDoorbell    Op = 33 // asks for a doorbell of a shared-memory path
	OpJoined      Op = 34 // the application uses the shared-memory path or the path, or cannot
	OpPostAtomic  Op = 36 // OpAtomic without the old word
	OpPutSignal   Op = 37 // OpWriteTo and a signal behind it
	OpVPutSignal  Op = 38 // OpVWriteTo and a signal behind it
	OpWindow      Op = 40 // the memory of a peer's window on this node
	OpEpochs      Op = 41 // the memory with the epochs of windows
	OpRings       Op = 42 // settings of shared-memory paths
	OpCheck       Op = 43 // checks a range of the peer's windows
	OpShare       Op = 50 // begins or ends sharing with other users
	OpRetire      Op = 51 // OpMemDrop, refused while a window is open on the memory

	// Notifications of the node, with request 0.
	OpState     Op = 0x4001 // an endpoint's poll events may have changed
	OpEvent     Op = 0x4002 // a node event
	OpSelfState Op = 0x4003 // the node's own identity in the cluster changed
	OpOffer     Op = 0x4004 // the peer asks for a shared-memory path
	OpStale     Op = 0x4006 // windows that an endpoint has mapped are invalidated
	OpShared    Op = 0x4010 // other applications have memory of the session mapped
)

// Access.
const (
	OpListenAllow Op = 60 // OpListen with the callers that may connect
	OpPeer        Op = 61 // the other end of a connection
)

// The ends of connections.
const (
	OpCause Op = 62 // why a connection ended
	OpAbort Op = 63 // ends a connection at once, with a cause
)

// Paths.
const (
	OpPath     Op = 64 // asks for the connection's path
	OpPathRest Op = 69 // has the node send the path's last bytes
)

// RMA paths.
const (
	OpRMAPath   Op = 70 // asks for the path
	OpNoRMAPath Op = 71 // the application cannot use it, or no longer can
	OpFarWindow Op = 72 // describes a window of a peer on another node
)

const OpShut Op = 68 // the end of the data socket's write side is a half-close

// A Header begins every packet, in little-endian order.
//
//	0      2      4            8                       16
//	+------+------+------------+------------------------+---------+
//	| op   | code | endpoint   | request                | body ...|
//	+------+------+------------+------------------------+---------+
type Header struct {
	Op       Op
	Code     status.Code // of an answer; else 0
	Endpoint uint32      // 0: the session
	Request  uint64      // chosen by the application, not 0; 0 in CANCEL and in notifications
}

// AppendFrame appends a packet with body, which may be nil.
func AppendFrame(b []byte, h Header, body Message) []byte {
	c := encoderTo(b)
	c.frame(h, body)
	return c.put.Encoded()
}

// frame appends a packet.
func (c *Coder) frame(h Header, body Message) {
	c.put.U16(uint16(h.Op))
	c.put.U16(uint16(h.Code))
	c.put.U32(h.Endpoint)
	c.put.U64(h.Request)
	if body != nil {
		body.fields(c)
	}
}

// ParseFrame splits a packet. The body is part of p.
func ParseFrame(p []byte) (h Header, body []byte, err error) {
	if len(p) < HeaderLen {
		return Header{}, nil, fmt.Errorf("packet of %d bytes, want at least %d: %w", len(p), HeaderLen, status.Protocol)
	}
	d := codec.FromLittle(p[:HeaderLen])
	h = Header{Op: Op(d.U16()), Code: status.Code(d.U16()), Endpoint: d.U32(), Request: d.U64()}
	return h, p[HeaderLen:], nil
}

// A Message is the body of a frame. Its one list of fields both encodes and
// decodes it.
type Message interface{ fields(c *Coder) }

// ParseBody decodes b, which m must fill exactly.
func ParseBody(b []byte, m Message) error { return new(Coder).parse(b, m) }

// parse is ParseBody with the caller's coder.
func (c *Coder) parse(b []byte, m Message) error {
	if m == nil {
		m = empty{}
	}
	*c = Coder{got: codec.FromLittle(b)}
	m.fields(c)
	if !c.got.Whole() {
		return fmt.Errorf("malformed body of %d bytes: %w", len(b), status.Protocol)
	}
	return nil
}

// ParseAnswer decodes the answer to a request, into out if it succeeded.
func ParseAnswer(h Header, body []byte, out Message) error {
	return new(Coder).ParseAnswer(h, body, out)
}

// ParseAnswer is [ParseAnswer] with the caller's coder.
func (c *Coder) ParseAnswer(h Header, body []byte, out Message) error {
	if h.Code == status.OK {
		return c.parse(body, out)
	}
	var r Refusal
	if err := ParseBody(body, &r); err != nil {
		return err
	}
	if r.Text == "" || r.Text == h.Code.Error() {
		return h.Code
	}
	return attach.Failure(h.Code, "%s", r.Text)
}

// A Coder encodes or decodes fields. After a field that does not fit, every field decodes as zero.
type Coder struct {
	encoding bool
	put      codec.Encoder // while encoding
	got      codec.Decoder // while decoding
}

// encoderTo returns a Coder that appends to b.
func encoderTo(b []byte) Coder { return Coder{encoding: true, put: codec.ToLittle(b)} }

func (c *Coder) u8(v *uint8) {
	if c.encoding {
		c.put.U8(*v)
	} else {
		*v = c.got.U8()
	}
}

func (c *Coder) u16(v *uint16) {
	if c.encoding {
		c.put.U16(*v)
	} else {
		*v = c.got.U16()
	}
}

func (c *Coder) u32(v *uint32) {
	if c.encoding {
		c.put.U32(*v)
	} else {
		*v = c.got.U32()
	}
}

func (c *Coder) u64(v *uint64) {
	if c.encoding {
		c.put.U64(*v)
	} else {
		*v = c.got.U64()
	}
}

func (c *Coder) i64(v *int64) {
	if c.encoding {
		c.put.U64(uint64(*v))
	} else {
		*v = int64(c.got.U64())
	}
}

// reserved is n bytes that must be zero.
func (c *Coder) reserved(n int) {
	if c.encoding {
		c.put.Reserved(n)
	} else {
		c.got.Reserved(n)
	}
}

// text is a length of 2 bytes, at most maxText, and that many bytes. The encoder truncates a longer
// text.
func (c *Coder) text(s *string) {
	if c.encoding {
		cut := (*s)[:min(len(*s), maxText)]
		c.put.U16(uint16(len(cut)))
		c.put.FixedText(cut)
	} else {
		*s = string(c.got.Bytes(maxText))
	}
}

// texts is a count of 2 bytes, at most limit, 2 reserved bytes, and that many texts. The encoder
// leaves out further ones.
func (c *Coder) texts(list *[]string, limit int) {
	n := uint16(min(len(*list), limit))
	c.u16(&n)
	c.reserved(2)
	if c.encoding {
		for i := range (*list)[:n] {
			c.text(&(*list)[i])
		}
		return
	}
	c.got.Require(int(n) <= limit)
	for range n {
		var s string
		if c.text(&s); !c.got.OK() {
			return
		}
		*list = append(*list, s)
	}
}

// rest is all remaining bytes, at most limit.
func (c *Coder) rest(p *[]byte, limit int) {
	if c.encoding {
		c.put.Fixed(*p)
	} else if got := c.got.Rest(limit); len(got) > 0 {
		*p = append([]byte(nil), got...)
	}
}
