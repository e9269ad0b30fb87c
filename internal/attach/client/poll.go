package client

import (
	"errors"
	"io"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/wait"
)

// pollers is the state of polling the endpoint. Guarded by the endpoint's mu.
type pollers struct {
	listeners map[*chan<- struct{}]chan<- struct{}
	by        []io.Closer // duplicated descriptors of data, the doorbells and the path, to wait on
	data      bool        // by has the data socket
	path      bool        // by has the path's socket
}

// Ready asks the data socket once there is one; before that, the node.
func (e *endpoint) Ready() attach.Events {
	data, err := e.socket()
	switch {
	case errors.Is(err, status.BadFD):
		return attach.PollNval
	case err == nil:
		ev := e.pathEvents(e.ringEvents(streamEvents(data, e.ends.reported.Load(), e.shutOut.Load())))
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
	case canceled(err):
		return 0 // the channel notifies once the node responds again
	case err != nil:
		return attach.PollErr | attach.PollHup
	}
	return attach.Events(m.Events)
}

// streamEvents returns SCIF's events: no PollIn at the end. hup: the node has reported the end,
// which the socket shows only after the last byte.
//
// A socket that this end has shut also hangs up at the peer's half-close. With shut, only hup is
// the end. A peer's half-close is PollRdHup of the data socket alone.
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

// notified handles a notification of poll events from the node.
func (e *endpoint) notified(ev attach.Events) {
	if ev&attach.PollHup != 0 {
		e.ends.reported.Store(true) // permanently: an endpoint never connects again
		e.ends.once.Do(func() { close(e.ends.done) })
		e.cut(false)
	}
	e.notify()
}

// Notify registers ch for changes: the node reports those before the connection, the data socket
// those after.
func (e *endpoint) Notify(ch chan<- struct{}) (stop func()) {
	key := &ch
	e.mu.Lock()
	defer e.mu.Unlock()
	e.polled.listeners[key] = ch
	e.watchAll()
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.polled.listeners, key)
	}
}

// notify sends to every listener.
func (e *endpoint) notify() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, ch := range e.polled.listeners {
		wait.Notify(ch)
	}
}

// watchAll starts to report, until Close, the changes of all that carries the messages, if there are
// listeners. The caller holds mu.
func (e *endpoint) watchAll() {
	if len(e.polled.listeners) == 0 || e.data == nil || e.closed {
		return
	}
	e.watch(&e.polled.data, func() (io.Closer, error) { return e.data.watch(e.wg.Go, e.notify) })
	if sp := e.shmPath.Load(); sp != nil {
		e.watch(&sp.watchers.room, func() (io.Closer, error) { return e.watchDoorbell(sp.room) })
		e.watch(&sp.watchers.data, func() (io.Closer, error) { return e.watchDoorbell(sp.data) })
	}
	if p := e.path.Load(); p != nil {
		e.watch(&e.polled.path, func() (io.Closer, error) { return e.watchPath(p) })
	}
}

// watch begins one watch, unless it has begun. Without a descriptor for it Ready still works, without
// notification.
func (e *endpoint) watch(begun *bool, begin func() (io.Closer, error)) {
	if *begun {
		return
	}
	if w, err := begin(); err == nil {
		*begun = true
		e.polled.by = append(e.polled.by, w)
	}
}

// watchDoorbell waits on a duplicated descriptor, so that blocked calls are not disturbed.
func (e *endpoint) watchDoorbell(b *shm.Doorbell) (io.Closer, error) {
	w, err := b.Watcher()
	if err == nil {
		e.wg.Go(func() { shm.WatchRead(w, e.notify) })
	}
	return w, err
}

func (e *endpoint) watchPath(p *messagePath) (io.Closer, error) {
	w, err := p.conn.Watcher()
	if err == nil {
		e.wg.Go(func() { shm.WatchRead(w, e.notify) })
		e.wg.Go(func() { shm.WatchWrite(w, e.notify) })
	}
	return w, err
}
