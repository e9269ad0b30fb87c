package client

import (
	"errors"
	"io"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/internal/status"
)

// pollers are what polls the endpoint. The endpoint's mu guards it.
type pollers struct {
	listeners map[*chan<- struct{}]chan<- struct{}
	by        []io.Closer // descriptors of their own for data, the bells and the path, to wait on
	path      bool        // by has the path's socket
}

// Ready asks the data socket once there is one, before that the node.
func (e *clientEndpoint) Ready() attach.Events {
	data, err := e.socket()
	switch {
	case errors.Is(err, status.BadFD):
		return attach.PollNval
	case err == nil:
		ev := e.pathEvents(e.ringEvents(streamEvents(data, e.ends.told.Load(), e.shutOut.Load())))
		if ev&(attach.PollRdHup|attach.PollHup) == attach.PollRdHup && (ev&attach.PollIn != 0 || !e.readOver()) {
			ev &^= attach.PollRdHup
		} else if ev&attach.PollRdHup != 0 {
			ev = ev&^attach.PollRdHup | when(ev&attach.PollHup == 0, attach.PollIn|attach.PollRdHup)
		}
		return ev
	}
	ctx, cancel := e.c.patient()
	defer cancel()
	var m proto.ReadyBody
	err = e.ask(ctx, proto.OpReady, nil, &m)
	switch {
	case withdrawn(err):
		return 0 // heard notifies when the node goes on
	case err != nil:
		return attach.PollErr | attach.PollHup
	}
	return attach.Events(m.Events)
}

// streamEvents are SCIF's: no PollIn at the end. hup says that the node has told
// of the end, which the socket shows only behind the last byte.
//
// One that this end has shut hangs up with the peer's half-close, too: shut says that only
// hup is the end. A peer's half-close is PollRdHup, of the data socket alone.
func streamEvents(data nodeStream, hup, shut bool) attach.Events {
	r, err := data.ready()
	if err != nil {
		return attach.PollHup
	}
	var ev attach.Events
	if r.In {
		ev |= attach.PollIn
	}
	if hup || r.Hup && !shut {
		return ev | attach.PollHup
	}
	if r.Out && !shut {
		ev |= attach.PollOut
	}
	return ev | when(r.RdHup, attach.PollRdHup)
}

func when(cond bool, ev attach.Events) attach.Events {
	if cond {
		return ev
	}
	return 0
}

// told takes the poll events that the node tells.
func (e *clientEndpoint) told(ev attach.Events) {
	if ev&attach.PollHup != 0 {
		e.ends.told.Store(true) // for good: nobody connects again
		e.ends.once.Do(func() { close(e.ends.done) })
		e.cut(false)
	}
	e.notify()
}

// Notify makes ch hear of changes: the node tells of those before the
// connection, the data socket of those after.
func (e *clientEndpoint) Notify(ch chan<- struct{}) (stop func()) {
	key := &ch
	e.mu.Lock()
	defer e.mu.Unlock()
	e.polled.listeners[key] = ch
	if e.data != nil && !e.closed {
		e.watchData()
		if ch := e.ch.Load(); ch != nil {
			e.watchBells(ch)
		}
		if p := e.path.Load(); p != nil {
			e.watchPath(p)
		}
	}
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.polled.listeners, key)
	}
}

// notify tells every listener.
func (e *clientEndpoint) notify() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, ch := range e.polled.listeners {
		select {
		case ch <- struct{}{}:
		default: // it has one to come
		}
	}
}

// watchData begins to tell of the data socket's readiness, until Close. The caller holds mu.
func (e *clientEndpoint) watchData() {
	if len(e.polled.by) > 0 {
		return
	}
	w, err := e.data.watch(e.wg.Go, e.notify)
	if err != nil {
		return // Ready still tells; only out of descriptors
	}
	e.polled.by = append(e.polled.by, w)
}

// watchPath begins to tell of the path's readiness, until Close. The caller holds mu.
func (e *clientEndpoint) watchPath(p *clientPath) {
	if e.polled.path {
		return
	}
	w, err := p.conn.Watcher()
	if err != nil {
		return // Ready still tells; only out of descriptors
	}
	e.polled.path = true
	e.polled.by = append(e.polled.by, w)
	e.wg.Go(func() { shm.WatchRead(w, e.notify) })
	e.wg.Go(func() { shm.WatchWrite(w, e.notify) })
}
