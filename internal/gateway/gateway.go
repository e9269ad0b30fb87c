package gateway

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/internal/gateway/spec"
	"github.com/fabricd/fabricd/internal/guard"
	"github.com/fabricd/fabricd/internal/wait"
)

// errEnded is why the connections of a gateway that ends are reset.
var errEnded = errors.New("the gateway has ended")

// A gateway takes connections and copies each to and from a connection that it dials for it.
type gateway struct {
	spec.Gateway
	owner  *Gateways
	side   side
	source string
	log    zerolog.Logger
	report func(spec.Event) // does not block

	stop  context.CancelFunc // ends run
	done  chan struct{}      // closed when run has ended
	conns sync.WaitGroup     // of run

	mu       sync.Mutex // guards the fields below
	at       string     // address that it listens on; empty: it does not
	waits    string     // why it does not
	open     map[uint64]*tracked
	held     map[string]int // how many of them are of which node
	total    uint64         // connections that were taken; the number of the latest one
	refused  uint64
	resets   uint64
	failure  string        // of the latest that was refused or reset
	reported refusalReport // the latest
	sent     int64         // of connections that have ended
	back     int64
}

// sameRefusal is for how long an equal refusal is not reported again: a caller whose target is away
// tries again for some seconds.
const sameRefusal = 10 * time.Second

// A refusalReport is the last report of a refused connection. Equal ones are only counted until
// its end.
type refusalReport struct {
	client, text string
	until        time.Time
}

// A tracked is a connection of a gateway.
type tracked struct {
	carrier
	from string    // the node that has the place; empty: a client of this machine
	info spec.Conn // guarded by the gateway's mu
}

// conn returns the description of t. The gateway's mu is held.
func (t *tracked) conn() *spec.Conn {
	info := t.info
	info.Sent, info.Back = t.sent.Load(), t.back.Load()
	return &info
}

// listen begins to take connections and reports it. It checks for a ring here too, because
// the check of a configuration does not know the node's name and ID nor commands' gateways.
func (g *gateway) listen(ctx context.Context) (net.Listener, error) {
	node, nerr := g.owner.attached(ctx)
	if err := g.Check(g.owner.lines(), g.owner.self()...); err != nil {
		return nil, err
	}
	l, err := g.side.listen(ctx)
	if err != nil {
		return nil, err
	}
	at, name := l.Addr().String(), ""
	if nerr == nil {
		name = nodeName(node)
	}
	g.mu.Lock()
	g.at, g.waits = at, ""
	g.mu.Unlock()
	g.log.Info().Str("at", at).Msg("gateway listens")
	if tcp, ok := l.Addr().(*net.TCPAddr); ok && !tcp.IP.IsLoopback() && (g.Kind == spec.SOCKS || g.Kind == spec.HTTPProxy) {
		g.log.Warn().Str("at", at).Msg("every program that reaches this address may connect into the fabric: the proxy asks for no password")
	}
	g.report(spec.Event{Time: time.Now(), Event: spec.Started, At: at, Node: name})
	return l, nil
}

// run takes connections from l, or from listen's listener, until ctx ends. It waits for the
// end of all of them.
func (g *gateway) run(ctx context.Context, l net.Listener) {
	defer close(g.done)
	defer g.conns.Wait()
	var err error
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		if l != nil {
			err, pause = g.serve(ctx, l), firstPause
		}
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			g.wait(err)
			if !wait.For(ctx.Done(), pause) {
				return
			}
		}
		l, err = g.listen(ctx)
	}
}

// wait keeps and reports the reason why the gateway does not listen.
func (g *gateway) wait(err error) {
	text := err.Error()
	g.mu.Lock()
	known := g.waits == text
	g.at, g.waits = "", text
	g.mu.Unlock()
	if known {
		return
	}
	level := zerolog.WarnLevel
	if errors.Is(err, syscall.EAGAIN) { // the node has no ID yet, as at each start
		level = zerolog.DebugLevel
	}
	g.log.WithLevel(level).Err(err).Msg("gateway does not listen now; it tries again")
	g.report(spec.Event{Time: time.Now(), Event: spec.Waiting, Detail: text})
}

// serve takes connections from l until l or ctx ends.
func (g *gateway) serve(ctx context.Context, l net.Listener) error {
	defer context.AfterFunc(ctx, func() { l.Close() })()
	defer l.Close() // nothing is left to do if it fails
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		c, err := l.Accept()
		if errors.Is(err, syscall.EACCES) { // of a service alone; the node logs it
			g.report(spec.Event{Time: time.Now(), Event: spec.Barred, Detail: oneLine(errors.Unwrap(err).Error())})
			continue
		}
		if t, ok := errors.AsType[interface {
			error
			Temporary() bool
		}](err); ok && t.Temporary() && wait.For(ctx.Done(), pause) {
			continue
		}
		if err != nil {
			return err
		}
		pause = firstPause
		client, err := asConn(c)
		if err != nil {
			continue // it has ended
		}
		t, err := g.admit(client)
		if err != nil {
			abort(err, client)
			if next, ok := g.Next(g.owner.lines(), g.owner.self()); ok { // a ring over two nodes, which neither sees, ends here
				err = fmt.Errorf("%w; they lead on by %s %s, perhaps in a ring", err, next.Kind, next)
			}
			g.refuse(spec.Conn{Client: client.RemoteAddr().String()}, err)
			continue
		}
		g.conns.Go(func() { g.lead(ctx, t) })
	}
}

