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

// A shared-memory path carries the messages of a connection between two applications of one node
// through shared memory, without the node. It is an upgrade: both directions begin on the data
// socket, and each switches to its ring once its sender finds the other side ready. The data socket
// still carries the end of the connection.
//
// The writing side is guarded by the endpoint's sending, the reading side by its receiving.
// Read-only checks of the rest of the shared memory are made under the endpoint's mu.
type shmPath struct {
	region *shm.Region
	out    *ring.Writer
	in     *ring.Reader
	room   *shm.Doorbell // rings when out has room; rung when it has data
	data   *shm.Doorbell // rings when in has data; rung when it has room

	roomSpin, dataSpin spinner
	pending, writable  func() bool // in.Pending and out.Room, made once
	over               func() bool

	// gone is set when the peer's end of a doorbell is closed.
	gone atomic.Bool
	// cut is set when no call may sleep any more: the connection has ended, or the endpoint is
	// closed. It is set before the doorbells are stopped.
	cut atomic.Bool
	// The watched flags are set when poll has armed a doorbell at which no call waits. changed makes
	// pollers poll again. watchers is which of the doorbells are watched; guarded by the endpoint's mu.
	roomWatched, dataWatched atomic.Bool
	changed                  func()
	watchers                 struct{ room, data bool }
	// switched is set, under sending, once out carries the messages; reading, under receiving, once
	// in does.
	switched, reading atomic.Bool
}

// join asks for a shared-memory path, sets it up and reports the result to the node. On failure the
// messages stay on the data socket; the node knows the reason.
func (e *endpoint) join() {
	ctx := context.Background()
	settings, err := e.c.rings.get(e.c, e.quit)
	if err != nil {
		return
	}
	var m proto.ShmPathBody
	e.c.at("asking")
	f, err := e.request(ctx, request{op: proto.OpShmPath, ended: status.Reset}, &m)
	if errors.Is(err, shm.ErrDescriptorLost) { // the node made a shared-memory path, but its memory was lost on the way
		e.ask(ctx, proto.OpJoined, &proto.JoinedBody{Why: proto.ReasonOf(err)}, nil)
	}
	if err != nil {
		return
	}
	e.c.at("memory")
	sp, small, err := e.make(m, settings, f)
	if err != nil {
		e.ask(ctx, proto.OpJoined, &proto.JoinedBody{Why: proto.ReasonOf(err)}, nil)
		return
	}
	e.c.at("made")
	if !e.install(sp) {
		sp.close()
		return
	}
	e.c.at("installed")
	e.ask(ctx, proto.OpJoined, &proto.JoinedBody{OK: 1, Why: small}, nil)
	e.awaitSwitch(sp)
}

// make makes the shared-memory path that the node describes, with f as its memory. small is the
// reason why the memory is not in huge pages, if it should be.
func (e *endpoint) make(m proto.ShmPathBody, settings proto.RingsBody, f *os.File) (sp *shmPath, small string, err error) {
	if f == nil {
		return nil, "", fmt.Errorf("node sent no memory: %w", status.Protocol)
	}
	params := ring.Params{Slots: int(m.Slots), Data: int(m.Data), Release: int(settings.Release)}
	if err := params.Check(); err != nil || m.Side > 1 {
		f.Close()
		return nil, "", fmt.Errorf("shared-memory path of side %d: %w: %w", m.Side, status.Protocol, err)
	}
	region, err := shm.Adopt(f, proto.RingsSize(params))
	if err != nil {
		return nil, "", err
	}
	small, err = settings.Huge.Apply(region)
	if err != nil {
		region.Release()
		return nil, "", err
	}
	sp = &shmPath{region: region, roomSpin: e.c.tuning.spinner(), dataSpin: e.c.tuning.spinner(), changed: e.notify}
	if err := e.fit(sp, params, m.Side); err != nil {
		sp.close()
		return nil, "", err
	}
	return sp, small, nil
}

