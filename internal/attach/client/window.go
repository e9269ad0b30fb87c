package client

import (
	"context"
	"fmt"
	"slices"

	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/rma"
)

// fetch requests the window that contains roff from the node and maps it. It reports whether to
// search again. ctx bounds the request.
func (d *direct) fetch(ctx context.Context, roff int64) bool {
	if !d.mayAsk() {
		return false
	}
	w, page, slot, err := d.ask(ctx, roff)
	d.mu.Lock()
	defer d.mu.Unlock()
	if err == nil {
		err = d.insert(page, slot, w)
	}
	d.learn(err)
	return err == nil
}

// mayAsk reports whether a request to the node may succeed, and makes room for its result.
func (d *direct) mayAsk() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.closed || d.without != nil:
		return false
	case d.pass > 0:
		d.pass--
		return false
	}
	return d.makeRoom()
}

// makeRoom unmaps the least recently used mapping, if there is no room for another one. The caller
// holds mu.
func (d *direct) makeRoom() bool {
	if len(d.peer) < maxPeerWindows && d.e.c.direct.mappings.Load() < maxDirectMappings {
		return true
	}
	if len(d.peer) == 0 {
		return false
	}
	oldest := slices.MinFunc(d.peer, func(a, b *window) int { return int(int64(a.lastUse - b.lastUse)) })
	if d.clock-oldest.lastUse < restAfter {
		d.clock++ // so that unused windows can be replaced eventually
		return false
	}
	d.drop(func(w *window) bool { return w == oldest })
	return true
}

// ask requests a window from the node, and the epochs if it has one. A window on another node has no
// memory here.
func (d *direct) ask(ctx context.Context, roff int64) (w *window, page *shm.Region, slot uint32, err error) {
	op, far := proto.OpWindow, d.e.far.is.Load()
	if far {
		op = proto.OpFarWindow
	}
	var out proto.WindowBody
	f, err := d.e.request(ctx, request{op: op, body: &proto.Offset{Off: roff}, ended: status.Reset}, &out)
	if err != nil {
		return nil, nil, 0, err
	}
	if far {
		out.MemOff, out.Size = 0, out.Len
	}
	if page, err = d.e.c.direct.epochs(ctx, d.e.quit); err == nil {
		err = out.Check(roff, page.Len())
	}
	w = &window{off: out.Off, end: out.Off + out.Len, prot: out.Prot, epoch: out.Epoch}
	if err != nil || far || out.Prot == 0 { // Prot 0: the node copies
		answer{file: f}.drop()
		return w, page, out.Slot, err
	}
	w.region, err = mapShared(f, out.MemOff, out.Len, out.Size, out.Prot&rma.ProtWrite != 0)
	return w, page, out.Slot, err
}

// insert adds a mapping. It unmaps one that is stale, already there, or inconsistent with the known
// ones. The caller holds mu.
func (d *direct) insert(page *shm.Region, slot uint32, w *window) error {
	fits, err := d.fits(page, slot, w)
	if !fits {
		w.release()
		return err
	}
	if w.region != nil {
		d.e.c.direct.mappings.Add(1)
	}
	w.lastUse = d.clock // it is about to be used
	d.peer = slices.Insert(d.peer, endAfter(d.peer, w.off), w)
	return nil
}

func (d *direct) fits(page *shm.Region, slot uint32, w *window) (bool, error) {
	if d.closed {
		return false, status.Reset
	}
	if d.word == nil {
		d.word, d.slot = page.Word(8*int64(slot)), slot
	}
	if slot != d.slot {
		return false, fmt.Errorf("node gives the endpoint epochs %d and %d: %w", d.slot, slot, status.Protocol)
	}
	d.sweep()
	if w.epoch != d.word.Load() {
		return false, status.Again // unregistered since: ask the node again
	}
	d.sure, d.incarnations = true, w.epoch
	i := endAfter(d.peer, w.off)
	if i == len(d.peer) || d.peer[i].off >= w.end {
		return true, nil
	}
	if d.peer[i].off == w.off && d.peer[i].end == w.end {
		return false, nil // a concurrent call was first
	}
	return false, fmt.Errorf("node reports windows that overlap: %w", status.Protocol)
}

// learn decides from the result of a request whether to make further ones. The caller holds mu.
func (d *direct) learn(err error) {
	switch status.Of(err) {
	case status.OK:
		d.tries = 0
	case status.Again, status.Canceled, status.TimedOut:
	case status.NoAddress, status.Access, status.Invalid, status.Reset, status.NotConn, status.BadFD, status.NoDevice:
		// The operation's own error, which the node will return for it as well.
	case status.NotSupp, status.Protocol:
		d.without = err
	default:
		d.tries++
		d.pass = backOff(d.tries)
		if d.tries == maxDirectTries {
			d.without = fmt.Errorf("windows cannot be mapped: %w", err)
		}
	}
}
