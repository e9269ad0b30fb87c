package transporttest

import (
	"fmt"
	"io"
	"sync/atomic"

	"github.com/fabricd/fabricd/internal/transport"
)

// A Loan is memory that lanes may hold. As soon as nobody uses it, it is
// overwritten: who sends from it later is found out by the bytes.
type Loan struct {
	P     []byte
	users atomic.Int32
	over  chan struct{}
}

// NewLoan returns a loan with a copy of p, whose first user is the caller.
func NewLoan(p []byte) *Loan {
	l := &Loan{P: append([]byte(nil), p...), over: make(chan struct{})}
	l.users.Store(1)
	return l
}

// Retain implements transport.Hold.
func (l *Loan) Retain() {
	if l.users.Add(1) <= 1 {
		panic("memory is held that nobody lends any more")
	}
}

// Release implements transport.Hold, and ends the use of the caller.
func (l *Loan) Release() {
	switch n := l.users.Add(-1); {
	case n < 0:
		panic("memory is released too often")
	case n == 0:
		for i := range l.P {
			l.P[i] ^= 0xFF
		}
		close(l.over)
	}
}

// Over is closed when nobody uses the memory any more.
func (l *Loan) Over() <-chan struct{} { return l.over }

// Held reports whether anybody uses it.
func (l *Loan) Held() bool { return l.users.Load() > 0 }

// Lend writes head and p to lane as memory that it may hold until the loan is over.
func Lend(lane transport.SendLane, head, p []byte) (*Loan, error) {
	l := NewLoan(p)
	defer l.Release()
	half := len(p) / 2
	head = append([]byte(nil), head...)
	parts := []transport.Part{{Head: head, Payload: l.P[:half]}, {Head: head, Payload: l.P[half:]}}
	n, err := lane.WriteVec(parts, l)
	if err == nil && n != 2*len(head)+len(p) {
		err = fmt.Errorf("%d bytes of %d were written", n, 2*len(head)+len(p))
	}
	clear(head)
	clear(parts)
	return l, err
}

// Lent returns what Lend of the same makes a lane carry.
func Lent(head, p []byte) []byte {
	half := len(p) / 2
	all := append(append([]byte(nil), head...), p[:half]...)
	return append(append(all, head...), p[half:]...)
}

// testHold lends payloads of sizes on both sides of what a provider treats
// differently: the bytes arrive as they were, and when the peer's answer to the
// last of them is read, nobody holds them.
func testHold(e *env) {
	s, r := e.lane()
	back, answers := e.laneBack()
	head, all := []byte("head"), payload(3<<20)
	for _, size := range []int{1, 100, 16 << 10, 64 << 10, 512 << 10, 1 << 20, 512<<10 - 7, 1<<20 - 1, 3 << 20} {
		p := all[:size]
		got := async(func() error {
			b := make([]byte, 2*len(head)+size)
			if _, err := io.ReadFull(r, b); err != nil {
				return err
			}
			if string(b) != string(Lent(head, p)) {
				return fmt.Errorf("other bytes than the %d that were lent", size)
			}
			_, err := back.Write([]byte("a"))
			return err
		})
		loan, err := Lend(s, head, p)
		if err != nil {
			e.Fatalf("write of %d: %v", size, err)
		}
		e.want(answers, []byte("a"))
		if loan.Held() {
			e.Errorf("%d bytes are held when their reader's answer is there", size)
		}
		if err := soon(e, "read", got); err != nil {
			e.Error(err)
		}
	}
}

// laneBack returns both ends of a lane from B to A, as lane does.
func (e *env) laneBack() (transport.SendLane, transport.RecvLane) {
	e.Helper()
	s, err := e.b.OpenLane(e.ctx)
	if err != nil {
		e.Fatalf("open lane: %v", err)
	}
	e.write(s, []byte("hello"))
	r, err := e.a.AcceptLane(e.ctx)
	if err != nil {
		e.Fatalf("accept lane: %v", err)
	}
	e.want(r, []byte("hello"))
	return s, r
}

// testHoldEnds cancels lanes and ends a session with payloads under way: nobody
// holds them soon after.
func testHoldEnds(e *env) {
	for _, end := range []func(s transport.SendLane, r transport.RecvLane){
		func(s transport.SendLane, _ transport.RecvLane) { s.Cancel() },
		func(_ transport.SendLane, r transport.RecvLane) { r.Cancel() },
		func(transport.SendLane, transport.RecvLane) { e.a.Close(transport.CodeOK, "") },
	} {
		s, r := e.lane()
		read := async(func() error { // and no more than that
			_, err := io.CopyN(io.Discard, r, 3<<20)
			return err
		})
		lent := make(chan *Loan, 100)
		wrote := async(func() error { return lendAll(s, lent) })
		first := soon(e, "a write", lent)
		end(s, r)
		if err := soon(e, "the end of the writer", wrote); err != nil {
			e.Fatal(err)
		}
		soon(e, "the release of what was written first", first.Over())
		for l := range lent {
			soon(e, "the release", l.Over())
		}
		r.Cancel()
		soon(e, "the end of the reader", read) // its error is the end, if that came first
	}
}

// lendAll lends memory to a lane until that ends.
func lendAll(s transport.SendLane, lent chan<- *Loan) error {
	defer close(lent)
	p := payload(1 << 20)
	for range cap(lent) {
		loan, err := Lend(s, []byte("x"), p)
		lent <- loan
		if err != nil {
			return nil
		}
	}
	return fmt.Errorf("%d MiB found room in a lane that nobody reads", cap(lent))
}

// testHoldClose closes and cancels a lane behind a payload that it may hold: it
// arrives, and comes back.
func testHoldClose(e *env) {
	p := payload(1 << 20)
	for range 8 {
		s, r := e.lane()
		lent := async(func() error {
			loan, err := Lend(s, []byte("x"), p)
			if err != nil {
				return err
			}
			s.Close()
			s.Cancel()
			select {
			case <-loan.Over():
				return nil
			case <-e.ctx.Done():
				return fmt.Errorf("it is still held")
			}
		})
		e.wantEnd(r, Lent([]byte("x"), p))
		if err := soon(e, "the release", lent); err != nil {
			e.Error(err)
		}
	}
}