// fit creates the rings and doorbells of sp.
func (e *endpoint) fit(sp *shmPath, params ring.Params, side uint8) (err error) {
	mem := sp.region.Bytes()
	rings := [2][]byte{mem[:params.Size()], mem[params.Size():]}
	e.c.at("mapped")
	if sp.out, err = ring.NewWriter(rings[side], params); err != nil {
		return err
	}
	if sp.in, err = ring.NewReader(rings[1-side], params); err != nil {
		return err
	}
	if sp.room, err = e.doorbell(proto.DoorbellOut); err != nil {
		return err
	}
	e.c.at("doorbell")
	if sp.data, err = e.doorbell(proto.DoorbellIn); err != nil {
		return err
	}
	sp.pending, sp.writable = sp.in.Pending, sp.out.Room
	sp.over = sp.cut.Load
	return nil
}

func (e *endpoint) doorbell(which uint8) (*shm.Doorbell, error) {
	f, err := e.request(context.Background(), request{op: proto.OpDoorbell, body: &proto.DoorbellBody{Which: which}, ended: status.Reset}, nil)
	if err != nil {
		return nil, err
	}
	if f == nil {
		return nil, fmt.Errorf("node sent no doorbell: %w", status.Protocol)
	}
	return shm.NewDoorbell(f)
}

// close releases the resources of the shared-memory path. No call uses it any more.
func (sp *shmPath) close() {
	for _, b := range []*shm.Doorbell{sp.room, sp.data} {
		if b != nil {
			b.Close()
		}
	}
	sp.region.Release()
}

// install makes sp the endpoint's shared-memory path; false if the endpoint is closed.
func (e *endpoint) install(sp *shmPath) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return false
	}
	e.shmPath.Store(sp)
	sp.in.Ready()
	if e.ends.reported.Load() || e.c.isLost() {
		sp.stop()
	}
	e.watchAll()
	return true
}

// stop ends all waits at the shared-memory path's doorbells, now and later. Bytes in the ring can
// still be read.
func (sp *shmPath) stop() {
	sp.cut.Store(true)
	sp.room.Stop()
	sp.data.Stop()
}

// cut stops the shared-memory path of an endpoint whose connection has ended, and stops sending
// through its path; if lost, because the node is gone, it shuts the path down for both ends.
func (e *endpoint) cut(lost bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if sp := e.shmPath.Load(); sp != nil && !e.closed {
		sp.stop()
	}
	if lost {
		e.ends.once.Do(func() { close(e.ends.done) })
	}
	if p := e.path.Load(); p != nil && !e.closed {
		if lost {
			p.conn.Shutdown()
		} else {
			p.conn.Stop() // the peer's earlier bytes may still be in flight
		}
	}
}

// awaitSwitch waits until the peer has switched to the ring, and then wakes a receive that waits at
// the data socket. It waits for the edge only: the receive consumes the doorbell's bytes. A peer that
// cannot use its side has closed its doorbells.
func (e *endpoint) awaitSwitch(sp *shmPath) {
	err := sp.data.WaitEdge()
	if _, ok := sp.in.Switched(); ok {
		e.kick()
	} else if err == nil && !sp.cut.Load() {
		e.giveUp(sp)
	}
}

// kick makes a waiting receive and pollers check the shared-memory path.
func (e *endpoint) kick() {
	e.mu.Lock()
	if e.data != nil && !e.closed {
		e.data.wake()
	}
	e.mu.Unlock()
	e.notify()
}

// giveUp abandons a shared-memory path that the other side cannot use. Its memory stays mapped
// until the endpoint is closed: a running call may still read it.
func (e *endpoint) giveUp(sp *shmPath) {
	e.mu.Lock()
	gone := e.closed || sp.switched.Load() || e.ends.reported.Load()
	if !gone {
		e.shmPath.Store(nil)
		e.upgrades.spent = append(e.upgrades.spent, sp)
		sp.stop()
	}
	e.mu.Unlock()
	if !gone {
		e.ask(context.Background(), proto.OpJoined, &proto.JoinedBody{Why: proto.OtherGaveUp}, nil)
	}
}

