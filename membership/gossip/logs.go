package gossip

import (
	"bytes"
	"net/netip"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/internal/logbound"
)

// maxLines is how many of memberlist's lines for debugging pass in a second. Of the
// others, which others can cause as well, a summary is given.
const maxLines = 20

// A logWriter turns the lines of memberlist's standard logger into zerolog events. Levels go down
// by one: memberlist logs an error for one message that did not get through, which is no error of
// this fabricd.
type logWriter struct {
	log     zerolog.Logger
	summary *logbound.Summary

	mu         sync.Mutex // guards the fields below
	window     time.Time  // beginning of the current second
	lines      int        // in this second
	suppressed int        // since the last line that passed
}

func newLogWriter(log zerolog.Logger) *logWriter {
	return &logWriter{log: log, summary: logbound.New(log.With().Str("from", "memberlist").Logger(), "lines came from memberlist")}
}

func (w *logWriter) close() { w.summary.Close() }

var levels = []struct {
	tag   []byte
	level zerolog.Level
}{
	{[]byte("[ERR] "), zerolog.WarnLevel},
	{[]byte("[WARN] "), zerolog.InfoLevel},
	{[]byte("[INFO] "), zerolog.DebugLevel},
	{[]byte("[DEBUG] "), zerolog.TraceLevel},
}

// Write logs one line. It never fails.
func (w *logWriter) Write(p []byte) (int, error) {
	line := bytes.TrimSpace(p)
	level := zerolog.DebugLevel
	for _, l := range levels {
		if rest, ok := bytes.CutPrefix(line, l.tag); ok {
			line, level = rest, l.level
			break
		}
	}
	line = bytes.TrimPrefix(line, []byte("memberlist: "))
	switch {
	case bytes.HasPrefix(line, []byte("ignoring alive message")): // each member that is not proven yet causes some
		level = zerolog.DebugLevel
	case bytes.HasPrefix(line, []byte("failed to receive and remove the stream label header")): // the stream logs why
		level = zerolog.DebugLevel
	}
	if level < max(w.log.GetLevel(), zerolog.GlobalLevel()) { // the second is the level that operators change
		return len(p), nil
	}
	text := logbound.Text(string(line))
	if level >= zerolog.InfoLevel {
		w.summary.Line(level, netip.Addr{}).Msg(text)
		return len(p), nil
	}
	ev := w.log.WithLevel(level)
	if !ev.Enabled() {
		return len(p), nil
	}
	pass, suppressed := w.admit(time.Now())
	if !pass {
		return len(p), nil
	}
	if suppressed > 0 {
		ev = ev.Int("suppressed", suppressed)
	}
	ev.Str("from", "memberlist").Msg(text)
	return len(p), nil
}

// admit reports whether a line passes at now, and how many did not since the
// last one that did.
func (w *logWriter) admit(now time.Time) (pass bool, suppressed int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if now.Sub(w.window) >= time.Second {
		w.window, w.lines = now, 0
	}
	if w.lines >= maxLines {
		w.suppressed++
		return false, 0
	}
	w.lines++
	suppressed, w.suppressed = w.suppressed, 0
	return true, suppressed
}
