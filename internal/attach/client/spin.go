package client

import (
	"fmt"
	"time"

	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/internal/spin"
	"github.com/fabricd/fabricd/internal/status"
)

// How long a call watches its ring before it sleeps. Waking costs microseconds
// and a system call on both sides; watching costs a processor.

const (
	// pauseStep is how many pause instructions lie between two looks.
	pauseStep = 1
	// spinSteps bounds the looks of the normal latency: some ten microseconds.
	spinSteps = 400
	// lowSteps bounds those of low latency: some tens of milliseconds.
	lowSteps = 1 << 18
	// aloneSteps are those of them before it yields: some fifty microseconds, which
	// is longer than an answer takes.
	aloneSteps = 1 << 11
	// shareSteps lie between two times that others may run: some two microseconds.
	shareSteps = 64
	// smallMachine has too few processors for watching.
	smallMachine = 4
)

// lowLatency reads the setting of this process: with low, its calls keep their
// processor while the peer talks.
func lowLatency(setting string) (bool, error) {
	switch setting {
	case "", "normal":
		return false, nil
	case "low":
		return true, nil
	}
	return false, fmt.Errorf("%s is %q, want low or normal: %w", envLatency, setting, status.Invalid)
}

// A spinner decides how long to watch. One direction's calls share it, one at a
// time. The zero spinner never watches.
type spinner struct {
	low    bool // each watch takes as many looks as it may
	most   int
	alone  int  // looks of a watch before it yields, where nothing shares its processor
	shared bool // somebody does who answers
	budget spin.Budget
}

// spinner returns one for a direction of a channel.
func (t tuning) spinner() spinner {
	processors := spin.Processors()
	most, alone := t.looks(processors), aloneSteps
	if processors == 1 {
		alone = shareSteps // there no peer answers before it yields
	}
	return spinner{low: t.low, most: most, alone: alone, budget: spin.New(most)}
}

// looks is how many a watch may take at most, where a process has so many
// processors. What the application has set holds on every machine; what it has
// not, where watching takes a processor from nobody.
func (t tuning) looks(processors int) int {
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

// watch looks until there is something to see, or it is over, or watching does
// not pay. What it learns makes the next watch longer or shorter.
func (s *spinner) watch(seen, over func() bool) bool {
	if s.low {
		return s.stay(seen, over, giveWay)
	}
	looks := s.budget.Looks()
	if looks == 0 {
		return false
	}
	saw := look(looks, seen, over) > 0
	s.budget.Ended(saw)
	return saw
}

// stay watches as low latency does, on a processor of its own as long as it has one. After
// an answer that came in a turn of somebody else on that processor, the next watch gives
// way early: the kernel may leave the two together for tens of milliseconds though others
// are idle. Otherwise it does not, which would cost large messages some percent.
func (s *spinner) stay(seen, over, giveWay func() bool) bool {
	alone := s.alone
	if s.shared {
		alone = min(alone, shareSteps)
	}
	saw, turn := stay(s.most, alone, seen, over, giveWay)
	s.shared = turn || s.shared && !saw
	return saw
}

// stay watches as low latency does: it keeps its processor for alone looks. Then it gives
// way now and then to other threads and other goroutines, who may be the ones it waits
// for: the scheduler has put them on the same processor, where their turn would come after
// milliseconds, or more of this process watch than there are processors, and nothing would
// move until the runtime takes one away from them, which it does after 10 ms. turn tells
// whether it saw what somebody did whose turn giveWay says to have been long.
func stay(steps, alone int, seen, over, giveWay func() bool) (saw, turn bool) {
	alone = min(steps, alone)
	if look(alone, seen, over) > 0 {
		return true, false
	}
	for left := steps - alone; left > 0 && !over(); left -= shareSteps {
		long := giveWay()
		if n := look(min(left, shareSteps), seen, over); n > 0 {
			return true, long && n == 1
		}
	}
	return false, false
}

// giveWay lets others run, and tells whether somebody took a turn.
func giveWay() bool {
	before := time.Now()
	spin.Yield()
	return time.Since(before) >= spin.Turn
}

// look returns how many looks it took to see something; 0 if there was nothing.
func look(steps int, seen, over func() bool) int {
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
