package logbound

import (
	"bytes"
	"errors"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/internal/test/bubble"
)

// A sink keeps lines.
type sink struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (s *sink) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

// take returns the lines since the last call.
func (s *sink) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.b.Reset()
	return strings.Split(strings.TrimSuffix(s.b.String(), "\n"), "\n")
}

func TestAFloodOfLinesIsSummedUp(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var out sink
		s := New(zerolog.New(&out), "connections were refused")
		defer s.Close()
		for i := range 10_000 {
			from := netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 1})
			if i%3 == 0 {
				from = netip.MustParseAddr("192.0.2.7")
			}
			s.Line(zerolog.InfoLevel, from).Err(errors.New("no")).Msg("refused")
		}
		if lines := out.take(); len(lines) != first || !strings.Contains(lines[0], `"message":"refused"`) {
			t.Errorf("%d lines at once, the first %q, want %d", len(lines), lines[0], first)
		}
		time.Sleep(period)
		synctest.Wait()
		if lines := out.take(); len(lines) != 1 || !strings.Contains(lines[0], "9980 more connections were refused in the last minute, most from 192.0.2.7") {
			t.Errorf("after a minute: %q", lines)
		}
		time.Sleep(10 * time.Minute)
		if lines := out.take(); lines[0] != "" {
			t.Errorf("nothing happened, and %q was written", lines)
		}
		s.Line(zerolog.InfoLevel, netip.Addr{}).Msg("again")
		if lines := out.take(); !strings.Contains(lines[0], "again") {
			t.Errorf("a line after the quiet: %q", lines)
		}
	})
}

func TestCloseSumsUp(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var out sink
		s := New(zerolog.New(&out), "packets were dropped")
		for range first + 2 {
			s.Line(zerolog.InfoLevel, netip.Addr{}).Msg("dropped")
		}
		s.Close()
		s.Line(zerolog.InfoLevel, netip.Addr{}).Msg("late")
		if lines := out.take(); len(lines) != first+1 || !strings.Contains(lines[first], "2 more packets were dropped in the last minute\"") {
			t.Errorf("lines %q", lines)
		}
	})
}

func TestAddressesAreCountedInBoundedMemory(t *testing.T) {
	s := New(zerolog.Nop(), "")
	for i := range 100_000 {
		s.countAddress(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}))
		if len(s.by) > maxAddresses {
			t.Fatalf("%d addresses are counted, at most %d", len(s.by), maxAddresses)
		}
	}
}

func TestTextOfAStrangerIsEscapedAndCut(t *testing.T) {
	for in, want := range map[string]string{
		"plain text, ä":                       "plain text, ä",
		"\x1b[2Jgone\r\nroot\x00":             `\x1b[2Jgone\r\nroot\x00`,
		"rtl \u202e, broken \xff":             `rtl \u202e, broken \xff`,
		strings.Repeat("x", maxText+1) + "yy": strings.Repeat("x", maxText) + "…",
		strings.Repeat("\x1b", 1000):          strings.Repeat(`\x1b`, maxText/4) + "…",
	} {
		if got := Text(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}
