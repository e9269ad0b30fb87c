package core

import (
	"bytes"
	"fmt"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/wire"
)

// A LinkEnd is one end of a link as a HELLO names it.
type LinkEnd struct {
	Cluster     addr.UUID
	Incarnation addr.Incarnation
	UUID        addr.UUID
	Epoch       uint64
	Term        uint64
}

// NewHello returns the HELLO with which self opens a link to peer.
func NewHello(self, peer LinkEnd) wire.Hello {
	return wire.Hello{
		VersionMin: wire.VersionMin, VersionMax: wire.VersionMax,
		Cluster: self.Cluster, Term: self.Term,
		From: self.Incarnation, FromUUID: self.UUID, FromEpoch: self.Epoch,
		To: peer.Incarnation,
	}
}

// NewAnswer returns the HELLO with which self answers h, which CheckHello has accepted:
// it has the highest version that both support.
func NewAnswer(h wire.Hello, self, peer LinkEnd) wire.Hello {
	a := NewHello(self, peer)
	a.Answer = true
	a.VersionMax = min(a.VersionMax, h.VersionMax)
	a.VersionMin = a.VersionMax
	return a
}

// ChooseVersion returns the highest version that both ranges hold.
func ChooseVersion(minA, maxA, minB, maxB uint16) (uint16, error) {
	v := min(maxA, maxB)
	if v < max(minA, minB) {
		return 0, fmt.Errorf("%w: here %d to %d, peer %d to %d", status.Version, minA, maxA, minB, maxB)
	}
	return v, nil
}

// Proof is the identity that the certificate of a session's other end proved.
type Proof struct {
	UUID addr.UUID
	Host bool // it may be the host
}

// CheckHello decides whether self may link with the sender of h, whose
// certificate proved proven. known is membership's entry
// for the sender's ID; its Incarnation.Generation is 0 if there is no live node of
// that ID. It fences both incarnations: a HELLO from or for any other incarnation is refused.
func CheckHello(h wire.Hello, self, known LinkEnd, proven Proof) error {
	if _, err := ChooseVersion(wire.VersionMin, wire.VersionMax, h.VersionMin, h.VersionMax); err != nil {
		return err
	}
	switch {
	case h.Cluster != self.Cluster:
		return refusal(status.Access, "cluster %v is not ours, %v", h.Cluster, self.Cluster)
	case h.FromUUID != proven.UUID:
		return refusal(status.Access, "node %v speaks with the certificate of node %v", h.FromUUID, proven.UUID)
	case h.From.Node == addr.Host && !proven.Host:
		return refusal(status.Access, "node %v claims to be the host without a host certificate", h.FromUUID)
	case h.To != self.Incarnation:
		return refusal(status.NoDevice, "node %d.%d is not here, this is %v", h.To.Node, h.To.Generation, self.Incarnation)
	case h.From.Generation < known.Incarnation.Generation:
		return refusal(status.Reset, "incarnation %v is over, node %d is in generation %d", h.From, h.From.Node, known.Incarnation.Generation)
	case h.From != known.Incarnation:
		return refusal(status.NoDevice, "incarnation %v is not in the node table", h.From)
	case h.FromUUID != known.UUID:
		return refusal(status.Access, "ID %d is leased to node %v, not to %v", h.From.Node, known.UUID, h.FromUUID)
	case h.FromEpoch != known.Epoch:
		return refusal(status.Reset, "node %d started again since epoch %d", h.From.Node, h.FromEpoch)
	}
	return nil
}

func refusal(code status.Code, format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{code}, args...)...)
}

// KeepsDialed reports which of two sessions between the same incarnations stays: the
// one that the node with the lower UUID dialed. It is true if that is a's.
func KeepsDialed(a, b addr.UUID) bool { return bytes.Compare(a[:], b[:]) < 0 }

// RefusesDialed decides about a session that peer dialed while self may have
// one, or be dialing one: linked means that the pair has a link, dialed that
// self dialed it, dialing that self is about to. The session that the lower
// UUID dialed stays; but a peer that dials although there is a link that it
// dialed itself has lost that one.
func RefusesDialed(self, peer addr.UUID, linked, dialed, dialing bool) bool {
	ours := linked && dialed || !linked && dialing
	return ours && KeepsDialed(self, peer)
}

