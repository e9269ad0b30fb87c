package audit

import (
	"io"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

// queued bounds the events that wait to be written. Administrators' tools do not fill the queue;
// refusals of peers are counted before it.
const queued = 1024

// A Config configures a log.
type Config struct {
	At  string           // name of this node
	Out io.WriteCloser   // takes whole lines; the log closes it
	Now func() time.Time // the clock of lines; nil: the system's
	Log zerolog.Logger   // logs failures to write lines
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
	l.refusals = refusals{counts: map[Refusal]uint64{}, others: map[string]uint64{}}
	go l.run()
	return l
}

// Write queues e, with the time and this node's name added.
func (l *Log) Write(e Event) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.enqueue(e)
}

// Fill returns how full the queue of events is: 1 is full, and then events are lost.
func (l *Log) Fill() float64 {
	if l == nil {
		return 0
	}
	return float64(len(l.events)) / queued
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

// Close writes the queued events and closes the output. A second call does nothing.
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

// run is the writing goroutine, until Close. It owns the output, and writes the counts of refusals
// once a minute.
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

// drain writes all events queued before Close.
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

// tellLost writes the number of missing events, once the queue has room again.
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

// A writer writes lines and counts its failures.
type writer struct {
	out    io.Writer
	log    zerolog.Logger
	failed uint64 // events without a written line
	warned bool   // since the last successful line
}

func (w *writer) write(e Event) {
	_, err := w.out.Write(e.line())
	if err == nil {
		w.warned = false
		return
	}
	w.failed++
	if e.Event == Lost { // it stands for the events that it counts
		w.failed += e.Count - 1
	}
	if !w.warned {
		w.log.Error().Str("op", "audit").Err(err).Msg("the audit log cannot be written; events are counted until it can")
	}
	w.warned = true
}
