package daemon

import (
	"fmt"
	"io"
	"time"

	"github.com/rs/zerolog"
)

// NewLogger returns the logger that c asks for, writing to w. Its lines name
// the node; what the rooms add names peer, conn and op.
// now is the clock of its lines; nil: the system's.
func NewLogger(c LogConfig, w io.Writer, now func() time.Time) (zerolog.Logger, error) {
	level, err := zerolog.ParseLevel(c.Level)
	if err != nil {
		return zerolog.Nop(), fmt.Errorf("log level: %w", err)
	}
	w = zerolog.SyncWriter(w) // every room logs from goroutines of its own
	if c.Format == "console" {
		w = zerolog.ConsoleWriter{Out: w, NoColor: true, TimeFormat: "15:04:05.000"}
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