// KeepaliveTimes are the intervals and bounds of a link's heartbeats. All are positive.
type KeepaliveTimes struct {
	Heartbeat time.Duration // between two heartbeats
	Fence     time.Duration // how long a confirmation of both incarnations lasts
	Silence   time.Duration // after which silence is reported as evidence
	Dead      time.Duration // after which the link is given up; > Silence
}

// A Liveness judges one link by its heartbeats. Times are readings of one
// monotonic clock. It reports whether the peer is silent, and whether the peer's
// operations may be applied: while it was confirmed less than Fence ago that both ends
// are still the incarnations that the link joined.
type Liveness struct {
	times       KeepaliveTimes
	lastArrival time.Duration // the last arrival of anything
	confirmed   time.Duration // sending time of the last heartbeat that was answered
	sent        time.Duration // the last heartbeat sent
	due         time.Duration // by when the next tick has to come
	extra       time.Duration // when to send one beside the regular ones; 0: none
	extras      int           // of those, so far
	reported    bool          // silence was reported and nothing came since
	alive       bool          // an answer has come, and no silence was reported since
}

// NewLiveness returns the liveness of a link that was established at now by a HELLO
// round trip begun at begun.
func NewLiveness(times KeepaliveTimes, begun, now time.Duration) Liveness {
	return Liveness{times: times, lastArrival: now, confirmed: begun, sent: begun, due: now + times.Heartbeat}
}

// Received records that something arrived.
func (p *Liveness) Received(now time.Duration) {
	p.lastArrival = max(p.lastArrival, now)
	p.reported = false
}

// Confirm records the answer to a heartbeat or probe that was sent at sent. An
// answer that claims a future sending time is not believed. It reports whether
// that is to be reported as evidence: it is the first answer on the link,
// or the first since its silence was reported.
func (p *Liveness) Confirm(sent, now time.Duration) (report bool) {
	if sent <= now {
		p.confirmed = max(p.confirmed, sent)
	}
	p.Received(now)
	report, p.alive = !p.alive, true
	return report
}

// Fresh reports whether operations of the peer may be applied at now.
func (p *Liveness) Fresh(now time.Duration) bool { return now <= p.FreshUntil() }

// FreshUntil returns until when operations of the peer may be applied.
func (p *Liveness) FreshUntil() time.Duration { return p.confirmed + p.times.Fence }

// Doubt takes back every confirmation: this process noticed that it stood
// still. Only the answer to something sent less than Fence ago restores one.
func (p *Liveness) Doubt(now time.Duration) { p.confirmed = min(p.confirmed, now-p.times.Fence-1) }

// Silent returns the time since the last arrival.
func (p *Liveness) Silent(now time.Duration) time.Duration { return now - p.lastArrival }

// A TickAction is the action of a link at a tick.
type TickAction struct {
	Send   bool // a heartbeat
	Report bool // silence, as evidence
	Dead   bool // give the link up
	// Again, if positive, is when to tick once more: before the next heartbeat
	// the link is to be given up, or one is to be sent beside the regular ones.
	Again time.Duration
}

// Tick returns the action due at now. It is called at least once a heartbeat, and when
// [TickAction.Again] asks for it: by as much as it is late, this process stood still,
// and that is no evidence about the peer. Of a peer that is silent it asks once more
// between two heartbeats, at another part of the interval each time: a network
// that comes and goes at the pace of the heartbeats would lose them all.
func (p *Liveness) Tick(now time.Duration) (b TickAction) {
	p.forgive(now)
	silent := p.Silent(now)
	switch {
	case now-p.sent >= p.times.Heartbeat:
		p.sent, b.Send = now, true
		if silent > p.times.Heartbeat*5/4 { // and not just a tick that is late
			p.extra = now + p.times.Heartbeat*between[p.extras%len(between)]/8
			p.extras++
		}
	case p.extra > 0 && now >= p.extra:
		p.extra, b.Send = 0, true
	}
	if silent >= p.times.Silence && !p.reported {
		p.reported, p.alive, b.Report = true, false, true
	}
	b.Dead = silent >= p.times.Dead
	if left := p.times.Dead - silent; left > 0 && left < p.times.Heartbeat {
		b.Again = left
	}
	if p.extra > now && (b.Again == 0 || p.extra-now < b.Again) {
		b.Again = p.extra - now
	}
	p.expect(now, b)
	return b
}

