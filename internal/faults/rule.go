package faults

import (
	"slices"
	"strings"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

// A Rule is one fault. The zero value of a field is off. A Rule is a value: it
// does not change after it was given to a [Plane].
type Rule struct {
	// ID names the rule in one Plane, which chooses it. Rules that are added
	// have none.
	ID uint64 `json:"id,omitempty"`
	// Name is for people, and for removing rules by name: at most 64 bytes.
	// Several rules may share one.
	Name string `json:"name,omitempty"`

	// From and To are the nodes at the two ends of the directed links that the
	// rule is for. Empty: any node.
	From Nodes `json:"from,omitempty"`
	To   Nodes `json:"to,omitempty"`
	// At is which end acts; empty: every end that has the rule.
	At End `json:"at,omitempty"`
	// On is the traffic that the rule is for. It must be set.
	On Traffic `json:"plane"`

	// Drop, Duplicate, Reorder and Corrupt are probabilities, 0 to 1, per
	// packet. A reordered packet is held back by up to ReorderSpan; of a
	// corrupted one a byte is changed.
	Drop      Probability `json:"drop,omitempty"`
	Duplicate Probability `json:"duplicate,omitempty"`
	Reorder   Probability `json:"reorder,omitempty"`
	Corrupt   Probability `json:"corrupt,omitempty"`

	// Delay is added to the time in flight, and Jitter a random share: the
	// packets of a link overtake each other within it, streams stay in order.
	// Each is at most MaxDelay.
	Delay  Duration `json:"delay,omitempty"`
	Jitter Duration `json:"jitter,omitempty"`
	// Shape is how Jitter is distributed; empty: uniform.
	Shape Shape `json:"shape,omitempty"`

	// Rate is the bandwidth in bytes per second, for each directed link and carrier by itself.
	// Excess traffic waits in Buffer bytes; packets beyond are dropped, streams wait. Buffer 0:
	// DefaultBuffer.
	Rate   Bytes `json:"rate,omitempty"`
	Buffer Bytes `json:"buffer,omitempty"`

	// MTU drops packets of more than so many bytes of UDP payload, without a
	// word, as a black hole of path MTU discovery does.
	MTU int `json:"mtu,omitempty"`

	// Cut lets nothing pass.
	Cut bool `json:"cut,omitempty"`
	// HalfOpen stops established connections, as Cut does, and refuses new ones at once: the
	// machine at the other end has forgotten.
	HalfOpen bool `json:"half_open,omitempty"`
	// Hold keeps everything until the rule ends, and then lets it pass in order: the peer stands
	// still. Packets beyond a socket's buffer are dropped.
	Hold bool `json:"hold,omitempty"`
	// BlockUDP drops every packet; streams pass.
	BlockUDP bool `json:"udp_blocked,omitempty"`
	// Reset ends the connections that are established when the rule begins, and
	// those that are while it lasts.
	Reset bool `json:"reset,omitempty"`

	// After is how long after Add the rule begins. For is how long it lasts
	// from then on; 0: until it is removed. Each is at most MaxLength.
	After Duration `json:"after,omitempty"`
	For   Duration `json:"for,omitempty"`
	// Up and Down make the rule flap: it acts for Up, rests for Down, and so
	// on. Both or none.
	Up   Duration `json:"up,omitempty"`
	Down Duration `json:"down,omitempty"`

	// Seed makes the rule's random choices repeatable. 0: the Plane's seed and the rule's ID do.
	Seed uint64 `json:"seed,omitempty"`
}

// Limits of a Rule.
const (
	MaxName   = 64               // bytes
	MaxNodes  = 1024             // in From and in To
	MaxDelay  = time.Minute      // of Delay and of Jitter
	MaxLength = 24 * time.Hour   // of After, For, Up and Down
	MinFlap   = time.Millisecond // of Up and Down
	MinRate   = 1000             // bytes per second
	MaxRate   = 1 << 40          // bytes per second
	MaxBuffer = 64 << 20         // bytes
	MinMTU    = 64               // bytes
	MaxMTU    = 65535            // bytes

	// DefaultBuffer is the Buffer of a rule that has none, in bytes.
	DefaultBuffer = 256 << 10
	// ReorderSpan bounds how long a reordered packet is held back.
	ReorderSpan = 5 * time.Millisecond
)

// Traffic is a plane of the traffic between nodes.
type Traffic string

// The planes.
const (
	Gossip   Traffic = "gossip"   // packets and streams of the gossip port
	Control  Traffic = "control"  // control sessions and lifelines
	Messages Traffic = "messages" // message streams of connections
	RMA      Traffic = "rma"      // operations streams of connections: RMA, fences, windows
	Link     Traffic = "link"     // all of a data link: messages, RMA, heartbeats
	All      Traffic = "all"      // all of the above
)

// Planes lists every Traffic.
var Planes = []Traffic{Gossip, Control, Messages, RMA, Link, All}

// Includes reports whether a rule on t is for the traffic of u, which is one of Gossip, Control,
// Messages, RMA and Link. Traffic of a link and no connection, and the packets of a link, are of
// Link.
func (t Traffic) Includes(u Traffic) bool {
	return t == u || t == All || t == Link && (u == Messages || u == RMA)
}

// An End is which end of a directed link enforces a rule.
type End string

// The ends.
const (
	AtBoth End = ""     // every node that has the rule and is in From or To
	AtFrom End = "from" // the sender
	AtTo   End = "to"   // the receiver
)

// A Shape is the distribution of jitter.
type Shape string

// The shapes.
const (
	Uniform     Shape = "uniform"     // from 0 to Jitter
	Normal      Shape = "normal"      // mean Jitter/2, deviation Jitter/6, cut to 0 … Jitter
	Exponential Shape = "exponential" // mean Jitter/4, cut to 0 … Jitter: mostly short, sometimes long
)

// Nodes is a set of node IDs; an empty one is any node.
type Nodes []addr.NodeID

// Has reports whether the set has id. The empty set has every ID, that of no
// node included.
func (n Nodes) Has(id addr.NodeID) bool { return len(n) == 0 || slices.Contains(n, id) }

// A Carrier is the kind of transport of a piece of traffic.
type Carrier uint8

// The carriers.
const (
	Packets Carrier = iota // datagrams: may be lost, and overtake each other
	Stream                 // reliable and in order
)

// A Way is one direction of one plane between two nodes.
type Way struct {
	From, To addr.NodeID
	On       Traffic // Gossip, Control, Messages, RMA or Link
	Carrier  Carrier
}

// back returns the opposite direction.
func (w Way) back() Way {
	w.From, w.To = w.To, w.From
	return w
}

// Covers reports whether the rule is for w.
func (r *Rule) Covers(w Way) bool {
	return r.On.Includes(w.On) && r.From.Has(w.From) && r.To.Has(w.To)
}

// enforced reports whether the rule is enforced at an end of w: at the sender
// if sending, else at the receiver.
func (r *Rule) enforced(sending bool) bool {
	switch r.At {
	case AtFrom:
		return sending
	case AtTo:
		return !sending
	}
	return true
}

// Stops reports whether the rule lets nothing pass in w.
func (r *Rule) Stops(c Carrier) bool {
	return r.Cut || r.HalfOpen || r.Hold || c == Packets && r.BlockUDP
}

// Acts returns whether the rule acts at age, the time since it was added, and
// when that changes next; zero: never.
func (r *Rule) Acts(age time.Duration) (acts bool, next time.Duration) {
	begin := time.Duration(r.After)
	if age < begin {
		return false, begin
	}
	end := time.Duration(0)
	if r.For > 0 {
		end = begin + time.Duration(r.For)
		if age >= end {
			return false, 0
		}
	}
	if r.Up == 0 {
		return true, end
	}
	up, period := time.Duration(r.Up), time.Duration(r.Up+r.Down)
	in := (age - begin) % period
	if acts = in < up; acts {
		next = age + up - in
	} else {
		next = age + period - in
	}
	if end != 0 && end < next {
		next = end
	}
	return acts, next
}

// Over reports whether the rule's time has passed at age.
func (r *Rule) Over(age time.Duration) bool {
	return r.For > 0 && age >= time.Duration(r.After+r.For)
}

// String describes the rule in one line, as `fabricd faults list` does.
func (r Rule) String() string {
	parts := []string{string(r.On), r.From.String() + "→" + r.To.String()}
	parts = append(parts, r.effects()...)
	if r.Up > 0 {
		parts = append(parts, "up "+r.Up.String()+" down "+r.Down.String())
	}
	if r.After > 0 {
		parts = append(parts, "after "+r.After.String())
	}
	if r.For > 0 {
		parts = append(parts, "for "+r.For.String())
	}
	if r.At != AtBoth {
		parts = append(parts, "at "+string(r.At))
	}
	return strings.Join(parts, " ")
}

// effects returns the rule's effects, one word or two for each fault.
func (r *Rule) effects() []string {
	var all []string
	add := func(on bool, name, value string) {
		if on {
			all = append(all, strings.TrimSpace(name+" "+value))
		}
	}
	add(r.Cut, "cut", "")
	add(r.HalfOpen, "half-open", "")
	add(r.Hold, "hold", "")
	add(r.BlockUDP, "udp-blocked", "")
	add(r.Reset, "reset", "")
	add(r.Drop > 0, "drop", r.Drop.String())
	add(r.Duplicate > 0, "duplicate", r.Duplicate.String())
	add(r.Reorder > 0, "reorder", r.Reorder.String())
	add(r.Corrupt > 0, "corrupt", r.Corrupt.String())
	add(r.Delay > 0, "delay", r.Delay.String())
	add(r.Jitter > 0, "jitter", r.Jitter.String())
	add(r.Shape != "", "shape", string(r.Shape))
	add(r.Rate > 0, "rate", r.Rate.String()+"/s")
	add(r.Buffer > 0, "buffer", r.Buffer.String())
	add(r.MTU > 0, "mtu", Bytes(r.MTU).String())
	return all
}
