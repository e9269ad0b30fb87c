package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/core"
	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/wire"
)

func (n *Node) pulseTimes() core.PulseTimes {
	return core.PulseTimes{Heartbeat: n.cfg.Heartbeat, Fence: n.cfg.Fence,
		Silence: n.cfg.SilenceBound, Dead: n.cfg.GiveUp}
}

// beat is the goroutine that keeps the pulse of every link. Without links it
// sleeps.
func (n *Node) beat() {
	for {
		select {
		case <-n.linked:
			n.beatLinks()
		case <-n.done:
			return
		}
	}
}

// beatLinks keeps the pulse until there is no link to another node.
func (n *Node) beatLinks() {
	t := time.NewTicker(n.cfg.Heartbeat)
	defer t.Stop()
	for n.ties() {
		select {
		case <-t.C:
		case <-n.done:
			return
		}
		now := n.now()
		for _, l := range n.allLinks() {
			l.tick(now)
		}
		n.watchPaths(now)
		n.endExpired(n.cfg.Now())
		n.tend(now)
	}
}

// errExpired ends the link to a peer that has not renewed its certificate.
var errExpired = errors.New("the peer's certificate has expired")

// endExpired ends the links to peers that have no certificate valid at now. The
// one that a session was opened with may end later than the one that membership
// knows of: the table may be behind.
func (n *Node) endExpired(now time.Time) {
	n.mu.Lock()
	var over []*link
	for l := range n.links {
		p := n.peers[l.peer.Life.Node]
		if l.twin != nil || p == nil || !slices.Contains(p.links, l) || p.Until.IsZero() {
			continue
		}
		if now.After(p.Until) && now.After(l.sess.Peer().Until) {
			over = append(over, l)
		}
	}
	n.mu.Unlock()
	for _, l := range over {
		l.fail(transport.CodeWrongCluster, errExpired)
	}
}

// ties reports whether there is a link to another node.
func (n *Node) ties() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for l := range n.links {
		if l.twin == nil {
			return true
		}
	}
	return false
}

// tick performs the actions that the link's pulse asks for.
func (l *link) tick(now time.Duration) {
	if l.twin != nil {
		return
	}
	came := l.sess.Heard()
	l.mu.Lock()
	if l.end.begun {
		l.mu.Unlock()
		return
	}
	l.hearBytes(came, now)
	b, quiet := l.pulse.Tick(now), l.pulse.Silent(now)
	if l.quality.loss.due(now) {
		l.quality.loss.look(l.sess.Traffic(), now)
	}
	l.mu.Unlock()
	if b.Send {
		l.sendBeat(l.pings.next())
	}
	if b.Report {
		l.silence.Store(silent)
	}
	l.tellSilence()
	if b.Again > 0 {
		l.spawn(func() { l.tickIn(b.Again) })
	}
	if b.Dead {
		l.fail(transport.CodeOK, silentFor(quiet))
	}
}

// States of a link's silence.
const (
	heard      = iota // the peer is
	silent            // nothing has come for the silence bound
	silentTold        // and that was reported as evidence
)

// tellSilence reports a silent link as evidence, once, unless the peer is heard over
// another one: the silence of one of two links is not the node's. It is
// reported later, when the other one is silent too or has ended.
func (l *link) tellSilence() {
	if l.silence.Load() == silent && !l.n.hears(l.peer.Life) && l.silence.CompareAndSwap(silent, silentTold) {
		l.n.report(l.peer.Life, LinkSilent)
	}
}

// hears reports whether there is a link with a life that is not silent.
func (n *Node) hears(life addr.Life) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.peers[life.Node]
	return p != nil && p.Life == life && slices.ContainsFunc(p.links, func(l *link) bool { return l.silence.Load() == heard })
}

// silentFor is why a link ends over which nothing has come for d.
func silentFor(d time.Duration) error { return fmt.Errorf("link silent %.1f s", d.Seconds()) }

