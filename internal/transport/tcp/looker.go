package tcp

import (
	"net"
	"runtime"
	"sync/atomic"
	"syscall"

	"github.com/fabricd/fabricd/internal/spin"
)

// mostLooks bounds how often a reader looks whether its socket has something, in
// some forty microseconds, before it sleeps.
const mostLooks = 64

// smallMachine has too few processors for looking: with two, a peer in the same
// process is slowed down by half.
const smallMachine = 4

// lookers counts the goroutines of this process that look. One processor is left
// for who does not: while all of them look, nobody asks the kernel for others.
var lookers atomic.Int32

// A looker reads from a socket without waiting, several times, as long as that
// pays. The zero looker never looks.
type looker struct {
	raw    syscall.RawConn
	budget spin.Budget
	room   int32 // how many may look at once in this process

	// Of one attempt: fields, so that it needs no memory.
	attempt func(uintptr) bool
	p       []byte
	n       int
	err     error
}

// begin makes l look at c, if c has a socket and the machine a processor to
// spare.
func (l *looker) begin(c net.Conn) {
	processors := spin.Processors()
	if l.raw = rawConn(c); l.raw == nil || processors < smallMachine {
		return
	}
	l.room = int32(processors) - 1
	l.budget = spin.New(mostLooks)
	l.attempt = func(fd uintptr) bool {
		l.n, l.err = readNow(fd, l.p)
		return true
	}
}

// look reads what comes within the budget. n is 0 without an error if nothing
// did.
func (l *looker) look(p []byte) (n int, err error) {
	looks := l.budget.Looks()
	if looks == 0 {
		return 0, nil
	}
	if lookers.Add(1) > l.room {
		lookers.Add(-1)
		return 0, nil
	}
	defer lookers.Add(-1)
	l.p = p
	for range looks {
		runtime.Gosched() // who was woken by this goroutine goes on
		l.n, l.err = 0, nil
		if err = l.raw.Read(l.attempt); err == nil {
			err = l.err
		}
		if n = l.n; n > 0 || err != nil {
			break
		}
	}
	l.p = nil
	l.budget.Ended(n > 0)
	return n, err
}
