package history

import (
	"errors"
	"fmt"
	"io"
	"sync"
)

// DefaultLimit bounds a log, in bytes, when [NewWriter] is given no bound.
const DefaultLimit = 1 << 30

// ErrFull is the error of [Writer.Write] when the log has reached its bound.
var ErrFull = errors.New("history: the log is full")

// A Writer writes the log of one source. Each record is one Write of the underlying
// file, so written records are there when the process is killed. Several goroutines
// may use it.
type Writer struct {
	source Source
	now    func() int64
	limit  int64

	mu   sync.Mutex // guards the fields below and the order of lines
	w    io.Writer
	at   int64
	seq  uint64
	size int64
	line []byte
	err  error // the first one; no line follows it
}

// NewWriter returns a writer for the log of a source. now returns nanoseconds
// since the run's zero, on a clock that does not go back. The log ends at limit
// bytes, [DefaultLimit] if that is 0.
func NewWriter(w io.Writer, source Source, limit int64, now func() int64) *Writer {
	if limit <= 0 {
		limit = DefaultLimit
	}
	return &Writer{source: source, now: now, limit: limit, w: w}
}

// Write writes one record, stamped with the present time. After an error the
// log has ended: every later Write returns the same error, so a log has no gap.
func (w *Writer) Write(body Body) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = w.write(body)
	}
	return w.err
}

func (w *Writer) write(body Body) error {
	at := max(w.now(), w.at)
	line, err := Append(w.line[:0], Record{At: at, Source: w.source, Seq: w.seq + 1, Body: body})
	if err != nil {
		return fmt.Errorf("history of %s: %w", w.source, err)
	}
	w.line = line
	if w.size+int64(len(line)) > w.limit {
		return ErrFull
	}
	n, err := w.w.Write(line)
	w.size += int64(n)
	if err != nil {
		return fmt.Errorf("history of %s: %w", w.source, err)
	}
	w.at, w.seq = at, w.seq+1
	return nil
}

// Err returns the error that has ended the log, nil while it goes on.
func (w *Writer) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// WriteAll writes records, of any sources, as they are.
func WriteAll(w io.Writer, records []Record) error {
	var buf []byte
	for i, r := range records {
		var err error
		if buf, err = Append(buf, r); err != nil {
			return fmt.Errorf("record %d: %w", i+1, err)
		}
		if len(buf) >= 1<<20 || i == len(records)-1 {
			if _, err := w.Write(buf); err != nil {
				return err
			}
			buf = buf[:0]
		}
	}
	return nil
}