// between are the parts of an interval, in eighths, at which a silent peer is
// asked, one after the other.
var between = [...]time.Duration{4, 2, 6, 1, 5, 3, 7}

// forgive takes a standstill of this process off the silence: frames that came meanwhile
// have not been read yet, and the peer's answers were never asked for. A
// tick that is a little late is not one. Confirmations are not renewed.
func (p *Liveness) forgive(now time.Duration) {
	if late := now - p.due; late > p.times.Heartbeat/2 {
		p.lastArrival = min(p.lastArrival+late, now)
	}
}

// expect sets by when the next tick has to come: the one of the next heartbeat, or
// one that b asks for before that.
func (p *Liveness) expect(now time.Duration, b TickAction) {
	p.due = now + p.times.Heartbeat
	if b.Again > 0 {
		p.due = min(p.due, now+b.Again)
	}
}

// A Keepalive is the liveness of a link between two incarnations, with the frames that keep it, which the
// caller sends. A frame of the peer that names other incarnations has no effect.
type Keepalive struct {
	Liveness
	Self, Peer addr.Incarnation
	nonce      uint64        // of the last probe
	asked      time.Duration // when it was sent
	asking     bool          // it has not been answered
}

// Heartbeat returns the heartbeat with number seq.
func (k *Keepalive) Heartbeat(seq uint64, now time.Duration) []byte {
	return wire.Heartbeat{Seq: seq, Sent: uint64(now), From: k.Self, To: k.Peer}.AppendTo(make([]byte, 0, wire.HeartbeatLen))
}

// Ask returns a Probe for the control stream, which is reliable: it asks the peer for a
// confirmation. It returns nil while one is under way.
func (k *Keepalive) Ask(now time.Duration) []byte {
	if k.asking {
		return nil
	}
	k.asking, k.asked = true, now
	k.nonce++
	return wire.Probe{Nonce: k.nonce, From: k.Self, To: k.Peer}.AppendTo(nil)
}

// A FrameEffect is the effect of a frame of the peer; the zero value is none.
type FrameEffect struct {
	Reply     []byte        // to send where the frame came from: as a datagram, or on the control stream, if there is one
	Confirmed bool          // the peer has confirmed both incarnations
	Report    bool          // and that is to be reported as evidence
	Resume    bool          // operations that wait for a confirmation ask again
	Seq       uint64        // of the heartbeat that was answered; 0: none
	Sent      time.Duration // when that was sent
}

// Datagram takes a datagram. One that is neither a heartbeat nor its answer is dropped:
// nothing depends on one.
func (k *Keepalive) Datagram(p []byte, now time.Duration) (h FrameEffect) {
	if f, err := wire.ParseHeartbeat(p); err == nil && k.names(f.From, f.To) {
		k.Received(now)
		h.Reply = wire.HeartbeatAck{Seq: f.Seq, Sent: f.Sent, From: f.To, To: f.From}.AppendTo(make([]byte, 0, wire.HeartbeatLen))
	} else if f, err := wire.ParseHeartbeatAck(p); err == nil && k.names(f.From, f.To) {
		sent := time.Duration(f.Sent)
		h = FrameEffect{Confirmed: true, Report: k.Confirm(sent, now), Resume: k.Fresh(now), Seq: f.Seq, Sent: sent}
	}
	return h
}

// Control takes a Probe or a ProbeAck from the control stream.
func (k *Keepalive) Control(head wire.Header, body []byte, now time.Duration) (h FrameEffect, err error) {
	f, err := wire.ParseProbe(head.Flags, body) // a ProbeAck is laid out like one
	switch {
	case err != nil || !k.names(f.From, f.To):
	case head.Type == wire.TypeProbe:
		h.Reply = wire.ProbeAck{Nonce: f.Nonce, From: f.To, To: f.From}.AppendTo(nil)
	case k.asking && f.Nonce == k.nonce:
		k.asking = false
		h = FrameEffect{Confirmed: true, Report: k.Confirm(k.asked, now), Resume: true} // also where the answer itself was late
	}
	return h, err
}

// names reports whether a frame from the peer names the two incarnations of the link.
func (k *Keepalive) names(from, to addr.Incarnation) bool { return from == k.Peer && to == k.Self }
