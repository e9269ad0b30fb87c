package audit

import (
	"io"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

// queued bounds the events that wait to be written. An administrator's tools do
// not fill it; what refuses strangers counts before.
const queued = 1024

// A Config says where events go.
type Config struct {
	At  string           // name of this node
	Out io.WriteCloser   // takes whole lines; the log closes it
	Now func() time.Time // the clock of lines; nil: the system's
	Log zerolog.Logger   // is told when lines cannot be written
}

// A Log writes events. Its methods may be called from any goroutine and never
// wait for the disk; a nil Log writes nothing.
type Log struct {
	cfg    Config
	events chan Event
	stop   chan struct{} // closed by Close
	done   chan struct{} // closed when the goroutine has ended

	mu       sync.Mutex // guards the fields below
	lost     uint64     // events that did not fit
	refusals refusals
	closed   bool
}

// New returns a log that writes to c.Out until it is closed.
func New(c Config) *Log {
	if c.Now == nil {
		c.Now = time.Now
	}
	l := &Log{cfg: c, events: make(chan Event, queued), stop: make(chan struct{}), done: make(chan struct{})}
	l.refusals.counts = map[Refusal]uint64{}
	go l.run()
	return l
}

// Write hands e over to be written, with the time and this node's name in it.
func (l *Log) Write(e Event) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.enqueue(e)
}

// enqueue is Write with l.mu held.
func (l *Log) enqueue(e Event) {
	if l.closed {
		return
	}
	e.Time, e.At = l.cfg.Now().UTC(), l.cfg.At
	select {
	case l.events <- e:
	default:
		l.lost++
	}
}

// Close writes what is queued and closes the output. A second call does nothing.
func (l *Log) Close() error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	first := !l.closed
	if first {
		l.flushRefusals()
		l.closed = true
		close(l.stop)
	}
	l.mu.Unlock()
	<-l.done
	if !first {
		return nil
	}
	return l.cfg.Out.Close()
}

// run is the goroutine that writes, until Close. It owns the output, and writes
// once a minute how many refusals were counted.
func (l *Log) run() {
	defer close(l.done)
	w := writer{out: l.cfg.Out, log: l.cfg.Log}
	tick := time.NewTimer(refusalPeriod)
	defer tick.Stop()
	for {
		select {
		case e := <-l.events:
			w.write(e)
		case <-tick.C:
			l.mu.Lock()
			l.flushRefusals()
			l.mu.Unlock()
			tick.Reset(refusalPeriod)
		case <-l.stop:
			l.drain(&w)
			return
		}
		l.tellLost(&w)
	}
}

// drain writes all that was handed over before Close.
func (l *Log) drain(w *writer) {
	for {
		select {
		case e := <-l.events:
			w.write(e)
		default:
			l.tellLost(w)
			return
		}
	}
}

// tellLost writes how many events are missing, once the queue has room again.
func (l *Log) tellLost(w *writer) {
	l.mu.Lock()
	n := l.lost + w.failed
	if n == 0 || len(l.events) > queued/2 {
		l.mu.Unlock()
		return
	}
	l.lost, w.failed = 0, 0
	l.mu.Unlock()
	w.write(Event{Time: l.cfg.Now().UTC(), Event: Lost, At: l.cfg.At, Count: n})
}

// A writer writes lines and counts those that it could not.
type writer struct {
	out    io.Writer
	log    zerolog.Logger
	failed uint64 // events that no line was written for
	warned bool   // since the last line that was written
}

func (w *writer) write(e Event) {
	_, err := w.out.Write(e.line())
	if err == nil {
		w.warned = false
		return
	}
	w.failed++
	if e.Event == Lost { // it stands for those that it counts
		w.failed += e.Count - 1
	}
	if !w.warned {
		w.log.Error().Str("op", "audit").Err(err).Msg("the audit log cannot be written; events are counted until it can")
	}
	w.warned = true
}
