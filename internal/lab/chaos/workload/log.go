package workload

import (
	"io"
	"time"

	"github.com/fabricd/fabricd/internal/lab/history"
)

// A Log writes the records of one source as they happen. Its methods may be
// called from any goroutine; the order of the calls is the order of the records.
type Log struct {
	w     *history.Writer
	clock *Clock
}

// NewLog returns a log of source that writes to out.
func NewLog(out io.Writer, source history.Source, clock *Clock) *Log {
	return &Log{
		w:     history.NewWriter(out, source, 0, func() int64 { return int64(clock.Now()) }),
		clock: clock,
	}
}

// Put writes that something has happened just now. A log that can no longer be written
// ends: Err returns the reason.
func (l *Log) Put(body history.Body) { _ = l.w.Write(body) }

// Now returns the time since the zero of the run.
func (l *Log) Now() time.Duration { return l.clock.Now() }

// Err returns why nothing is written any more, nil if all is well.
func (l *Log) Err() error { return l.w.Err() }
