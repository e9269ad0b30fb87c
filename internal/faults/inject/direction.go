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
)

// A sink is where an sendDirection writes.
type sink interface {
	io.Writer
	SetWriteDeadline(time.Time) error
}

// A source is where an recvDirection reads.
type source interface {
	io.Reader
	SetReadDeadline(time.Time) error
}

// A mode is how a direction works: directly, or, once a rule has made something
// wait, through its queue and a pump.
type mode struct {
	mu      sync.Mutex // guards pumped, and the deadline of the connection below
	pumped  bool
	stopped chan struct{} // closed when the pump has ended
}

func (m *mode) isPumped() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pumped
}

// An sendDirection is the sending direction of a stream.
type sendDirection struct {
	peer    *peer
	to      sink
	stop    <-chan struct{} // ends the pump
	first   func([]byte)    // is shown the first bytes; nil: not needed
	onEnd   func()          // after the last byte, when finish was called
	onFail  func(error) error
	writing sync.Mutex // held during a Write; guards shown
	shown   bool
	mode    mode
	queue   byteQueue
}

// Write hands p over, to the stream below or to the queue.
func (h *sendDirection) Write(p []byte) (n int, err error) {
	h.writing.Lock()
	defer h.writing.Unlock()
	h.show(p)
	for {
		size := idlePiece
		if !h.peer.idle() || h.mode.isPumped() {
			size = rulePiece
		}
		k, err := h.piece(p[n:min(n+size, len(p))])
		n += k
		if err != nil || n == len(p) {
			return n, h.explain(err)
		}
	}
}

func (h *sendDirection) show(p []byte) {
	if !h.shown && h.first != nil && len(p) > 0 {
		h.first(p)
		h.shown = true
	}
}

// explain lets the owner replace an error by a better one.
func (h *sendDirection) explain(err error) error {
	if err == nil || h.onFail == nil {
		return err
	}
	return h.onFail(err)
}

// piece writes one piece. writing is held.
func (h *sendDirection) piece(p []byte) (int, error) {
	if err := h.queue.refusal(); err != nil {
		return 0, err
	}
	wait, stopped := h.peer.judge(true, len(p))
	if !h.mode.isPumped() {
		if wait == 0 && !stopped {
			return h.below(p)
		}
		if !h.startPump() {
			return 0, errStopped
		}
	}
	if err := h.queue.push(p, wait, true, h.stop); err != nil {
		return 0, err
	}
	return len(p), nil
}

// below writes p to the stream below.
func (h *sendDirection) below(p []byte) (int, error) {
	n, err := h.to.Write(p)
	if err != nil {
		if failed := h.queue.failure(); failed != nil {
			err = failed
		}
	}
	return n, err
}

// interrupt makes every write fail with err, also one that waits below.
func (h *sendDirection) interrupt(err error) {
	h.queue.fail(err)
	h.mode.mu.Lock()
	defer h.mode.mu.Unlock()
	h.to.SetWriteDeadline(time.Unix(1, 0))
}

// try is Write of all or nothing without waiting. direct does that on the stream below.
func (h *sendDirection) try(p []byte, direct func([]byte) (bool, error)) (bool, error) {
	h.writing.Lock()
	defer h.writing.Unlock()
	h.show(p)
	if err := h.queue.refusal(); err != nil {
		return false, h.explain(err)
	}
	wait, stopped := h.peer.judge(true, len(p))
	if !h.mode.isPumped() {
		if wait == 0 && !stopped {
			return direct(p)
		}
		if !h.startPump() {
			return false, h.explain(errStopped)
		}
	}
	h.queue.mu.Lock()
	_, err := h.queue.tryPush(p, wait, true, time.Now())
	h.queue.mu.Unlock()
	if err == errFull {
		return false, nil
	}
	return err == nil, h.explain(err)
}

// startPump makes everything from now on pass the queue. It reports false if the
// Layer has ended. writing is held.
func (h *sendDirection) startPump() bool {
	h.mode.mu.Lock()
	defer h.mode.mu.Unlock()
	h.mode.stopped = make(chan struct{})
	if !h.peer.layer.spawn(h.pump) {
		return false
	}
	h.mode.pumped = true
	h.to.SetWriteDeadline(time.Time{})
	return true
}

// pump writes the bytes that are due while the gate is open.
func (h *sendDirection) pump() {
	defer close(h.mode.stopped)
	open := func() bool { return !h.peer.gate(true, false).Stopped }
	for {
		p, err := h.queue.pop(rulePiece, open, false, h.stop)
		if err == io.EOF {
			h.onEnd()
		}
		if err != nil {
			return
		}
		if _, err := h.to.Write(p); err != nil {
			h.queue.fail(err)
			return
		}
	}
}

