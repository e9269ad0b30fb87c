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
	"github.com/fabricd/fabricd/internal/wait"
)

func (n *Node) keepaliveTimes() core.KeepaliveTimes {
	return core.KeepaliveTimes{Heartbeat: n.cfg.Heartbeat, Fence: n.cfg.Fence,
		Silence: n.cfg.SilenceBound, Dead: n.cfg.GiveUp}
}

// keepAlive is the goroutine that keeps every link alive. Without links it sleeps.
func (n *Node) keepAlive() {
	for {
		select {
		case <-n.linked:
			n.keepLinksAlive()
		case <-n.done:
			return
		}
	}
}

// keepLinksAlive sends heartbeats until there is no link to another node.
func (n *Node) keepLinksAlive() {
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
		n.maintain(now)
	}
}

// errExpired ends the link to a peer that has not renewed its certificate.
var errExpired = errors.New("the peer's certificate has expired")

// endExpired ends the links to peers that have no certificate valid at now. The one that a session
// was opened with may end later than the one that membership knows of: the table may be behind.
func (n *Node) endExpired(now time.Time) {
	n.mu.Lock()
	var over []*link
	for l := range n.links {
		p := n.peers[l.peer.Incarnation.Node]
		if l.otherEnd != nil || p == nil || !slices.Contains(p.links, l) || p.Until.IsZero() {
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
		if l.otherEnd == nil {
			return true
		}
	}
	return false
}

// tick performs the actions that the link's keepalive asks for.
func (l *link) tick(now time.Duration) {
	if l.otherEnd != nil {
		return
	}
	came := l.sess.Arrived()
	l.mu.Lock()
	if l.end.begun {
		l.mu.Unlock()
		return
	}
	l.takeBytes(came, now)
	b, quiet := l.keepalive.Tick(now), l.keepalive.Silent(now)
	if l.quality.loss.due(now) {
		l.quality.loss.look(l.sess.Traffic(), now)
	}
	l.mu.Unlock()
	if b.Send {
		l.sendHeartbeat(l.requests.pings.next())
	}
	if b.Report {
		l.silence.Store(silent)
	}
	l.reportSilence()
	if b.Again > 0 {
		l.spawn(func() { l.tickIn(b.Again) })
	}
	if b.Dead {
		l.fail(transport.CodeOK, silentFor(quiet))
	}
}

// States of a link's silence.
const (
	alive          = iota // the peer is
	silent                // nothing has come for the silence bound
	silentReported        // and that was reported as evidence
)

// reportSilence reports a silent link as evidence, once, unless the peer is alive over
// another one: the silence of one of two links is not the node's. It is
// reported later, when the other one is silent too or has ended.
func (l *link) reportSilence() {
	if l.silence.Load() == silent && !l.n.hasLiveLink(l.peer.Incarnation) && l.silence.CompareAndSwap(silent, silentReported) {
		l.n.report(l.peer.Incarnation, LinkSilent)
	}
}

// hasLiveLink reports whether there is a link with an incarnation that is not silent.
func (n *Node) hasLiveLink(incarnation addr.Incarnation) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.peers[incarnation.Node]
	return p != nil && p.Incarnation == incarnation && slices.ContainsFunc(p.links, func(l *link) bool { return l.silence.Load() == alive })
}

// silentFor is why a link ends over which nothing has come for d.
func silentFor(d time.Duration) error { return fmt.Errorf("link silent %.1f s", d.Seconds()) }

// takeBytes takes bytes that have come since the last look for a sign of life: those
// of a slow network hold up the heartbeats behind them. They came after that look, so
// no silence is found to be shorter than it is. The caller holds mu.
func (l *link) takeBytes(came uint64, now time.Duration) {
	if came != l.quality.arrived.bytes {
		l.keepalive.Received(l.quality.arrived.at)
		l.silence.Store(alive)
	}
	l.quality.arrived.bytes, l.quality.arrived.at = came, now
}

// tickIn ticks in d, unless the link has ended by then.
func (l *link) tickIn(d time.Duration) {
	if wait.For(l.end.down, d) {
		l.tick(l.n.now())
	}
}

// sendHeartbeat sends a heartbeat.
func (l *link) sendHeartbeat(seq uint64) {
	// The silence bound covers a lost heartbeat; an ended session is reported by its own watcher.
	_ = l.sess.SendDatagram(l.keepalive.Heartbeat(seq, l.n.now()))
}

func (l *link) received() {
	now := l.n.now()
	l.mu.Lock()
	l.keepalive.Received(now)
	l.silence.Store(alive)
	l.mu.Unlock()
}

// readDatagrams answers heartbeats and takes answers.
func (l *link) readDatagrams() {
	ctx := contextUntil(l.end.down)
	for {
		p, err := l.sess.ReceiveDatagram(ctx)
		if err != nil {
			return // the session's end, which others report
		}
		reply, _ := l.take(func(now time.Duration) (core.FrameEffect, error) { return l.keepalive.Datagram(p, now), nil })
		if reply != nil {
			_ = l.sess.SendDatagram(reply)
		}
	}
}

// take gives a frame of the peer to the keepalive, and returns the reply, if there is one.
func (l *link) take(frame func(now time.Duration) (core.FrameEffect, error)) (reply []byte, err error) {
	now := l.n.now()
	h, smoothed, err := l.took(frame, now)
	if h.Seq > 0 {
		l.requests.pings.answer(h.Seq, now-h.Sent)
		l.n.measured(l.peer.Incarnation, smoothed)
	}
	if h.Report { // earlier evidence about the link, or the one before it, is void
		l.n.report(l.peer.Incarnation, LinkAlive)
	}
	return h.Reply, err
}

// took is the part of take that needs mu. It returns the link's round trip too.
func (l *link) took(frame func(time.Duration) (core.FrameEffect, error), now time.Duration) (h core.FrameEffect, trip time.Duration, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h, err = frame(now)
	if h.Reply != nil || h.Confirmed {
		l.silence.Store(alive)
		l.freshUntil.Store(int64(l.keepalive.FreshUntil()))
	}
	if h.Resume {
		l.settle()
	}
	if h.Seq > 0 && h.Sent <= now { // a peer may claim another time
		l.quality.trips.add(now - h.Sent)
		l.n.counters.count(func(c *Counters) { c.RoundTrips.observe(now - h.Sent) })
	}
	return h, l.quality.trips.smoothed, err
}

// Ping measures the round trip to a node over its link, dialing it first if there is none. The
// error is status.NoDevice if the node is not live or cannot be reached.
func (n *Node) Ping(ctx context.Context, node addr.NodeID) (time.Duration, error) {
	for try := 1; ; try++ {
		l, err := n.linkTo(ctx, node)
		if err != nil || l.otherEnd != nil {
			return 0, err
		}
		rtt, err := l.ping(ctx)
		if err != errLinkDown || !n.mayPass(l) || try == linkTries {
			return rtt, err
		}
	}
}

// mayPass reports whether a request that failed with l, which has ended, may use another link.
func (n *Node) mayPass(l *link) bool {
	return anotherLinkMayDo(l.end.err) || n.hasLiveLink(l.peer.Incarnation)
}

// ping measures a round trip. The error is errLinkDown if the link ends first.
func (l *link) ping(ctx context.Context) (time.Duration, error) {
	return exchange(ctx, l, &l.requests.pings, l.sendHeartbeat)
}
