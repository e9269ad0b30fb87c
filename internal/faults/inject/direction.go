package inject

import (
	"errors"
	"io"
	"os"
	"sync"
	"time"
)

const (
	// idlePiece and rulePiece are how much of a stream is judged at once, in
	// bytes, without and with rules.
	idlePiece = 256 << 10
	rulePiece = 16 << 10
	// firstPiece bounds the first bytes of a stream that waits, before which no later one begins.
	firstPiece = 64
)

// A direction is one direction of a stream. It works on the stream below directly or, once a rule has
// made something wait, through its queue and a goroutine, its pump.
type direction struct {
	peer     *peer
	sending  bool
	setBelow func(time.Time) error // sets the deadline of the stream below
	stop     <-chan struct{}       // ends the pump
	first    func([]byte)          // is shown the first bytes; nil: not needed
	onFail   func(error) error     // returns the error for the user
	using    sync.Mutex            // held during a Read or Write; guards shown
	shown    bool
	queue    byteQueue

	mu     sync.Mutex // guards pumped, and the deadline of the stream below
	pumped bool
	ended  chan struct{} // closed when the pump has ended
}

func (d *direction) isPumped() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.pumped
}

// open reports whether bytes may pass now.
func (d *direction) open() bool { return !d.peer.gate(d.sending, false).Stopped }

func (d *direction) show(p []byte) {
	if !d.shown && d.first != nil && len(p) > 0 {
		d.first(p)
		d.shown = true
	}
}

// explain returns the error for the user.
func (d *direction) explain(err error) error {
	if err == nil {
		return nil
	}
	return d.onFail(err)
}

// startPump makes everything from now on pass the queue. It reports false if the
// Layer has ended. using is held.
func (d *direction) startPump(pump func()) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	ended := make(chan struct{})
	d.ended = ended
	if !d.peer.layer.spawn(func() { defer close(ended); pump() }) {
		return false
	}
	d.pumped = true
	d.setBelow(time.Time{})
	return true
}

// interrupt makes every call fail with err, also one that waits below. A pump that reads goes on,
// and drops the bytes.
func (d *direction) interrupt(err error) {
	d.queue.fail(err)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.sending || !d.pumped {
		d.setBelow(time.Unix(1, 0))
	}
}

func (d *direction) setDeadline(t time.Time) error {
	d.queue.setDeadline(t)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.pumped || d.queue.failure() != nil {
		return nil
	}
	return d.setBelow(t)
}

// A sendDirection is the sending direction of a stream.
type sendDirection struct {
	direction
	to    io.Writer
	onEnd func() // after the last byte, when finish was called

	order *order // of the first bytes of several streams; nil: they need none
	began bool   // the first bytes were written; guarded by using
}

// Write hands p over, to the stream below or to the queue.
func (d *sendDirection) Write(p []byte) (n int, err error) {
	d.using.Lock()
	defer d.using.Unlock()
	d.show(p)
	for {
		size := idlePiece
		if !d.peer.idle() || d.isPumped() {
			size = rulePiece
		}
		k, err := d.piece(p[n:min(n+size, len(p))])
		n += k
		if err != nil || n == len(p) {
			return n, d.explain(err)
		}
	}
}

// decide reports whether a piece of size bytes goes into the queue, and for how long. using is held.
func (d *sendDirection) decide(size int) (queued bool, wait time.Duration, err error) {
	if err := d.queue.refusal(); err != nil {
		return false, 0, err
	}
	wait, stopped := d.peer.judge(d.sending, size)
	first := !d.began && d.order != nil
	d.began = true
	if d.isPumped() {
		return true, wait, nil
	}
	if wait == 0 && !stopped && !(first && d.order.waits(d)) {
		return false, 0, nil
	}
	pump := d.pump
	if first {
		pump = d.pumpInOrder
		d.order.enter(d)
	}
	if !d.startPump(pump) {
		d.order.leave(d)
		return false, 0, errStopped
	}
	return true, wait, nil
}

// piece writes one piece. using is held.
func (d *sendDirection) piece(p []byte) (int, error) {
	queued, wait, err := d.decide(len(p))
	if err == nil && !queued {
		return d.below(p)
	}
	if err == nil {
		if err = d.queue.push(p, wait, true, d.stop); err != nil {
			d.order.leave(d)
		}
	}
	if err != nil {
		return 0, err
	}
	return len(p), nil
}

