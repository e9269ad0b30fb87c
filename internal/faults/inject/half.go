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

// A sink is where an outHalf writes.
type sink interface {
	io.Writer
	SetWriteDeadline(time.Time) error
}

// A source is where an inHalf reads.
type source interface {
	io.Reader
	SetReadDeadline(time.Time) error
}

// A mode is how a half works: directly, or, once a rule has made something
// wait, through its line and a pump.
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

// An outHalf is the sending direction of a stream.
type outHalf struct {
	who     *party
	to      sink
	stop    <-chan struct{} // ends the pump
	first   func([]byte)    // is shown the first bytes; nil: not needed
	onEnd   func()          // after the last byte, when finish was called
	onFail  func(error) error
	writing sync.Mutex // held during a Write; guards shown
	shown   bool
	mode    mode
	line    line
}

// Write hands p over, to the stream below or to the line.
func (h *outHalf) Write(p []byte) (n int, err error) {
	h.writing.Lock()
	defer h.writing.Unlock()
	h.show(p)
	for {
		size := idlePiece
		if !h.who.idle() || h.mode.isPumped() {
			size = rulePiece
		}
		k, err := h.piece(p[n:min(n+size, len(p))])
		n += k
		if err != nil || n == len(p) {
			return n, h.explain(err)
		}
	}
}

func (h *outHalf) show(p []byte) {
	if !h.shown && h.first != nil && len(p) > 0 {
		h.first(p)
		h.shown = true
	}
}

// explain lets the owner replace an error by a better one.
func (h *outHalf) explain(err error) error {
	if err == nil || h.onFail == nil {
		return err
	}
	return h.onFail(err)
}

// piece writes one piece. writing is held.
func (h *outHalf) piece(p []byte) (int, error) {
	if err := h.line.refusal(); err != nil {
		return 0, err
	}
	wait, stopped := h.who.judge(true, len(p))
	if !h.mode.isPumped() {
		if wait == 0 && !stopped {
			return h.below(p)
		}
		if !h.startPump() {
			return 0, errStopped
		}
	}
	if err := h.line.push(p, wait, true, h.stop); err != nil {
		return 0, err
	}
	return len(p), nil
}

// below writes p to the stream below.
func (h *outHalf) below(p []byte) (int, error) {
	n, err := h.to.Write(p)
	if err != nil {
		if failed := h.line.failure(); failed != nil {
			err = failed
		}
	}
	return n, err
}

// interrupt makes every write fail with err, also one that waits below.
func (h *outHalf) interrupt(err error) {
	h.line.fail(err)
	h.mode.mu.Lock()
	defer h.mode.mu.Unlock()
	h.to.SetWriteDeadline(time.Unix(1, 0))
}

// try is Write of all or nothing without waiting. direct does that on the stream below.
func (h *outHalf) try(p []byte, direct func([]byte) (bool, error)) (bool, error) {
	h.writing.Lock()
	defer h.writing.Unlock()
	h.show(p)
	if err := h.line.refusal(); err != nil {
		return false, h.explain(err)
	}
	wait, stopped := h.who.judge(true, len(p))
	if !h.mode.isPumped() {
		if wait == 0 && !stopped {
			return direct(p)
		}
		if !h.startPump() {
			return false, h.explain(errStopped)
		}
	}
	h.line.mu.Lock()
	_, err := h.line.tryPush(p, wait, true, time.Now())
	h.line.mu.Unlock()
	if err == errFull {
		return false, nil
	}
	return err == nil, h.explain(err)
}

// startPump makes everything from now on pass the line. It reports false if the
// Layer has ended. writing is held.
func (h *outHalf) startPump() bool {
	h.mode.mu.Lock()
	defer h.mode.mu.Unlock()
	h.mode.stopped = make(chan struct{})
	if !h.who.layer.spawn(h.pump) {
		return false
	}
	h.mode.pumped = true
	h.to.SetWriteDeadline(time.Time{})
	return true
}

// pump writes the bytes that are due while the gate is open.
func (h *outHalf) pump() {
	defer close(h.mode.stopped)
	open := func() bool { return !h.who.gate(true, false).Stopped }
	for {
		p, err := h.line.pop(rulePiece, open, false, h.stop)
		if err == io.EOF {
			h.onEnd()
		}
		if err != nil {
			return
		}
		if _, err := h.to.Write(p); err != nil {
			h.line.fail(err)
			return
		}
	}
}

