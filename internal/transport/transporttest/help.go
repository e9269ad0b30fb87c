package transporttest

import (
	"errors"
	"io"
	"sync"
	"time"

	"github.com/fabricd/fabricd/internal/transport"
)

// An asker sends bytes that the other end sends back, and waits for them in Help.
// Bytes below 128 are taken by who reads for the session, the others by the reader.
type asker struct {
	session transport.Helper
	out     transport.SendLane
	done    chan struct{}
	over    <-chan error // of the reader and of the other end
}

// ask returns an asker on lanes of its own; nil: the provider has no Helper.
func (e *env) ask() *asker {
	h, ok := e.a.(transport.Helper)
	if !ok {
		return nil
	}
	out, in := e.lane()
	back, answers := e.laneBack()
	over := make(chan error, 2)
	go func() { _, err := io.Copy(back, in); over <- errors.Join(err, back.Close()) }()
	a := &asker{session: h, out: out, done: make(chan struct{}, 1), over: over}
	go func() { over <- a.read(answers) }()
	return a
}

// read is the reader of answers.
func (a *asker) read(answers transport.RecvLane) error {
	take := func(p []byte) (n int) {
		for n < len(p) && p[n] < 128 {
			a.done <- struct{}{}
			n++
		}
		return n
	}
	for p := make([]byte, 16); ; {
		n, err := answers.(transport.Offerer).ReadOr(p, take)
		for range n {
			a.done <- struct{}{}
			a.session.Rouse()
		}
		if err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// round asks once and waits.
func (e *env) round(a *asker, b byte) {
	if _, err := a.out.Write([]byte{b}); err != nil {
		e.Errorf("ask: %v", err)
		return
	}
	a.session.Help(a.done)
	select {
	case <-a.done:
	case <-e.ctx.Done():
		e.Error("no answer")
	}
}

// end ends the lanes of an asker.
func (e *env) end(a *asker) {
	if err := a.out.Close(); err != nil {
		e.Error(err)
	}
	for range 2 {
		if err := soon(e, "the end of an asker's lanes", a.over); err != nil {
			e.Error(err)
		}
	}
}

// testHelp asks for what is taken, for what is not, and for both.
func testHelp(e *env) {
	a := e.ask()
	if a == nil {
		return
	}
	for i := range 300 {
		switch {
		case i < 100:
			e.round(a, byte(i))
		case i < 200:
			e.round(a, 200)
		default:
			e.round(a, byte(i*7))
		}
	}
	e.end(a)
}

// testHelpers has several ask at once.
func testHelpers(e *env) {
	var all sync.WaitGroup
	for range 4 {
		a := e.ask()
		if a == nil {
			return
		}
		all.Go(func() {
			for i := range 100 {
				e.round(a, byte(i))
			}
			e.end(a)
		})
	}
	all.Wait()
}

// testHelpForOthers helps without end and in vain: others get what is theirs.
func testHelpForOthers(e *env) {
	h, ok := e.a.(transport.Helper)
	if !ok {
		return
	}
	var helping sync.WaitGroup
	stop := make(chan struct{})
	helping.Go(func() {
		for never := make(chan struct{}, 1); ; {
			h.Help(never)
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
		}
	})
	back, answers := e.laneBack()
	p := payload(1000)
	for range 20 {
		e.write(back, p)
		e.want(answers, p)
	}
	close(stop)
	helping.Wait()
}

// testHelpEnds ends a session while somebody helps.
func testHelpEnds(e *env) {
	h, ok := e.a.(transport.Helper)
	if !ok {
		return
	}
	var helping sync.WaitGroup
	for range 3 {
		helping.Go(func() {
			never := make(chan struct{}, 1)
			for e.a.Err() == nil {
				h.Help(never)
			}
			h.Help(never)
		})
	}
	e.a.Close(transport.CodeOK, "")
	helping.Wait()
}
