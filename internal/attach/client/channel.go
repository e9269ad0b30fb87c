package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/internal/ring"
	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/internal/status"
)

// A channel carries the messages of a connection between two applications of
// one node, past the node. It is an upgrade: both directions begin in the data
// socket, and each goes over to its ring when its sender first finds the other
// side ready. The data socket stays for the end of the connection.
//
// The writing side belongs to who holds the endpoint's sending lock, the reading
// side to who holds the receiving one. What the memory says besides may be looked
// at under the endpoint's mu.
type channel struct {
	region *shm.Region
	out    *ring.Writer
	in     *ring.Reader
	room   *shm.Bell // rings when out has room; rung when it has data
	data   *shm.Bell // rings when in has data; rung when it has room

	roomSpin, dataSpin spinner
	pending, writable  func() bool // in.Pending and out.Room, made once
	over               func() bool

	// gone is set when the peer's bell has ended.
	gone atomic.Bool
	// cut is set when nobody may sleep any more: the connection has ended, or
	// the endpoint is closed. The bells are stopped after it.
	cut atomic.Bool
	// watched is set when poll has armed a bell that nobody waits at. changed
	// makes pollers look again; watchers is set once the bells have theirs,
	// and guarded by the endpoint's mu.
	roomWatched, dataWatched atomic.Bool
	changed                  func()
	watchers                 bool
	// switched is set once out carries the messages, by the holder of sending;
	// reading once in does, by the holder of receiving.
	switched, reading atomic.Bool
}

// join asks for a channel, makes it and tells the node how that went. Without one
// everything goes on as it is: the node knows why.
func (e *clientEndpoint) join() {
	ctx := context.Background()
	habits, err := e.c.rings.get(e.c, e.quit)
	if err != nil {
		return
	}
	var m proto.ChannelBody
	e.c.at("asking")
	f, err := e.question(ctx, question{op: proto.OpChannel, ended: status.Reset}, &m)
	if errors.Is(err, shm.ErrDescriptorLost) { // there is a channel, and no way to its memory
		e.ask(ctx, proto.OpJoined, &proto.JoinedBody{Why: proto.ReasonOf(err)}, nil)
	}
	if err != nil {
		return
	}
	e.c.at("memory")
	ch, small, err := e.make(m, habits, f)
	if err != nil {
		e.ask(ctx, proto.OpJoined, &proto.JoinedBody{Why: proto.ReasonOf(err)}, nil)
		return
	}
	e.c.at("made")
	if !e.install(ch) {
		ch.close()
		return
	}
	e.c.at("installed")
	e.ask(ctx, proto.OpJoined, &proto.JoinedBody{OK: 1, Why: small}, nil)
	e.awaitSwitch(ch)
}

// make makes the channel that the node describes, with f as its memory. small
// says why the memory is not in huge pages, if it should be.
func (e *clientEndpoint) make(m proto.ChannelBody, habits proto.RingsBody, f *os.File) (ch *channel, small string, err error) {
	if f == nil {
		return nil, "", fmt.Errorf("node sent no memory: %w", status.Protocol)
	}
	params := ring.Params{Slots: int(m.Slots), Data: int(m.Data), Release: int(habits.Release)}
	if err := params.Check(); err != nil || m.Side > 1 {
		f.Close()
		return nil, "", fmt.Errorf("channel of side %d: %w: %w", m.Side, status.Protocol, err)
	}
	region, err := shm.Adopt(f, proto.RingsSize(params))
	if err != nil {
		return nil, "", err
	}
	small, err = habits.Huge.Apply(region)
	if err != nil {
		region.Release()
		return nil, "", err
	}
	ch = &channel{region: region, roomSpin: e.c.tuning.spinner(), dataSpin: e.c.tuning.spinner(), changed: e.notify}
	if err := e.fit(ch, params, m.Side); err != nil {
		ch.close()
		return nil, "", err
	}
	return ch, small, nil
}

