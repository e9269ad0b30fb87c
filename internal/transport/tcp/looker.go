package tcp

import (
	"net"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/fabricd/fabricd/internal/spin"
)

// mostLooks bounds how often a reader looks whether its socket has something, in
// some forty microseconds, before it sleeps.
const mostLooks = 64

// With low latency a reader keeps looking: to be woken costs ten to a hundred
// microseconds, as deep as the processor sleeps, and nothing to look again.
const (
	// lowWatch is how long at most: a wake-up is little beside a longer wait, and it is
	// all that an idle link costs for each heartbeat.
	lowWatch = 2 * time.Millisecond
	// lowReads is how many reads lie between two times that others may run, and the reader
	// looks at the clock and whether it is called away: a few microseconds.
	lowReads = 16
	// sharedReads is the same where somebody who answers is on the same processor.
	sharedReads = 2
	// lowTurn is how long goroutines of this process wait for the reader's processor at
	// most, unless it has probably woken one. To let them run wakes a thread of the
	// scheduler, whether there is one that would or not, and that thread wants a processor:
	// where the other one belongs to the peer's reader, each of the two waited for its turn,
	// and a round trip took twice as long.
	lowTurn = 200 * time.Microsecond
	// busyFor is how long others have the processor, if they take it, when there are
	// those who compute; busyShare is how many times as long a reader then sleeps
	// instead of looking, up to busySleep. Who sleeps gets a processor when it is woken;
	// who has given way waits for its turn, for milliseconds each time.
	busyFor   = 200 * time.Microsecond
	busyShare = 16
	busySleep = 100 * time.Millisecond
	// countEvery is how often a reader looks up how many processors its process has: the
	// runtime follows the limits of control groups.
	countEvery = 100 * time.Millisecond
)

// smallMachine has too few processors for looking: with two, a peer in the same
// process is slowed down by half. Who has asked for low latency has counted them.
const smallMachine = 4

// lookers counts the goroutines of this process that look. One processor of the
// scheduler is left for who does not: while all of them look, nobody asks the kernel for
// others.
var lookers atomic.Int32

// A looker reads from a socket without waiting, several times, as long as that
// pays, or as low latency wants it. The zero looker never looks.
type looker struct {
	raw     syscall.RawConn
	low     bool
	budget  spin.Budget
	most    int32     // how many may look at once in this process
	counted time.Time // when that was last looked up, with low latency
	sleeps  time.Time // until then, since others compute
	shares  bool      // the last thing that it saw came in a turn of somebody else

	// Who was probably woken by what was read: a lane's reader, or, if nothing was said
	// since, whoever it was handed on to.
	ran   time.Time // when goroutines of this process were let run
	woke  bool      // a lane's reader
	came  int64     // what spoke was when something came; -1: they were let run since
	spoke *atomic.Int64

	// Of one attempt: fields, so that it needs no memory.
	attempt func(uintptr) bool
	p       []byte
	n       int
	err     error
}

// begin makes l look at c, if c has a socket, and low latency is wanted or the machine
// has a processor to spare. spoke changes whenever something short is said there.
func (l *looker) begin(c net.Conn, low bool, spoke *atomic.Int64) {
	l.raw, l.spoke, l.came = rawConn(c), spoke, -1
	processors := spin.Processors()
	switch {
	case l.raw == nil:
	case low:
		l.low, l.attempt = true, l.readSome
	case processors >= smallMachine:
		l.most = int32(processors - 1)
		l.budget = spin.New(mostLooks)
		l.attempt = l.readOnce
	}
}

func (l *looker) readOnce(fd uintptr) bool {
	l.n, l.err = readNow(fd, l.p)
	return true
}

func (l *looker) readSome(fd uintptr) bool {
	l.n, l.err = lookNow(fd, l.p, l.reads())
	return true
}

// look reads what comes while it may look. n is 0 without an error if nothing did.
func (l *looker) look(p []byte) (n int, err error) {
	if l.low {
		return l.stay(p, time.Now())
	}
	looks := l.budget.Looks()
	if looks == 0 {
		return 0, nil
	}
	defer lookers.Add(-1)
	if lookers.Add(1) > l.most {
		return 0, nil
	}
	for range looks {
		runtime.Gosched() // who was woken by this goroutine goes on
		if n, err = l.try(p); n > 0 || err != nil {
			break
		}
	}
	l.budget.Ended(n > 0)
	return n, err
}

// stay is look with low latency. Who has the processor while others wait for it would keep
// those from answering: two fabricds with an application each took milliseconds for what
// takes 50 µs, on two processors.
func (l *looker) stay(p []byte, now time.Time) (n int, err error) {
	if now.Before(l.sleeps) {
		return 0, nil
	}
	if now.Sub(l.counted) >= countEvery { // they may be more than the machine has, so that some are left
		l.counted, l.most = now, int32(runtime.GOMAXPROCS(0)-1)
	}
	defer lookers.Add(-1)
	if lookers.Add(1) > l.most {
		return 0, nil
	}
	until, turn := now.Add(lowWatch), time.Duration(0)
	for {
		if n, err = l.try(p); n > 0 || err != nil || !now.Before(until) {
			l.ended(n > 0, turn)
			return n, err
		}
		before, given := now, time.Now()
		l.giveWay(given)
		now = time.Now()
		turn = now.Sub(given)
		if took := now.Sub(before); took >= busyFor { // the reads too: who is held up may be so anywhere
			l.sleeps, until = now.Add(min(busyShare*took, busySleep)), now // after one more look
		}
	}
}

// ended tells how a wait ended, and how long others had the processor just before.
func (l *looker) ended(saw bool, turn time.Duration) { l.shares = saw && turn >= spin.Turn }

// reads returns how many reads lie between two times that others may run.
func (l *looker) reads() int {
	if l.shares {
		return sharedReads
	}
	return lowReads
}

// giveWay lets others run, of this process too if one was probably woken or it is their turn.
func (l *looker) giveWay(now time.Time) {
	all := l.woke || l.came >= 0 && l.came == l.spoke.Load() || now.Sub(l.ran) >= lowTurn
	if all {
		l.ran, l.woke, l.came = now, false, -1
	}
	spin.GiveWay(all)
}

// try makes one attempt, which a deadline ends.
func (l *looker) try(p []byte) (n int, err error) {
	l.p, l.n, l.err = p, 0, nil
	if err = l.raw.Read(l.attempt); err == nil {
		err = l.err
	}
	l.p = nil
	return l.n, err
}
