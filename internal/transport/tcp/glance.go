package tcp

import (
	"runtime"
	"time"
)

// While every processor runs a goroutine that encrypts or decrypts, nobody asks the
// kernel which sockets have something: the scheduler does so when a processor has
// nothing to run. So whoever moves much on a bulk connection with TLS looks at the
// session's first connection between records, and has its reader go on at once if
// something has come: what is small does not wait for what is large to pause.

// Who writes glances only if this end has said something short lately, and so is
// likely to wait for an answer: else what comes to it is the word that its bytes have
// come, which may wait until there is much of it.

const (
	glanceEvery = 20 * time.Microsecond // what a record or two take
	lately      = 2 * time.Millisecond
)

// glance has who waits for the first connection read it, if there is something, and
// if the caller did not look just before, at last.
func (s *session) glance(last *time.Time) {
	if !s.socket.waits.Load() {
		return
	}
	now := time.Now()
	if now.Sub(*last) < glanceEvery {
		return
	}
	if *last = now; s.socket.readable() {
		s.helm.nudge()
		runtime.Gosched()
	}
}

// glanceAside is glance for who writes.
func (b *bulk) glanceAside() {
	if s := b.s; time.Since(s.collected.begun)-time.Duration(s.spoke.Load()) < lately {
		s.glance(&b.wrote)
	}
}

// readable reports whether the socket has something.
func (r *socketReader) readable() (yes bool) {
	if err := r.raw.Control(func(fd uintptr) { yes = canRead(fd) }); err != nil {
		return false // it has ended
	}
	return yes
}

// nudge makes the holder look at the connection, and keep the helm.
func (h *helm) nudge() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.held && !h.interrupted && !h.nudged {
		h.nudged = true
		h.interrupt()
	}
}

// goesOn reports whether the holder, whose read was interrupted, was nudged and no
// more.
func (h *helm) goesOn() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.nudged || h.interrupted || h.over {
		return false
	}
	h.nudged = false
	h.resume()
	return true
}