// fit gives ch its rings and bells.
func (e *clientEndpoint) fit(ch *channel, params ring.Params, side uint8) (err error) {
	mem := ch.region.Bytes()
	rings := [2][]byte{mem[:params.Size()], mem[params.Size():]}
	e.c.at("mapped")
	if ch.out, err = ring.NewWriter(rings[side], params); err != nil {
		return err
	}
	if ch.in, err = ring.NewReader(rings[1-side], params); err != nil {
		return err
	}
	if ch.room, err = e.bell(proto.BellOut); err != nil {
		return err
	}
	e.c.at("bell")
	if ch.data, err = e.bell(proto.BellIn); err != nil {
		return err
	}
	ch.pending, ch.writable = ch.in.Pending, ch.out.Room
	ch.over = ch.cut.Load
	return nil
}

func (e *clientEndpoint) bell(which uint8) (*shm.Bell, error) {
	f, err := e.question(context.Background(), question{op: proto.OpBell, body: &proto.BellBody{Which: which}, ended: status.Reset}, nil)
	if err != nil {
		return nil, err
	}
	if f == nil {
		return nil, fmt.Errorf("node sent no bell: %w", status.Protocol)
	}
	return shm.NewBell(f)
}

// close gives back what the channel has. Nobody uses it any more.
func (ch *channel) close() {
	for _, b := range []*shm.Bell{ch.room, ch.data} {
		if b != nil {
			b.Close()
		}
	}
	ch.region.Release()
}

// install makes ch the endpoint's channel; false if the endpoint is closed.
func (e *clientEndpoint) install(ch *channel) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return false
	}
	e.ch.Store(ch)
	ch.in.Ready()
	if e.ends.told.Load() || e.c.isLost() {
		ch.stop()
	}
	if len(e.polled.listeners) > 0 {
		e.watchBells(ch)
	}
	return true
}

// stop ends all waiting at the channel's bells, now and later. What is in the
// ring can still be read.
func (ch *channel) stop() {
	ch.cut.Store(true)
	ch.room.Stop()
	ch.data.Stop()
}

// cut stops the channel, and what is sent through the path, of an endpoint whose
// connection has ended; lost, with the node.
func (e *clientEndpoint) cut(lost bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if ch := e.ch.Load(); ch != nil && !e.closed {
		ch.stop()
	}
	if lost {
		e.ends.once.Do(func() { close(e.ends.done) })
	}
	if p := e.path.Load(); p != nil && !e.closed {
		if lost {
			p.conn.Shutdown()
		} else {
			p.conn.Stop() // what the peer sent before may still be on its way
		}
	}
}

// awaitSwitch waits until the peer has gone over to the ring, and then wakes a
// receive that waits at the data socket. That happens once: the bell's bytes are
// left to the receive. A peer that cannot use its half has closed its bells.
func (e *clientEndpoint) awaitSwitch(ch *channel) {
	err := ch.data.WaitEdge()
	if _, ok := ch.in.Switched(); ok {
		e.kick()
	} else if err == nil && !ch.cut.Load() {
		e.giveUp(ch)
	}
}

// kick makes a receive and pollers look at the channel.
func (e *clientEndpoint) kick() {
	e.mu.Lock()
	if e.data != nil && !e.closed {
		e.data.wake()
	}
	e.mu.Unlock()
	e.notify()
}

// giveUp leaves a channel that the other side cannot use. Its memory stays until
// the endpoint is closed: a call may be looking at it.
func (e *clientEndpoint) giveUp(ch *channel) {
	e.mu.Lock()
	gone := e.closed || ch.switched.Load() || e.ends.told.Load()
	if !gone {
		e.ch.Store(nil)
		e.asks.spent = append(e.asks.spent, ch)
		ch.stop()
	}
	e.mu.Unlock()
	if !gone {
		e.ask(context.Background(), proto.OpJoined, &proto.JoinedBody{Why: proto.OtherGaveUp}, nil)
	}
}

// watchBells begins to tell of changes at the rings, until Close. It waits on
// descriptors of its own, beside blocked calls. The caller holds mu.
func (e *clientEndpoint) watchBells(ch *channel) {
	if ch.watchers {
		return
	}
	for _, b := range []*shm.Bell{ch.room, ch.data} {
		w, err := b.Watcher()
		if err != nil {
			return // Ready still tells; only out of descriptors
		}
		e.polled.by = append(e.polled.by, w)
		e.wg.Go(func() { shm.WatchRead(w, e.notify) })
	}
	ch.watchers = true
}

