package path

import "time"

// A Silence measures for how long nothing has come from the kernel at the other end of a
// tuned socket. The zero value is ready to use.
type Silence struct {
	segments uint32        // that had come at the last look
	looked   time.Duration // when that was
	quiet    time.Duration
}

// pokeAfter is the silence from which each look asks the peer's kernel for a sign of life: a
// network that loses packets may have lost the answers to the few questions before.
const pokeAfter = 1200 * time.Millisecond

// Look returns the silence of s at now; every is how often it is called. Time between
// two calls beyond twice every is not counted: the machine may have stood still.
//
// A sender whose peer has no room asks at ever longer intervals; if both ends are such
// senders nothing arrives, which is no evidence of a loss.
func (m *Silence) Look(s *Held, now, every time.Duration) time.Duration {
	since := min(now-m.looked, 2*every)
	m.looked = now
	info := s.info()
	switch {
	case info == nil || info.State != established && info.State != finWait2 && info.State != closeWait,
		info.Unacked == 0 && info.Notsent_bytes > 0:
		m.quiet = 0
		return 0
	case info.Segs_in != m.segments:
		m.segments, m.quiet = info.Segs_in, 0
		return 0
	}
	m.quiet += since
	if m.quiet > pokeAfter {
		_ = s.control(poke) // it fails only when the socket is closed
	}
	return m.quiet
}

// States of a TCP connection (linux/tcp_states.h); in the first three the peer's kernel answers.
const (
	established = 1
	finWait1    = 4
	finWait2    = 5
	closeWait   = 8
	ended       = 7 // no connection any more
)