// heard is called when a call consumes rings of a doorbell, or does not need them. If poll has armed
// the doorbell, a poller must poll again: the event that it waits for may be there, and the rings that
// announce it may be consumed before the poller sees them.
func (sp *shmPath) heard(b *shm.Doorbell, watched *atomic.Bool) {
	if watched.Load() && watched.Swap(false) {
		b.Drain()
		sp.changed()
	}
}

// hangUp signals the peer that this side neither writes nor reads any more, and wakes all waiting
// calls. The caller holds mu.
func (sp *shmPath) hangUp() {
	sp.out.Close()
	sp.in.Gone()
	sp.stop()
	sp.room.Close()
	sp.data.Close()
}

// free unmaps the shared-memory paths' memory after the last call has left it. The endpoint is
// closed: no other call can begin. The endpoint's Close and the session's may both call it: the
// locks are taken once and never released.
func (e *endpoint) free() { e.upgrades.freeing.Do(e.unmap) }

func (e *endpoint) unmap() {
	e.sending.Lock(nil, nil)
	e.receiving.Lock(nil, nil)
	e.mu.Lock()
	all := e.upgrades.spent
	if sp := e.shmPath.Swap(nil); sp != nil {
		all = append(all, sp)
	}
	e.upgrades.spent = nil
	e.mu.Unlock()
	for _, sp := range all {
		sp.close()
	}
}

// ringOut returns the shared-memory path if sent bytes go through its ring, switching to it if the
// peer is ready. The caller holds sending.
func (e *endpoint) ringOut() *shmPath {
	sp := e.shmPath.Load()
	if sp == nil || sp.switched.Load() {
		return sp
	}
	if !sp.out.ReaderReady() || sp.cut.Load() {
		return nil
	}
	sp.out.Start(e.moved.sent)
	sp.switched.Store(true)
	e.c.at("switched")
	sp.room.Ring() // unconditionally: the peer waits elsewhere, at its data socket
	return sp
}

// write writes the bytes that fit, and wakes the peer.
func (sp *shmPath) write(p []byte) (int, error) {
	sp.heard(sp.room, &sp.roomWatched)
	if sp.cut.Load() || sp.out.Gone() {
		return 0, status.Reset
	}
	n, err := sp.out.Write(p)
	if n > 0 && sp.out.WakeReader() {
		sp.room.Ring()
	}
	if err != nil {
		err = fmt.Errorf("%w: %w", status.Reset, err)
	}
	return n, err
}

// send is Send through the ring.
func (sp *shmPath) send(ctx context.Context, p []byte) (sent int, err error) {
	for {
		n, err := sp.write(p[sent:])
		if sent += n; err != nil || sent == len(p) {
			return sent, err
		}
		if n == 0 {
			err = sp.awaitRoom(ctx)
		} else if ctx.Err() != nil { // also while the reader keeps up
			err = ended(ctx)
		}
		if err != nil {
			return sent, err
		}
	}
}

// awaitRoom returns when the ring may have room.
func (sp *shmPath) awaitRoom(ctx context.Context) error {
	if sp.roomSpin.watch(sp.writable, sp.over) {
		return nil
	}
	sp.out.Arm()
	if sp.out.Room() || sp.cut.Load() || sp.out.Gone() {
		return nil
	}
	err := sp.room.Wait(ctx)
	sp.heard(sp.room, &sp.roomWatched)
	if err == nil || canceled(err) || sp.cut.Load() {
		return ignore(err, sp.cut.Load())
	}
	return dataError(err) // the peer is gone, or this endpoint closed
}

// ignore drops the error of a doorbell that was stopped: the next check of the ring finds the reason.
func ignore(err error, cut bool) error {
	if cut && !canceled(err) {
		return nil
	}
	return err
}

// ringIn returns the shared-memory path if the next bytes come through its ring. Otherwise it
// returns how many more bytes may come through the data socket, as an upper bound. The caller holds
// receiving.
func (e *endpoint) ringIn() (sp *shmPath, limit uint64, err error) {
	sp = e.shmPath.Load()
	if sp == nil {
		return nil, unlimited, nil
	}
	if sp.reading.Load() {
		return sp, 0, nil
	}
	start, ok := sp.in.Switched()
	got := e.moved.got.Load()
	switch {
	case !ok:
		return nil, unlimited, nil
	case start < got:
		return nil, 0, fmt.Errorf("%w: the peer's ring begins at byte %d, received are %d", status.Reset, start, got)
	case start > got:
		return nil, start - got, nil
	}
	sp.reading.Store(true)
	return sp, 0, nil
}