// heard is for who takes rings from a bell, or has no need of them. If poll has
// armed the bell, a poller looks again: what it waits for may be there, and
// the rings that would tell are gone, perhaps before they were seen.
func (ch *channel) heard(b *shm.Bell, watched *atomic.Bool) {
	if watched.Load() && watched.Swap(false) {
		b.Drain()
		ch.changed()
	}
}

// hangUp tells the peer that this side neither writes nor reads any more, and
// wakes all who sleep. The caller holds mu.
func (ch *channel) hangUp() {
	ch.out.Close()
	ch.in.Gone()
	ch.stop()
	ch.room.Close()
	ch.data.Close()
}

// free gives the channels' memory back when the last call has left them. The
// endpoint is closed: no other call can begin. Its Close and the session's may
// both come here: the locks are taken once, for good.
func (e *clientEndpoint) free() { e.asks.freeing.Do(e.unmap) }

func (e *clientEndpoint) unmap() {
	e.sending.Take(nil, nil)
	e.receiving.Take(nil, nil)
	e.mu.Lock()
	all := e.asks.spent
	if ch := e.ch.Swap(nil); ch != nil {
		all = append(all, ch)
	}
	e.asks.spent = nil
	e.mu.Unlock()
	for _, ch := range all {
		ch.close()
	}
}

// ringOut returns the channel if what is sent goes through its ring, from now on
// at the latest. The caller holds sending.
func (e *clientEndpoint) ringOut() *channel {
	ch := e.ch.Load()
	if ch == nil || ch.switched.Load() {
		return ch
	}
	if !ch.out.ReaderReady() || ch.cut.Load() {
		return nil
	}
	ch.out.Start(e.moved.sent)
	ch.switched.Store(true)
	e.c.at("switched")
	ch.room.Ring() // whether it waits or not: it waits elsewhere
	return ch
}

// write writes what there is room for, and wakes the peer.
func (ch *channel) write(p []byte) (int, error) {
	ch.heard(ch.room, &ch.roomWatched)
	if ch.cut.Load() || ch.out.Gone() {
		return 0, status.Reset
	}
	n, err := ch.out.Write(p)
	if n > 0 && ch.out.WakeReader() {
		ch.room.Ring()
	}
	if err != nil {
		err = fmt.Errorf("%w: %w", status.Reset, err)
	}
	return n, err
}

// send is Send through the ring.
func (ch *channel) send(ctx context.Context, p []byte) (sent int, err error) {
	for {
		n, err := ch.write(p[sent:])
		if sent += n; err != nil || sent == len(p) {
			return sent, err
		}
		if n == 0 {
			err = ch.awaitRoom(ctx)
		} else if ctx.Err() != nil { // also beside a reader that keeps up
			err = fmt.Errorf("%w: %w", status.Of(ctx.Err()), ctx.Err())
		}
		if err != nil {
			return sent, err
		}
	}
}

// awaitRoom returns when there may be room.
func (ch *channel) awaitRoom(ctx context.Context) error {
	if ch.roomSpin.watch(ch.writable, ch.over) {
		return nil
	}
	ch.out.Arm()
	if ch.out.Room() || ch.cut.Load() || ch.out.Gone() {
		return nil
	}
	err := ch.room.Wait(ctx)
	ch.heard(ch.room, &ch.roomWatched)
	if err == nil || withdrawn(err) || ch.cut.Load() {
		return ignore(err, ch.cut.Load())
	}
	return dataError(err) // the peer is gone, or this endpoint closed
}

// ignore drops an error of a bell that was stopped: the next look tells more.
func ignore(err error, cut bool) error {
	if cut && !withdrawn(err) {
		return nil
	}
	return err
}

// ringIn returns the channel if what is received next comes through its ring,
// and otherwise how many bytes at most may come through the data socket. The
// caller holds receiving.
func (e *clientEndpoint) ringIn() (ch *channel, limit uint64, err error) {
	ch = e.ch.Load()
	if ch == nil {
		return nil, unlimited, nil
	}
	if ch.reading.Load() {
		return ch, 0, nil
	}
	start, ok := ch.in.Switched()
	got := e.moved.got.Load()
	switch {
	case !ok:
		return nil, unlimited, nil
	case start < got:
		return nil, 0, fmt.Errorf("%w: the peer's ring begins at byte %d, received are %d", status.Reset, start, got)
	case start > got:
		return nil, start - got, nil
	}
	ch.reading.Store(true)
	return ch, 0, nil
}

