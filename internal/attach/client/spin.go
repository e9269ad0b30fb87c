package client

import (
	"fmt"
	"time"

	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/internal/spin"
	"github.com/fabricd/fabricd/internal/status"
)

// How long a call polls its ring before it sleeps. A wake-up costs microseconds and a system call
// on both sides; polling costs a processor.

const (
	// pauseStep is the number of pause instructions between two polls.
	pauseStep = 1
	// spinSteps bounds the polls at normal latency: some ten microseconds.
	spinSteps = 400
	// lowSteps bounds the polls at low latency: some tens of milliseconds.
	lowSteps = 1 << 18
	// aloneSteps is how many of them precede the first yield: some fifty microseconds, longer than
	// an answer takes.
	aloneSteps = 1 << 11
	// shareSteps is the number of polls between two yields: some two microseconds.
	shareSteps = 64
	// A machine with fewer processors than smallMachine has too few for polling.
	smallMachine = 4
)

// lowLatency parses the setting of this process: at "low", calls keep their processor while the
// peer answers.
func lowLatency(setting string) (bool, error) {
	switch setting {
	case "", "normal":
		return false, nil
	case "low":
		return true, nil
	}
	return false, fmt.Errorf("%s is %q, want low or normal: %w", envLatency, setting, status.Invalid)
}

// A spinner decides how long to poll. The calls of one direction share it, one at a time. The zero
// spinner never polls.
type spinner struct {
	low    bool // poll as long as permitted
	most   int
	alone  int  // polls before the first yield, if no other thread shares the processor
	shared bool // the answering thread does
	budget spin.Budget
}

// spinner returns a spinner for a direction of a shared-memory path.
func (t tuning) spinner() spinner {
	processors := spin.Processors()
	most, alone := t.maxPolls(processors), aloneSteps
	if processors == 1 {
		alone = shareSteps // there no peer answers before it yields
	}
	return spinner{low: t.low, most: most, alone: alone, budget: spin.New(most)}
}

// maxPolls is the largest number of polls of one wait on that many processors. A setting of the
// application applies on every machine; the default polls only where other threads have processors
// left.
func (t tuning) maxPolls(processors int) int {
	switch {
	case t.spin >= 0:
		return t.spin
	case t.low:
		return lowSteps
	case processors >= smallMachine:
		return spinSteps
	}
	return 0
}

// watch polls until seen reports true, or over does, or polling does not pay. The result makes the
// next wait longer or shorter.
func (s *spinner) watch(seen, over func() bool) bool {
	if s.low {
		return s.busyPoll(seen, over, yield)
	}
	polls := s.budget.Polls()
	if polls == 0 {
		return false
	}
	saw := poll(polls, seen, over) > 0
	s.budget.Ended(saw)
	return saw
}

// busyPoll polls at low latency, on a processor of its own as long as it has one. After an answer that
// came while another thread ran on that processor, the next wait yields early: the kernel may leave
// both threads there for tens of milliseconds although other processors are idle. Otherwise it does
// not, which would cost large messages some percent.
func (s *spinner) busyPoll(seen, over, yield func() bool) bool {
	alone := s.alone
	if s.shared {
		alone = min(alone, shareSteps)
	}
	saw, shared := busyPoll(s.most, alone, seen, over, yield)
	s.shared = shared || s.shared && !saw
	return saw
}

// busyPoll polls at low latency: it keeps its processor for alone polls. Then it yields now and then to
// other threads and goroutines, one of which may be the sender: the scheduler may have put it on
// the same processor, where it would run after milliseconds; or more goroutines of this process
// poll than there are processors, and none would progress until the runtime preempts one, after 10
// ms. shared reports whether the event came during a yield that was long.
func busyPoll(steps, alone int, seen, over, yield func() bool) (saw, shared bool) {
	alone = min(steps, alone)
	if poll(alone, seen, over) > 0 {
		return true, false
	}
	for left := steps - alone; left > 0 && !over(); left -= shareSteps {
		long := yield()
		if n := poll(min(left, shareSteps), seen, over); n > 0 {
			return true, long && n == 1
		}
	}
	return false, false
}

// yield yields, and reports whether another thread ran meanwhile.
func yield() bool {
	before := time.Now()
	spin.Yield()
	return time.Since(before) >= spin.OtherRan
}

// poll returns the number of polls until seen reported true; 0 if it did not.
func poll(steps int, seen, over func() bool) int {
	for i := range steps {
		if seen() {
			return i + 1
		}
		if i%64 == 63 && over() {
			return 0
		}
		shm.Pause(pauseStep)
	}
	return 0
}