// unlimited is more bytes than any call receives.
const unlimited = uint64(1) << 62

// read reads the available bytes, and wakes the peer. over reports that no more bytes can come
// through the ring.
func (sp *shmPath) read(p []byte) (n int, over bool, err error) {
	sp.heard(sp.data, &sp.dataWatched)
	over = sp.ended() // before reading: what was written by then counts
	n, err = sp.in.Read(p)
	if sp.in.WakeWriter() {
		sp.data.Ring()
	}
	if err != nil {
		err = fmt.Errorf("%w: %w", status.Reset, err)
	}
	return n, over, err
}

// ended reports whether the peer's writing has ended, as far as this side can see.
func (sp *shmPath) ended() bool { return sp.cut.Load() || sp.gone.Load() || sp.in.Closed() }

// receive returns the available bytes. If there are none it returns status.Again and the
// shared-memory path at which to wait, nil for the data socket. The end of the ring is not yet the
// end of the connection: the data socket reports that.
func (e *endpoint) receive(data nodeStream, p []byte) (int, *shmPath, error) {
	for {
		sp, limit, err := e.ringIn()
		if err != nil {
			return 0, nil, err
		}
		if sp != nil {
			n, over, err := sp.read(p)
			if n > 0 || err != nil {
				return n, nil, err
			}
			if !over {
				return 0, sp, status.Again
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
		if err == nil || errors.Is(err, status.Again) || !e.wentOver(sp, limit) {
			return n, nil, err
		}
	}
}

// wentOver reports whether the peer has switched to its ring since ringIn returned sp and limit. A
// peer that writes to the ring and closes at once ends the data socket while bytes are left in the
// ring.
func (e *endpoint) wentOver(sp *shmPath, limit uint64) bool {
	if sp != nil || limit != unlimited {
		return false
	}
	now, limit, err := e.ringIn()
	return err == nil && (now != nil || limit != unlimited)
}

// awaitData returns when the ring may have bytes, or has ended.
func (sp *shmPath) awaitData(ctx context.Context) error {
	if sp.dataSpin.watch(sp.pending, sp.over) {
		return nil
	}
	sp.in.Release()
	if sp.in.WakeWriter() {
		sp.data.Ring()
	}
	sp.in.Arm()
	if sp.in.Pending() || sp.ended() {
		return nil
	}
	err := sp.data.Wait(ctx)
	sp.heard(sp.data, &sp.dataWatched)
	switch {
	case err == nil || canceled(err):
		return err
	case errors.Is(err, net.ErrClosed):
		return status.Reset // this endpoint was closed
	}
	sp.gone.Store(true) // by the peer, or by the end of the connection: bytes in the ring remain readable
	return nil
}

// ringEvents corrects ev, the poll events of the data socket, for the directions that go through
// the rings. If there are listeners, it arms the doorbells so that the peer rings at the next change.
func (e *endpoint) ringEvents(ev attach.Events) attach.Events {
	e.mu.Lock()
	defer e.mu.Unlock()
	sp := e.shmPath.Load()
	if sp == nil || e.closed {
		return ev
	}
	waited := len(e.polled.listeners) > 0
	start, ok := sp.in.Switched()
	if ok && start == e.moved.got.Load() && ev&attach.PollIn == 0 {
		in := sp.in.Pending()
		if !in && waited {
			sp.dataWatched.Store(true)
			sp.in.Arm()
			in = sp.in.Pending()
		}
		if in {
			ev |= attach.PollIn
		}
	}
	if sp.switched.Load() && ev&attach.PollHup == 0 {
		out := sp.out.Room()
		if !out && waited {
			sp.roomWatched.Store(true)
			sp.out.Arm()
			out = sp.out.Room()
		}
		if ev &^= attach.PollOut; out {
			ev |= attach.PollOut
		}
	}
	return ev
}