// unlimited is more than any call receives.
const unlimited = uint64(1) << 62

// read reads what is there, and wakes the peer. over says that nothing more can
// come this way.
func (ch *channel) read(p []byte) (n int, over bool, err error) {
	ch.heard(ch.data, &ch.dataWatched)
	over = ch.ended() // before reading: what was written by then counts
	n, err = ch.in.Read(p)
	if ch.in.WakeWriter() {
		ch.data.Ring()
	}
	if err != nil {
		err = fmt.Errorf("%w: %w", status.Reset, err)
	}
	return n, over, err
}

// ended reports whether the peer's writing has ended, as far as can be seen here.
func (ch *channel) ended() bool { return ch.cut.Load() || ch.gone.Load() || ch.in.Closed() }

// receive returns what is there. Without that it returns status.Again, and the
// channel at which to wait, nil for the data socket. The end of the ring is not
// yet the end of the connection: the data socket has that.
func (e *clientEndpoint) receive(data nodeStream, p []byte) (int, *channel, error) {
	for {
		ch, limit, err := e.ringIn()
		if err != nil {
			return 0, nil, err
		}
		if ch != nil {
			n, over, err := ch.read(p)
			if n > 0 || err != nil {
				return n, nil, err
			}
			if !over {
				return 0, ch, status.Again
			}
		} else if uint64(len(p)) > limit {
			p = p[:limit]
		}
		way, limit2, err := e.pathIn()
		if err != nil {
			return 0, nil, err
		}
		if way != nil && !way.over.Load() {
			if n, err := way.tryRecv(p); n > 0 || !way.over.Load() {
				return n, nil, err
			}
		} else if uint64(len(p)) > limit2 && limit2 > 0 {
			p = p[:limit2]
		}
		n, err := data.tryRead(p)
		if n > 0 {
			e.moved.got.Add(uint64(n))
		}
		if err == nil || errors.Is(err, status.Again) || !e.wentOver(ch, limit) {
			return n, nil, err
		}
	}
}

// wentOver reports whether the peer has gone over to its ring since ringIn
// returned ch and limit. One that writes there and closes at once ends the data
// socket, with bytes left in the ring.
func (e *clientEndpoint) wentOver(ch *channel, limit uint64) bool {
	if ch != nil || limit != unlimited {
		return false
	}
	now, limit, err := e.ringIn()
	return err == nil && (now != nil || limit != unlimited)
}

// awaitData returns when the ring may have something, or has ended.
func (ch *channel) awaitData(ctx context.Context) error {
	if ch.dataSpin.watch(ch.pending, ch.over) {
		return nil
	}
	ch.in.Release()
	if ch.in.WakeWriter() {
		ch.data.Ring()
	}
	ch.in.Arm()
	if ch.in.Pending() || ch.ended() {
		return nil
	}
	err := ch.data.Wait(ctx)
	ch.heard(ch.data, &ch.dataWatched)
	switch {
	case err == nil || withdrawn(err):
		return err
	case errors.Is(err, net.ErrClosed):
		return status.Reset // this endpoint
	}
	ch.gone.Store(true) // the peer, or the connection: what is in the ring is left
	return nil
}

// ringEvents corrects what the data socket polls as: ev, for what goes through
// the rings. If somebody waits for changes, the peer rings at the next.
func (e *clientEndpoint) ringEvents(ev attach.Events) attach.Events {
	e.mu.Lock()
	defer e.mu.Unlock()
	ch := e.ch.Load()
	if ch == nil || e.closed {
		return ev
	}
	waited := len(e.polled.listeners) > 0
	start, ok := ch.in.Switched()
	if ok && start == e.moved.got.Load() && ev&attach.PollIn == 0 {
		in := ch.in.Pending()
		if !in && waited {
			ch.dataWatched.Store(true)
			ch.in.Arm()
			in = ch.in.Pending()
		}
		if in {
			ev |= attach.PollIn
		}
	}
	if ch.switched.Load() && ev&attach.PollHup == 0 {
		out := ch.out.Room()
		if !out && waited {
			ch.roomWatched.Store(true)
			ch.out.Arm()
			out = ch.out.Room()
		}
		if ev &^= attach.PollOut; out {
			ev |= attach.PollOut
		}
	}
	return ev
}