// hearBytes takes bytes that have come since the last look for a sign of life: those
// of a slow network hold up the heartbeats behind them. They came after that look, so
// no silence is found to be shorter than it is. The caller holds mu.
func (l *link) hearBytes(came uint64, now time.Duration) {
	if came != l.quality.arrived.bytes {
		l.pulse.Hear(l.quality.arrived.at)
		l.silence.Store(heard)
	}
	l.quality.arrived.bytes, l.quality.arrived.at = came, now
}

// tickIn ticks in d, unless the link has ended by then.
func (l *link) tickIn(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		l.tick(l.n.now())
	case <-l.end.down:
	}
}

// sendBeat sends a heartbeat.
func (l *link) sendBeat(seq uint64) {
	hb := wire.Heartbeat{Seq: seq, Sent: uint64(l.n.now()), From: l.self, To: l.peer.Life}
	// The silence bound covers a lost heartbeat; an ended session is
	// reported by its own watcher.
	_ = l.sess.SendDatagram(hb.AppendTo(make([]byte, 0, wire.HeartbeatLen)))
}

func (l *link) heard() {
	now := l.n.now()
	l.mu.Lock()
	l.pulse.Hear(now)
	l.silence.Store(heard)
	l.mu.Unlock()
}

// names reports whether a frame from the peer names the two lives of the link.
func (l *link) names(from, to addr.Life) bool {
	return from == l.peer.Life && to == l.self
}

// readDatagrams answers heartbeats and takes answers. Anything else in a
// datagram is dropped: nothing depends on one.
func (l *link) readDatagrams() {
	ctx := contextUntil(l.end.down)
	for {
		p, err := l.sess.ReceiveDatagram(ctx)
		if err != nil {
			return // the session's end, which others report
		}
		if hb, err := wire.ParseHeartbeat(p); err == nil && l.names(hb.From, hb.To) {
			l.heard()
			ack := wire.HeartbeatAck{Seq: hb.Seq, Sent: hb.Sent, From: hb.To, To: hb.From}
			_ = l.sess.SendDatagram(ack.AppendTo(p[:0]))
		} else if ack, err := wire.ParseHeartbeatAck(p); err == nil && l.names(ack.From, ack.To) {
			l.confirmed(ack.Seq, time.Duration(ack.Sent))
		}
	}
}

// confirmed records that the peer answered the heartbeat or probe sent at sent.
func (l *link) confirmed(seq uint64, sent time.Duration) {
	now := l.n.now()
	l.mu.Lock()
	news := l.pulse.Confirm(sent, now)
	l.serveOn(now)
	if sent <= now { // a peer may claim another time
		l.quality.trips.add(now - sent)
		l.n.counters.count(func(c *Counters) { c.RoundTrips.observe(now - sent) })
	}
	smoothed := l.quality.trips.smoothed
	l.mu.Unlock()
	l.pings.answer(seq, now-sent)
	l.n.measured(l.peer.Life, smoothed)
	if news { // earlier evidence about the link, or the one before it, is void
		l.n.report(l.peer.Life, LinkAlive)
	}
}

// Ping measures the round trip to a node over its link, dialing it first if
// there is none. The error is status.NoDevice if the node is not live or
// cannot be reached.
func (n *Node) Ping(ctx context.Context, node addr.NodeID) (time.Duration, error) {
	for try := 1; ; try++ {
		l, err := n.linkTo(ctx, node)
		if err != nil || l.twin != nil {
			return 0, err
		}
		rtt, err := l.ping(ctx)
		if err != errLinkDown || !n.mayPass(l) || try == linkTries {
			return rtt, err
		}
	}
}

// mayPass reports whether a request that failed with l, which has ended, may use another link.
func (n *Node) mayPass(l *link) bool { return anotherLinkMayDo(l.end.err) || n.hears(l.peer.Life) }

// ping measures a round trip. The error is errLinkDown if the link ends first.
func (l *link) ping(ctx context.Context) (time.Duration, error) {
	l.use()
	seq, reply := l.pings.ask()
	defer l.pings.forget(seq)
	l.sendBeat(seq)
	select {
	case rtt := <-reply:
		return rtt, nil
	case <-l.end.down:
		return 0, errLinkDown
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}
