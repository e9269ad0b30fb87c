package gossip

import (
	"bytes"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

// maxLines is how many of memberlist's log lines pass in a second. Anybody can
// provoke one with a packet that does not decrypt.
const maxLines = 20

// A logWriter turns the lines of memberlist's standard logger into zerolog
// events. Levels go down by one: what memberlist calls an error is one rumour
// that did not get through, which is no error of this fabricd.
type logWriter struct {
	log zerolog.Logger

	mu         sync.Mutex // guards the fields below
	window     time.Time  // beginning of the current second
	lines      int        // in this second
	suppressed int        // since the last line that passed
}

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
	ev := w.log.WithLevel(level)
	if level < w.log.GetLevel() || !ev.Enabled() {
		return len(p), nil
	}
	pass, suppressed := w.admit(time.Now())
	if !pass {
		return len(p), nil
	}
	if suppressed > 0 {
		ev = ev.Int("suppressed", suppressed)
	}
	ev.Str("from", "memberlist").Msg(string(line))
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