// finish has onEnd called after the written bytes. Without a pump it is called at once, unless the
// gate is closed.
func (h *outHalf) finish() {
	h.writing.Lock()
	defer h.writing.Unlock()
	if h.line.finished() {
		return
	}
	h.line.finish(io.EOF)
	if !h.mode.isPumped() && (!h.who.gate(true, false).Stopped || !h.startPump()) {
		h.onEnd()
	}
}

func (h *outHalf) setDeadline(t time.Time) error {
	h.line.setDeadline(t)
	h.mode.mu.Lock()
	defer h.mode.mu.Unlock()
	if h.mode.pumped || h.line.failure() != nil {
		return nil
	}
	return h.to.SetWriteDeadline(t)
}

// An inHalf is the receiving direction of a stream.
type inHalf struct {
	who     *party
	from    source
	stop    <-chan struct{} // ends the pump
	first   func([]byte)
	onFail  func(error) error
	reading sync.Mutex // held during a Read; guards shown
	shown   bool
	mode    mode
	line    line
}

// Read returns bytes that have arrived and may pass.
func (h *inHalf) Read(p []byte) (int, error) {
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
	open := func() bool { return !h.who.gate(false, false).Stopped }
	data, err := h.line.pop(len(p), open, true, h.stop)
	return copy(p, data), h.explain(err)
}

func (h *inHalf) explain(err error) error {
	if err == nil || h.onFail == nil {
		return err
	}
	return h.onFail(err)
}

// direct reads from the stream below. If the bytes may not pass yet it starts the pump and is not
// done.
func (h *inHalf) direct(p []byte) (n int, done bool, err error) {
	if err := h.line.failure(); err != nil {
		return 0, true, err
	}
	n, err = h.from.Read(p)
	h.show(p[:n])
	if err != nil {
		if failed := h.line.failure(); failed != nil {
			return n, true, failed
		}
	}
	if h.who.idle() || n == 0 && (err == nil || errors.Is(err, os.ErrDeadlineExceeded)) {
		return n, true, err
	}
	wait, stopped := h.who.judge(false, n)
	if wait == 0 && !stopped {
		return n, true, err
	}
	if n > 0 {
		_ = h.line.push(p[:n], wait, false, h.stop) // the line is empty: there is room
	}
	if err != nil {
		h.line.finish(err)
	}
	if !h.startPump(err == nil) {
		return 0, true, errStopped
	}
	return 0, false, nil
}

func (h *inHalf) show(p []byte) {
	if !h.shown && h.first != nil && len(p) > 0 {
		h.first(p)
		h.shown = true
	}
}

// startPump makes everything from now on pass the line; more says that there
// may be more. reading is held.
func (h *inHalf) startPump(more bool) bool {
	h.mode.mu.Lock()
	defer h.mode.mu.Unlock()
	h.mode.stopped = make(chan struct{})
	pump := h.pump
	if !more {
		pump = func() { close(h.mode.stopped) }
	}
	if !h.who.layer.spawn(pump) {
		return false
	}
	h.mode.pumped = true
	h.from.SetReadDeadline(time.Time{})
	return true
}

// pump reads ahead, up to the limit of a line.
func (h *inHalf) pump() {
	defer close(h.mode.stopped)
	buf := make([]byte, rulePiece)
	for {
		n, err := h.from.Read(buf)
		if n > 0 {
			wait, _ := h.who.judge(false, n)
			if h.line.push(buf[:n], wait, false, h.stop) == errStopped {
				return
			}
		}
		switch {
		case err == nil:
		case errors.Is(err, os.ErrDeadlineExceeded) && h.line.failure() == nil:
			// The deadline was set for a reader that is not there any more.
			h.from.SetReadDeadline(time.Time{})
		default:
			h.line.finish(err)
			return
		}
	}
}

// interrupt makes every read fail with err, also one that waits below.
func (h *inHalf) interrupt(err error) {
	h.line.fail(err)
	h.mode.mu.Lock()
	defer h.mode.mu.Unlock()
	if !h.mode.pumped {
		h.from.SetReadDeadline(time.Unix(1, 0))
	}
}

func (h *inHalf) setDeadline(t time.Time) error {
	h.line.setDeadline(t)
	h.mode.mu.Lock()
	defer h.mode.mu.Unlock()
	if h.mode.pumped || h.line.failure() != nil {
		return nil
	}
	return h.from.SetReadDeadline(t)
}

// over reports whether err, which Read has returned, is the last word.
func (h *inHalf) over(err error) bool { return !errors.Is(err, os.ErrDeadlineExceeded) }
