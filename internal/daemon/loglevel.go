package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

// A LogLevel is the level of a process's log, which changes while it runs. It is zerolog's of the
// process: that costs least at each line.
type LogLevel struct {
	configured zerolog.Level

	mu    sync.Mutex  // guards the fields below
	until time.Time   // when it goes back; zero: it stays
	back  *time.Timer // which does that; nil: it stays
	turn  uint64      // counts the changes: an older one's timer may be running
}

// NewLogLevel makes the process log at the level of a logger, and returns that logger,
// whose level is the process's from now on.
func NewLogLevel(log zerolog.Logger) (*LogLevel, zerolog.Logger) {
	l := &LogLevel{configured: log.GetLevel()}
	zerolog.SetGlobalLevel(l.configured)
	return l, log.Level(zerolog.TraceLevel)
}

// A LogState is the level of a process's log.
type LogState struct {
	Level      string    `json:"level"`
	Configured string    `json:"configured"`     // by the settings
	Until      time.Time `json:"until,omitzero"` // when it goes back to that
}

// logLevels are the levels, and maxLogFor is how long one may be asked for.
var logLevels = []string{"trace", "debug", "info", "warn", "error"}

const maxLogFor = 24 * time.Hour

// State returns the level.
func (l *LogLevel) State() LogState {
	l.mu.Lock()
	defer l.mu.Unlock()
	return LogState{zerolog.GlobalLevel().String(), l.configured.String(), l.until}
}

// Set changes the level: for a time, if that is not 0.
func (l *LogLevel) Set(level zerolog.Level, keep time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.back != nil {
		l.back.Stop()
	}
	l.until, l.back = time.Time{}, nil
	l.turn++
	zerolog.SetGlobalLevel(level)
	if keep > 0 && level != l.configured {
		l.until = time.Now().Add(keep).UTC()
		turn := l.turn
		l.back = time.AfterFunc(keep, func() { l.restore(turn) })
	}
}

// restore goes back to the configured level, unless there was a change since.
func (l *LogLevel) restore(turn uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.turn == turn {
		l.until, l.back = time.Time{}, nil
		zerolog.SetGlobalLevel(l.configured)
	}
}

// LogRequest asks for a level.
type LogRequest struct {
	Level string `json:"level"`         // one of logLevels
	For   string `json:"for,omitempty"` // a duration up to a day; empty: until it is changed
}

// parse checks a request.
func (r LogRequest) parse() (level zerolog.Level, keep time.Duration, err error) {
	if level, err = zerolog.ParseLevel(r.Level); err != nil || !slices.Contains(logLevels, r.Level) {
		return level, 0, fmt.Errorf("level: %q: want trace, debug, info, warn or error", r.Level)
	}
	if r.For == "" {
		return level, 0, nil
	}
	if keep, err = time.ParseDuration(r.For); err != nil || keep < time.Second || keep > maxLogFor {
		return level, 0, fmt.Errorf("for: %q: want a duration from 1s to %v", r.For, maxLogFor)
	}
	return level, keep, nil
}

var errProgramsLog = errors.New("this node logs where the program wants that it is embedded in")

// LogState returns the level of this node's log.
func (d *Daemon) LogState() (LogState, error) {
	if d.opts.LogLevel == nil {
		return LogState{}, errProgramsLog
	}
	return d.opts.LogLevel.State(), nil
}

// SetLogLevel changes the level of this node's log.
func (d *Daemon) SetLogLevel(level zerolog.Level, keep time.Duration) (LogState, error) {
	if d.opts.LogLevel == nil {
		return LogState{}, errProgramsLog
	}
	d.opts.LogLevel.Set(level, keep)
	st := d.opts.LogLevel.State()
	d.log.Warn().Str("op", "log-level").Str("level", st.Level).Dur("for", keep).Msg("an operator has set the log level")
	return st, nil
}

func (a *admin) logRoutes(mux *http.ServeMux) {
	a.on(mux, "GET /v1/log-level", func(http.ResponseWriter, *http.Request) (any, error) { return a.subject.LogState() })
	a.on(mux, "POST /v1/log-level", taking(func(_ http.ResponseWriter, _ *http.Request, req LogRequest) (any, error) {
		level, keep, err := req.parse()
		if err != nil {
			return nil, wrong("%w", err)
		}
		return a.subject.SetLogLevel(level, keep)
	}))
}

// LogState asks for the level of the node's log.
func (c *Client) LogState(ctx context.Context) (LogState, error) {
	return get[LogState](ctx, c, "log-level")
}

// SetLogLevel changes the level of the node's log.
func (c *Client) SetLogLevel(ctx context.Context, r LogRequest) (LogState, error) {
	return post[LogState](ctx, c, "log-level", r)
}
