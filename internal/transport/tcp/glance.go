package tcp

import (
	"runtime"
	"time"
)

// While every processor runs a goroutine that encrypts or decrypts, nobody asks the
// kernel which sockets have something: the scheduler does so when a processor has
// nothing to run. The same is true of one processor that moves much without TLS while
// the thread of the other one, woken, waits behind it for the kernel to let it run, for
// up to a few milliseconds. So whoever moves much on a bulk connection looks at the first
// connections of all sessions (company.go) between records, and has the reader of its own
// go on at once if something has come, others' when they have waited for two looks: what
// is small does not wait for what is large to pause. Without TLS it looks only while
// somebody here talks. It lets others run besides, who may have an answer already, if this
// end talks or a reader was roused.

// Who writes looks only if somebody here has said something short lately, and so is likely
// to wait for an answer, and at its own session at once only if that is this end: else
// what comes is the word that bytes have come, which may wait until there is much of it.

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
}

// yielded notes that others have run from begun to now. Those who compute keep the
// processor for milliseconds: who lets them run at each look would move nothing any
// more, so that it goes on for four times as long.
func (o *lookout) yielded(begun, now time.Time) {
	if took := now.Sub(begun); took >= longRun {
		o.keeps = now.Add(4 * took)
	}
}

// glance is rouse, if the caller did not look just before. If this end talks, it lets
// others run besides: who has got an answer may be waiting for the processor.
func (s *session) glance(o *lookout, eager, talks bool) {
	now := time.Now()
	if now.Sub(o.last) < glanceEvery {
		return
	}
	o.last = now
	if s.company.rouse(s, eager) {
		talks = true
	}
	if talks && now.After(o.keeps) {
		runtime.Gosched()
		o.yielded(now, time.Now())
	}
}

// glanceAside is glance for who writes.
func (b *bulk) glanceAside() {
	if b.s.company.talks() {
		talks := b.s.talks()
		b.s.glance(&b.wrote, talks, talks)
	}
}

// glanceAhead is glance for who reads.
func (b *bulk) glanceAhead() {
	if b.tls != nil || b.s.company.talks() {
		talks := b.s.talks()
		b.s.glance(&b.looked, b.tls != nil || talks, talks)
	}
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
