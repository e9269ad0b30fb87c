package appsmoke

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"syscall"
	"time"
)

// A fault is something that happens to a fabricd or to the network.
type fault struct {
	name string
	does func(l *lab, s *side) error
	// both: it happens on either side, or else between the two.
	both bool
	// lossless: connections must survive it. Otherwise they may, and lethal ones
	// cannot.
	lossless, lethal bool
}

const deadFor = 500 * time.Millisecond // until a killed fabricd is started again

var faults = []fault{
	{name: "killed", both: true, lethal: true, does: func(l *lab, s *side) error {
		if err := s.fabricd.end(syscall.SIGKILL); err != nil {
			return err
		}
		time.Sleep(deadFor)
		return l.launch(s)
	}},
	{name: "upgraded to another build", both: true, lethal: true, does: (*lab).upgrade},
	{name: "stopped for 1 s", both: true, lossless: true, does: stopFor(time.Second)},
	{name: "stopped for 5 s", both: true, does: stopFor(5 * time.Second)},
	{name: "cut for 0.3 s", lossless: true, does: cutFor(300 * time.Millisecond)},
	{name: "cut for 3 s", does: cutFor(3 * time.Second)},
}

func stopFor(d time.Duration) func(*lab, *side) error {
	return func(_ *lab, s *side) error {
		s.fabricd.signal(syscall.SIGSTOP)
		time.Sleep(d)
		s.fabricd.signal(syscall.SIGCONT)
		return nil
	}
}

func cutFor(d time.Duration) func(*lab, *side) error {
	return func(l *lab, _ *side) error { return l.cut(d) }
}

// upgrade replaces the fabricd of s by the other build, as docs/upgrade.md says: a backup
// of the host before, a restart, then a look at what runs.
func (l *lab) upgrade(s *side) error {
	before, err := s.admin.Status(l.t.Context())
	if err == nil && s == l.servers {
		out := filepath.Join(s.dir, fmt.Sprint("backup-", before.PID))
		err = quiet(s.exe, "backup", "--admin", s.adminSocket(), "--out", out)
	}
	if err != nil {
		return err
	}
	if s.exe == l.exe {
		s.exe = l.exe + "-next"
	} else {
		s.exe = l.exe
	}
	if err := errors.Join(s.fabricd.end(syscall.SIGTERM), l.launch(s), l.joined(s)); err != nil {
		return err
	}
	now, err := s.admin.Status(l.t.Context())
	if err == nil && now.Version == before.Version {
		err = fmt.Errorf("version %s runs as before", now.Version)
	}
	return err
}

// What a fault may take at most. The bounds are some times what is promised, since a
// machine that tests is a busy one.
const (
	errorWithin = 8 * time.Second  // from a lethal fault until the application's error
	backWithin  = 15 * time.Second // from the end of a fault until a server is reached again
	goOnWithin  = 4 * time.Second  // a pause beyond the length of a lossless fault
)

// A cell is what one application saw of one fault.
type cell struct {
	Provider string `json:"provider"`
	Fault    string `json:"fault"`
	Side     string `json:"side,omitempty"`
	App      string `json:"app"`
	// ErrorMS is the time from the fault until the application's first error, and
	// Error that; OnMS the time until its server answered it again.
	ErrorMS float64 `json:"error_ms,omitempty"`
	Error   string  `json:"error,omitempty"`
	OnMS    float64 `json:"on_ms"`
	// Cause is what the clients' gateway says of its latest lost connection.
	Cause  string   `json:"cause,omitempty"`
	Broken []string `json:"broken,omitempty"`
}

func (c *cell) breaks(format string, args ...any) {
	c.Broken = append(c.Broken, fmt.Sprintf(format, args...))
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// suffer lets a fault happen to s while the clients talk, and returns what each saw.
func (r *run) suffer(ctx context.Context, f fault, s *side) ([]cell, error) {
	if err := r.flowing(time.Time{}); err != nil {
		return nil, fmt.Errorf("before %q: %w", f.name, err)
	}
	for _, p := range r.pools {
		if err := p.answers(time.Now()); err != nil {
			return nil, fmt.Errorf("before %q: %w", f.name, err)
		}
		p.mark()
	}
	r.entry.mark()
	began := time.Now()
	if err := f.does(r.lab, s); err != nil {
		return nil, err
	}
	over := time.Now()
	of := cell{Provider: r.provider, Fault: f.name}
	if f.both {
		of.Side = s.name
	}
	cells := make([]cell, len(r.clients))
	for i, c := range r.clients {
		cells[i] = of
		cells[i].App = c.name
		if err := await(backWithin, func() error { return c.serves(ctx, r.lab.clients) }); err != nil {
			cells[i].breaks("its server is not reached any more: %v", err)
		}
	}
	flowErr := r.flowing(over)
	read := r.entry.read()
	for i, c := range r.clients {
		if flowErr != nil {
			cells[i].breaks("after it: %v", flowErr)
		}
		cells[i].fill(f, c.take(), read[c.service], began, over)
	}
	for _, p := range r.pools {
		cells = append(cells, p.suffered(f, of, began, over))
	}
	return cells, nil
}

// fill judges what a client's runs came to that ended since a fault began.
func (c *cell) fill(f fault, tries []try, r reading, began, over time.Time) {
	c.Cause = r.Cause
	if to := r.PauseTo; to.After(began) {
		c.OnMS = ms(to.Sub(began))
	}
	for _, t := range tries {
		if _, end := errors.AsType[endError](t.err); end {
			c.breaks("an end instead of an error: %v", t.err)
		}
		if t.err != nil && c.Error == "" {
			c.Error, c.ErrorMS = t.err.Error(), ms(t.ended.Sub(began))
		}
	}
	pause := r.PauseTo.Sub(r.PauseFrom)
	switch {
	case f.lossless && c.Error != "":
		c.breaks("an error although the connection could have lived: %s", c.Error)
	case f.lossless && pause > over.Sub(began)+goOnWithin:
		c.breaks("it went on after %v", pause.Round(time.Millisecond))
	case f.lethal && c.Error == "":
		c.breaks("no error, although its connections were lost")
	case f.lethal && c.ErrorMS > ms(errorWithin):
		c.breaks("the error came after %.1f s", c.ErrorMS/1000)
	}
}