// below writes p to the stream below.
func (d *sendDirection) below(p []byte) (int, error) {
	n, err := d.to.Write(p)
	if err != nil {
		if failed := d.queue.failure(); failed != nil {
			err = failed
		}
	}
	return n, err
}

// try is Write of all or nothing without waiting. direct does that on the stream below.
func (d *sendDirection) try(p []byte, direct func([]byte) (bool, error)) (bool, error) {
	d.using.Lock()
	defer d.using.Unlock()
	d.show(p)
	queued, wait, err := d.decide(len(p))
	if err != nil {
		return false, d.explain(err)
	}
	if !queued {
		return direct(p)
	}
	d.queue.mu.Lock()
	_, err = d.queue.tryPush(p, wait, true, time.Now())
	d.queue.mu.Unlock()
	if err == errFull {
		return false, nil
	}
	if err != nil {
		d.order.leave(d)
	}
	return err == nil, d.explain(err)
}

// pump writes the bytes that are due while the gate is open.
func (d *sendDirection) pump() {
	for d.pass(rulePiece, d.open) {
	}
}

// pumpInOrder is pump for a stream whose first bytes wait.
func (d *sendDirection) pumpInOrder() {
	// A stream below has room for so little at once: later streams wait for it.
	more := d.pass(firstPiece, func() bool { return d.open() && !d.order.waits(d) })
	d.order.leave(d)
	if more {
		d.pump()
	}
}

// pass writes the next bytes, at most limit, when open says that they may pass. It reports false at
// the end.
func (d *sendDirection) pass(limit int, open func() bool) bool {
	p, err := d.queue.pop(limit, open, false, d.stop)
	if err == io.EOF {
		d.onEnd()
	}
	if err != nil {
		return false
	}
	if _, err := d.to.Write(p); err != nil {
		d.queue.fail(err)
		return false
	}
	return true
}

// finish has onEnd called after the written bytes. Without a pump it is called at once, unless the
// gate is closed.
func (d *sendDirection) finish() {
	d.using.Lock()
	defer d.using.Unlock()
	if d.queue.finished() {
		return
	}
	d.queue.finish(io.EOF)
	if !d.isPumped() && (d.open() || !d.startPump(d.pump)) {
		d.onEnd()
	}
}

// A recvDirection is the receiving direction of a stream.
type recvDirection struct {
	direction
	from io.Reader
}

// Read returns bytes that have arrived and may pass.
func (d *recvDirection) Read(p []byte) (int, error) {
	d.using.Lock()
	defer d.using.Unlock()
	if !d.isPumped() {
		n, done, err := d.direct(p)
		if done {
			return n, d.explain(err)
		}
	}
	if len(p) == 0 {
		return 0, nil
	}
	data, err := d.queue.pop(len(p), d.open, true, d.stop)
	return copy(p, data), d.explain(err)
}

// direct reads from the stream below. If the bytes may not pass yet it starts the pump and is not
// done.
func (d *recvDirection) direct(p []byte) (n int, done bool, err error) {
	if err := d.queue.failure(); err != nil {
		return 0, true, err
	}
	n, err = d.from.Read(p)
	d.show(p[:n])
	if err != nil {
		if failed := d.queue.failure(); failed != nil {
			return n, true, failed
		}
	}
	if d.peer.idle() || n == 0 && (err == nil || errors.Is(err, os.ErrDeadlineExceeded)) {
		return n, true, err
	}
	wait, stopped := d.peer.judge(d.sending, n)
	if wait == 0 && !stopped {
		return n, true, err
	}
	if n > 0 {
		_ = d.queue.push(p[:n], wait, false, d.stop) // the queue is empty: there is room
	}
	if err != nil {
		d.queue.finish(err)
	}
	pump := d.pump
	if err != nil { // there is no more to read
		pump = func() {}
	}
	if !d.startPump(pump) {
		return 0, true, errStopped
	}
	return 0, false, nil
}

// pump reads ahead, up to the limit of a byteQueue.
func (d *recvDirection) pump() {
	buf := make([]byte, rulePiece)
	for {
		n, err := d.from.Read(buf)
		if n > 0 {
			wait, _ := d.peer.judge(d.sending, n)
			if d.queue.push(buf[:n], wait, false, d.stop) == errStopped {
				return
			}
		}
		switch {
		case err == nil:
		case errors.Is(err, os.ErrDeadlineExceeded) && d.queue.failure() == nil:
			// The deadline was set for a reader that is not there any more.
			d.setBelow(time.Time{})
		default:
			d.queue.finish(err)
			return
		}
	}
}
