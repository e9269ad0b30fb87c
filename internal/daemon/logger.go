package daemon

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/internal/printable"
)

// NewLogger returns the logger that c asks for, writing to w. Its lines name
// the node; the fields that the components add name peer, conn and op.
// now is the clock of its lines; nil: the system's.
func NewLogger(c LogConfig, w io.Writer, now func() time.Time) (zerolog.Logger, error) {
	level, err := zerolog.ParseLevel(c.Level)
	if err != nil {
		return zerolog.Nop(), fmt.Errorf("log level: %w", err)
	}
	w = zerolog.SyncWriter(w) // every package logs from goroutines of its own
	if c.Format == "console" {
		w = zerolog.ConsoleWriter{Out: plainLines{w}, NoColor: true, TimeFormat: "15:04:05.000"}
	}
	if now == nil {
		now = time.Now
	}
	return zerolog.New(w).Level(level).Hook(stamp{now}), nil
}

// A stamp gives every line its time, to the millisecond. zerolog's own has the
// form of a variable that all loggers of a process share.
type stamp struct{ now func() time.Time }

// Run implements zerolog.Hook.
func (s stamp) Run(e *zerolog.Event, _ zerolog.Level, _ string) {
	e.Str(zerolog.TimestampFieldName, s.now().Format("2006-01-02T15:04:05.000Z07:00"))
}

// plainLines writes lines of the console format. A message may hold text that a peer sent, which
// must not speak to the terminal; JSON escapes it by itself.
type plainLines struct{ w io.Writer }

// Write writes one line, as zerolog hands it over.
func (p plainLines) Write(line []byte) (int, error) {
	text := printable.Text(strings.TrimSuffix(string(line), "\n"))
	if _, err := io.WriteString(p.w, text+"\n"); err != nil {
		return 0, err
	}
	return len(line), nil
}