// admit gives a connection one of the gateway's places, if there is one for it.
func (g *gateway) admit(client conn) (*tracked, error) {
	from := ""
	if far, ok := client.(*fabric.Conn); ok {
		peer, err := far.Peer()
		if err != nil {
			return nil, err
		}
		from = peer.Name
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.open) >= g.Max {
		return nil, fmt.Errorf("all of its %d connections are in use", g.Max)
	}
	if share := g.Share(len(g.open) - g.held[from]); from != "" && g.held[from] >= share {
		return nil, fmt.Errorf("%s has its share of connections, %d of %d", from, share, g.Max)
	}
	g.total++
	g.held[from]++
	t := &tracked{carrier: carrier{ends: ends{client: client}, idle: g.Idle, bug: g.bug}, from: from,
		info: spec.Conn{ID: g.total, Since: time.Now(), User: -1, Client: client.RemoteAddr().String()}}
	g.open[t.info.ID] = t
	return t, nil
}

// lead copies between a connection and the one dialed for it, until both have ended.
func (g *gateway) lead(ctx context.Context, t *tracked) {
	defer g.release(t)
	defer guard.Recover(func(err error, stack []byte) {
		g.bug(err, stack)
		abort(err, t.client)
	})
	info := t.info // written here alone
	client := t.client
	stop := context.AfterFunc(ctx, func() { abort(errEnded, client) }) // which ends dial's reads from it
	both, err := g.side.dial(ctx, client, &info)
	if err != nil {
		if _, answered := errors.AsType[errAnswered](err); answered {
			dismiss(client)
		}
		stop()
		abort(err, client)
		g.release(t)
		if ctx.Err() == nil {
			g.refuse(info, err)
		}
		return
	}
	stop()
	t.ends = both
	g.opened(t, info)
	defer context.AfterFunc(ctx, func() { t.end(errEnded) })()
	g.closed(t, t.run())
}

// bug logs a panic, which ends the connection.
func (g *gateway) bug(err error, stack []byte) {
	g.log.Error().Err(err).Bytes("stack", stack).Msg("a connection of a gateway has ended by a bug")
}

// release gives the place of a connection back, once.
func (g *gateway) release(t *tracked) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open[t.info.ID] == nil {
		return
	}
	g.sent += t.sent.Load()
	g.back += t.back.Load()
	delete(g.open, t.info.ID)
	if g.held[t.from]--; g.held[t.from] == 0 {
		delete(g.held, t.from)
	}
}

func (g *gateway) opened(t *tracked, info spec.Conn) {
	g.mu.Lock()
	t.info = info
	g.mu.Unlock()
	g.log.Debug().Str("client", info.Client).Str("to", info.To).Msg("connection opened")
	g.report(spec.Event{Time: time.Now(), Event: spec.Opened, Conn: &info})
}

func (g *gateway) closed(t *tracked, cause error) {
	g.mu.Lock()
	info := t.conn()
	ev := spec.Event{Time: time.Now(), Event: spec.Closed, Conn: info}
	text := ""
	if cause != nil {
		text = causeText(cause, info.Node)
		ev.Detail = "reset: " + text
		g.resets++
		g.failure = text
	}
	g.mu.Unlock()
	g.release(t)
	line := g.log.Debug()
	if lost, ok := errors.AsType[*fabric.LostError](cause); ok && lost.Cause == fabric.PeerAborted && info.Back == 0 {
		line = g.owner.refusals.Line(zerolog.WarnLevel, netip.Addr{}).Str("gateway", g.key()) // an expose that cannot hold a request does so if its target refuses
	}
	line.Str("client", info.Client).Str("to", info.To).Int64("sent", info.Sent).Int64("received", info.Back).Str("cause", text).Msg("connection closed")
	g.report(ev)
}

// refuse counts and reports a connection that was reset before it reached its target.
func (g *gateway) refuse(info spec.Conn, err error) {
	g.mu.Lock()
	g.refused++
	text := oneLine(err.Error())
	g.failure = text
	now := time.Now()
	again := info.Client == g.reported.client && text == g.reported.text && now.Before(g.reported.until)
	if !again {
		g.reported = refusalReport{info.Client, text, now.Add(sameRefusal)}
	}
	g.mu.Unlock()
	if again {
		return
	}
	g.owner.refusals.Line(zerolog.WarnLevel, netip.Addr{}).Str("gateway", g.key()).Str("client", info.Client).Str("error", text).Msg("connection refused")
	g.report(spec.Event{Time: now, Event: spec.Refused, Conn: &info, Detail: text})
}

// status returns the gateway as a node reports it.
func (g *gateway) status() spec.Status {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := spec.Status{
		Kind: g.Kind, Listen: g.Listen, To: g.To, Source: g.source, Line: g.String(),
		State: spec.Listening, At: g.at, Detail: g.waits,
		Open: len(g.open), Total: g.total, Refused: g.refused, Reset: g.resets, Failure: g.failure, Sent: g.sent, Back: g.back, Conns: []spec.Conn{},
	}
	if g.at == "" {
		s.State = spec.Waiting
	}
	for _, id := range slices.Sorted(maps.Keys(g.open)) {
		c := g.open[id].conn()
		s.Sent, s.Back = s.Sent+c.Sent, s.Back+c.Back
		s.Conns = append(s.Conns, *c)
	}
	return s
}
