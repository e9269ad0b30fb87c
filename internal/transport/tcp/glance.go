package tcp

import (
	"runtime"
	"time"
)

// While every processor runs a goroutine that encrypts or decrypts, nobody asks the
// kernel which sockets have something: the scheduler does so when a processor has
// nothing to run. So whoever moves much on a bulk connection with TLS looks at the
// session's first connection between records, and has its reader go on at once if
// something has come: what is small does not wait for what is large to pause. Without
// TLS it does so only while this end talks; and then, with TLS or without, it lets
// others run, who may have an answer already.

// Who writes glances only if this end has said something short lately, and so is
// likely to wait for an answer: else what comes to it is the word that its bytes have
// come, which may wait until there is much of it.

const (
	glanceEvery = 20 * time.Microsecond // what a record or two take
	lately      = 2 * time.Millisecond
	// longRun is how long others run who compute: who has an answer needs less.
	longRun = time.Millisecond
)

// A lookout is when a goroutine that moves much looks aside, and lets others run. It
// is that goroutine's.
type lookout struct {
	last  time.Time // the last look
	keeps time.Time // until then others have had their share of the processor

	// Of one look: fields, so that it needs no memory.
	look func(fd uintptr)
	seen bool
}

// yielded notes that others have run from begun to now. Those who compute keep the
// processor for milliseconds: who lets them run at each look would move nothing any
// more, so that it goes on for four times as long.
func (o *lookout) yielded(begun, now time.Time) {
	if took := now.Sub(begun); took >= longRun {
		o.keeps = now.Add(4 * took)
	}
}

// glance has who waits for the first connection read it, if there is something, and
// if the caller did not look just before, at last. If this end talks, it lets others
// run besides: who has got an answer may be waiting for the processor.
func (s *session) glance(o *lookout, talks bool) {
	now := time.Now()
	if now.Sub(o.last) < glanceEvery {
		return
	}
	o.last = now
	if s.socket.waits.Load() && s.socket.readable(o) {
		s.helm.nudge()
		talks = true
	}
	if talks && now.After(o.keeps) {
		runtime.Gosched()
		o.yielded(now, time.Now())
	}
}

// talks reports whether this end has said something short lately.
func (s *session) talks() bool {
	return time.Since(s.collected.begun)-time.Duration(s.spoke.Load()) < lately
}

// glanceAside is glance for who writes.
func (b *bulk) glanceAside() {
	if b.s.talks() {
		b.s.glance(&b.wrote, true)
	}
}

// glanceAhead is glance for who reads.
func (b *bulk) glanceAhead() {
	if talks := b.s.talks(); talks || b.tls != nil {
		b.s.glance(&b.looked, talks)
	}
}

// readable reports whether the socket has something, as o sees it.
func (r *socketReader) readable(o *lookout) bool {
	if o.look == nil {
		o.look = func(fd uintptr) { o.seen = canRead(fd) }
	}
	o.seen = false
	return r.raw.Control(o.look) == nil && o.seen // else it has ended
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