// finish has onEnd called after the written bytes. Without a pump it is called at once, unless the
// gate is closed.
func (h *sendDirection) finish() {
	h.writing.Lock()
	defer h.writing.Unlock()
	if h.queue.finished() {
		return
	}
	h.queue.finish(io.EOF)
	if !h.mode.isPumped() && (!h.peer.gate(true, false).Stopped || !h.startPump()) {
		h.onEnd()
	}
}

func (h *sendDirection) setDeadline(t time.Time) error {
	h.queue.setDeadline(t)
	h.mode.mu.Lock()
	defer h.mode.mu.Unlock()
	if h.mode.pumped || h.queue.failure() != nil {
		return nil
	}
	return h.to.SetWriteDeadline(t)
}

// An recvDirection is the receiving direction of a stream.
type recvDirection struct {
	peer    *peer
	from    source
	stop    <-chan struct{} // ends the pump
	first   func([]byte)
	onFail  func(error) error
	reading sync.Mutex // held during a Read; guards shown
	shown   bool
	mode    mode
	queue   byteQueue
}

// Read returns bytes that have arrived and may pass.
func (h *recvDirection) Read(p []byte) (int, error) {
	h.reading.Lock()
	defer h.reading.Unlock()
	if !h.mode.isPumped() {
		n, done, err := h.direct(p)
		if done {
			return n, h.explain(err)
		}
	}
	if len(p) == 0 {
		return 0, nil
	}
	open := func() bool { return !h.peer.gate(false, false).Stopped }
	data, err := h.queue.pop(len(p), open, true, h.stop)
	return copy(p, data), h.explain(err)
}

func (h *recvDirection) explain(err error) error {
	if err == nil || h.onFail == nil {
		return err
	}
	return h.onFail(err)
}

// direct reads from the stream below. If the bytes may not pass yet it starts the pump and is not
// done.
func (h *recvDirection) direct(p []byte) (n int, done bool, err error) {
	if err := h.queue.failure(); err != nil {
		return 0, true, err
	}
	n, err = h.from.Read(p)
	h.show(p[:n])
	if err != nil {
		if failed := h.queue.failure(); failed != nil {
			return n, true, failed
		}
	}
	if h.peer.idle() || n == 0 && (err == nil || errors.Is(err, os.ErrDeadlineExceeded)) {
		return n, true, err
	}
	wait, stopped := h.peer.judge(false, n)
	if wait == 0 && !stopped {
		return n, true, err
	}
	if n > 0 {
		_ = h.queue.push(p[:n], wait, false, h.stop) // the queue is empty: there is room
	}
	if err != nil {
		h.queue.finish(err)
	}
	if !h.startPump(err == nil) {
		return 0, true, errStopped
	}
	return 0, false, nil
}

func (h *recvDirection) show(p []byte) {
	if !h.shown && h.first != nil && len(p) > 0 {
		h.first(p)
		h.shown = true
	}
}

// startPump makes everything from now on pass the queue; more says that there
// may be more. reading is held.
func (h *recvDirection) startPump(more bool) bool {
	h.mode.mu.Lock()
	defer h.mode.mu.Unlock()
	h.mode.stopped = make(chan struct{})
	pump := h.pump
	if !more {
		pump = func() { close(h.mode.stopped) }
	}
	if !h.peer.layer.spawn(pump) {
		return false
	}
	h.mode.pumped = true
	h.from.SetReadDeadline(time.Time{})
	return true
}

// pump reads ahead, up to the limit of a byteQueue.
func (h *recvDirection) pump() {
	defer close(h.mode.stopped)
	buf := make([]byte, rulePiece)
	for {
		n, err := h.from.Read(buf)
		if n > 0 {
			wait, _ := h.peer.judge(false, n)
			if h.queue.push(buf[:n], wait, false, h.stop) == errStopped {
				return
			}
		}
		switch {
		case err == nil:
		case errors.Is(err, os.ErrDeadlineExceeded) && h.queue.failure() == nil:
			// The deadline was set for a reader that is not there any more.
			h.from.SetReadDeadline(time.Time{})
		default:
			h.queue.finish(err)
			return
		}
	}
}

// interrupt makes every read fail with err, also one that waits below.
func (h *recvDirection) interrupt(err error) {
	h.queue.fail(err)
	h.mode.mu.Lock()
	defer h.mode.mu.Unlock()
	if !h.mode.pumped {
		h.from.SetReadDeadline(time.Unix(1, 0))
	}
}

func (h *recvDirection) setDeadline(t time.Time) error {
	h.queue.setDeadline(t)
	h.mode.mu.Lock()
	defer h.mode.mu.Unlock()
	if h.mode.pumped || h.queue.failure() != nil {
		return nil
	}
	return h.from.SetReadDeadline(t)
}

// over reports whether err, which Read has returned, is the last word.
func (h *recvDirection) over(err error) bool { return !errors.Is(err, os.ErrDeadlineExceeded) }
