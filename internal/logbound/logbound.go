// Package logbound bounds the log lines that unauthenticated peers can cause: it writes the first
// few of a minute, counts the others, and summarizes them in one line.
package logbound

import (
	"fmt"
	"net/netip"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/rs/zerolog"
)

const (
	period = time.Minute
	// first is how many lines of a period are written.
	first = 20
	// maxAddresses bounds the addresses that are counted separately.
	maxAddresses = 128
	// maxText bounds a peer's text in a line, in bytes.
	maxText = 400
)

// A Summary bounds the lines about one kind of incident. Its methods may be called
// from any goroutine.
type Summary struct {
	log  zerolog.Logger
	what string

	mu      sync.Mutex // guards the fields below
	began   time.Time  // the current period; zero: none
	shown   int        // lines of the period that were written
	more    int        // lines that were only counted
	by      map[netip.Addr]int
	timer   *time.Timer // ends the period; nil while more is 0
	stopped bool
}

// New returns a Summary that writes to log. The parameter what names the incident, in the plural
// and the past: "connections were refused".
func New(log zerolog.Logger, what string) *Summary {
	return &Summary{log: log, what: what, by: make(map[netip.Addr]int)}
}

// Line returns the event of a line about an incident caused by from, or nil if it is only counted:
// the methods of a nil event do nothing. The zero Addr stands for all peers without an address.
func (s *Summary) Line(level zerolog.Level, from netip.Addr) *zerolog.Event {
	if !s.count(from, time.Now()) {
		return nil
	}
	return s.log.WithLevel(level)
}

// count reports whether a line about from is written.
func (s *Summary) count(from netip.Addr, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return false
	}
	if s.more == 0 && now.Sub(s.began) >= period {
		s.began, s.shown = now, 0
	}
	if s.shown < first {
		s.shown++
		return true
	}
	s.more++
	s.countAddress(from)
	if s.timer == nil {
		s.timer = time.AfterFunc(max(s.began.Add(period).Sub(now), 0), s.sum)
	}
	return false
}

// countAddress finds the most frequent addresses in bounded memory (Misra and Gries): an address
// that causes more than a 128th of the lines is among them.
func (s *Summary) countAddress(from netip.Addr) {
	if _, ok := s.by[from]; ok || len(s.by) < maxAddresses {
		s.by[from]++
		return
	}
	for a := range s.by {
		if s.by[a]--; s.by[a] == 0 {
			delete(s.by, a)
		}
	}
}

// sum ends the period.
func (s *Summary) sum() {
	s.mu.Lock()
	if s.timer != nil {
		s.timer.Stop()
	}
	more, from := s.more, ""
	most := 0
	for a, n := range s.by {
		if n > most && a.IsValid() {
			most, from = n, ", most from "+a.String()
		}
	}
	s.timer, s.more, s.shown, s.began = nil, 0, 0, time.Time{}
	clear(s.by)
	s.mu.Unlock()
	if more > 0 {
		s.log.Info().Int("more", more).Msg(fmt.Sprintf("%d more %s in the last minute%s", more, s.what, from))
	}
}

// Close writes the summary. Later lines are dropped.
func (s *Summary) Close() {
	s.mu.Lock()
	s.stopped = true
	s.mu.Unlock()
	s.sum()
}

// Text returns a peer's text in printable form: unprintable characters are escaped as in Go's
// strings, and long text is truncated.
func Text(s string) string {
	var b []byte
	for i, width := 0, 0; i < len(s); i += width {
		if len(b) >= maxText {
			return string(b) + "…"
		}
		var r rune
		r, width = utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && width == 1:
			b = fmt.Appendf(b, `\x%02x`, s[i])
		case strconv.IsPrint(r):
			b = append(b, s[i:i+width]...)
		default:
			quoted := strconv.QuoteRune(r)
			b = append(b, quoted[1:len(quoted)-1]...)
		}
	}
	return string(b)
}
