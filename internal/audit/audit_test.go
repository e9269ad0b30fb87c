package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/internal/test/bubble"
)

// A sink keeps the lines that it is given, or fails.
type sink struct {
	mu     sync.Mutex
	lines  []Event
	fail   error
	block  chan struct{} // a write waits for it
	closed bool
}

func (s *sink) Write(line []byte) (int, error) {
	s.mu.Lock()
	block, fail := s.block, s.fail
	s.mu.Unlock()
	if block != nil {
		<-block
	}
	if fail != nil {
		return 0, fail
	}
	var e Event
	if err := json.Unmarshal(line, &e); err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, e)
	return len(line), nil
}

func (s *sink) Close() error { s.closed = true; return nil }

// set makes writes fail or wait from now on.
func (s *sink) set(fail error, block chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail, s.block = fail, block
}

// kinds returns the kinds of the lines, with their counts.
func (s *sink) kinds() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []string
	for _, e := range s.lines {
		all = append(all, strings.TrimSuffix(fmt.Sprintf("%s:%d", e.Event, e.Count), ":0"))
	}
	return strings.Join(all, " ")
}

// run runs fn with a log in a bubble, and closes it.
func run(t *testing.T, fn func(*Log, *sink)) *sink {
	t.Helper()
	s := &sink{}
	bubble.Test(t, func(t *testing.T) {
		l := New(Config{At: "host", Out: s, Log: zerolog.Nop()})
		fn(l, s)
		if err := l.Close(); err != nil || !s.closed {
			t.Errorf("close: %v, output closed %v", err, s.closed)
		}
		l.Write(Event{Event: Join}) // after the end: nothing
		if err := l.Close(); err != nil {
			t.Errorf("a second close: %v", err)
		}
	})
	return s
}

func TestEventsAreLinesInOrder(t *testing.T) {
	s := run(t, func(l *Log, _ *sink) {
		l.Write(Event{Event: Join, Name: "web-1"})
		l.Write(Event{Event: NodeBanned, Name: "web-1", Text: strings.Repeat("x", 5000)})
	})
	if got := s.kinds(); got != "join ban" {
		t.Fatalf("wrote %q", got)
	}
	if e := s.lines[1]; e.At != "host" || !e.Time.Equal(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)) || len(e.Text) != maxText {
		t.Errorf("line %+v, text of %d bytes", e, len(e.Text))
	}
}

func TestLinesSpeakToNoTerminal(t *testing.T) {
	got := string(Event{Name: "a\x1b[2J\u009b\n", Text: "\xff"}.line())
	if !strings.Contains(got, `"name":"a\\x1b[2J\\u009b\\x0a"`) || !strings.Contains(got, `"text":"\\xff"`) || strings.Count(got, "\n") != 1 {
		t.Errorf("the line is %q", got)
	}
}

func TestANilLogWritesNothing(t *testing.T) {
	var l *Log
	l.Write(Event{Event: Join})
	l.Refused(Refusal{Event: ConnectRefused})
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// A disk that hangs delays no caller; events that do not fit are counted.
func TestWhatDoesNotFitIsCounted(t *testing.T) {
	s := run(t, func(l *Log, s *sink) {
		block := make(chan struct{})
		s.set(nil, block)
		l.Write(Event{Event: Started})
		synctest.Wait() // the goroutine waits in its write
		for range queued + 7 {
			l.Write(Event{Event: Command})
		}
		s.set(nil, nil)
		close(block)
		synctest.Wait()
		l.Write(Event{Event: Join})
	})
	kinds := map[string]uint64{}
	for _, e := range s.lines {
		kinds[e.Event] += max(e.Count, 1)
	}
	want := map[string]uint64{Started: 1, Command: queued, Lost: 7, Join: 1}
	if !reflect.DeepEqual(kinds, want) {
		t.Errorf("wrote %v, want %v", kinds, want)
	}
}

func TestWhatCannotBeWrittenIsCounted(t *testing.T) {
	s := run(t, func(l *Log, s *sink) {
		s.set(errors.New("disk full"), nil)
		for range 3 {
			l.Write(Event{Event: Command})
			synctest.Wait()
		}
		s.set(nil, nil)
		l.Write(Event{Event: Join})
	})
	if got := s.kinds(); got != "join lost:3" {
		t.Errorf("wrote %q, want the event and then how many are missing", got)
	}
}

// A peer that is refused ten thousand times is two lines a minute, and many
// peers are a bounded number.
func TestRefusalsAreCounted(t *testing.T) {
	s := run(t, func(l *Log, s *sink) {
		for range 10_000 {
			l.Refused(Refusal{Event: ConnectRefused, Name: "web-1", Port: 2050, UID: 1000})
		}
		time.Sleep(refusalPeriod + time.Second)
		if got := s.kinds(); got != "connect-refused connect-refused:9999" {
			t.Errorf("after a minute %q", got)
		}
		l.Refused(Refusal{Event: ConnectRefused, Name: "web-1", Port: 2050, UID: 1000})
		time.Sleep(refusalPeriod)
		if got := s.kinds(); got != "connect-refused connect-refused:9999 connect-refused" {
			t.Errorf("after the next minute's refusal %q, want one line more", got)
		}
		for port := range uint16(1000) {
			l.Refused(Refusal{Event: ConnectRefused, Name: "scanner", Port: port})
			l.Refused(Refusal{Event: BindRefused, Name: "user", Port: port})
		}
		l.Refused(Refusal{Event: ServeRefused, Name: "web-1"})
	})
	if got := len(s.lines); got != 3+maxRefusals+3 {
		t.Errorf("%d lines, want %d", got, 3+maxRefusals+3)
	}
	others := map[string]Event{}
	for _, e := range s.lines[len(s.lines)-3:] {
		others[e.Event] = e
	}
	for event, want := range map[string]struct {
		count uint64
		text  string
	}{
		ConnectRefused: {1000 - maxRefusals/2, "further peers and ports"}, BindRefused: {1000 - maxRefusals/2, "further users and ports"},
		ServeRefused: {1, "further nodes and names"},
	} {
		if e := others[event]; e.Count != want.count || e.Text != want.text {
			t.Errorf("the last line of %s is %+v, want %v", event, e, want)
		}
	}
	if e := s.lines[1]; e.UID == nil || *e.UID != 1000 || e.Name != "web-1" || e.Port != 2050 {
		t.Errorf("the summary is %+v", e)
	}
}

func TestFilesAreAppendedToAndRotatedOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	if err := os.WriteFile(path, []byte("before\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	f.max = 20
	for i := range 4 {
		if _, err := f.Write(fmt.Appendf(nil, "line %d...\n", i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	for name, want := range map[string]string{path: "line 3...\n", path + ".1": "line 1...\nline 2...\n"} {
		got, err := os.ReadFile(name)
		if err != nil || !strings.Contains(want, string(got)) || len(got) == 0 {
			t.Errorf("%s has %q, %v, want of %q", name, got, err, want)
		}
		if info, err := os.Stat(name); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v, want mode 0600", name, info.Mode(), err)
		}
	}
	if _, err := f.Write([]byte("late\n")); err == nil {
		t.Error("a closed file took a line")
	}
}

func TestOnlyRegularFilesAreOpened(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(dir, "link")
	if err := os.Symlink(filepath.Join(dir, "target"), link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, link, "/dev/null", filepath.Join(dir, "none", "audit")} {
		if f, err := OpenFile(path); err == nil {
			f.Close()
			t.Errorf("%s was opened", path)
		}
	}
}

// TestMembersOfALine keeps the documented names, and that no kind has two.
func TestMembersOfALine(t *testing.T) {
	uid := uint32(0)
	e := Event{Event: "e", At: "a", Node: "n", Name: "n", Token: "t", UID: &uid, PID: 1, Command: "c", Result: "r", Port: 1, Rule: "r", Count: 1, Text: "t", Incarnation: "i"}
	want := `{"time":"0001-01-01T00:00:00Z","event":"e","at":"a","node":"n","name":"n","token":"t","incarnation":"i",` +
		`"uid":0,"pid":1,"command":"c","result":"r","port":1,"rule":"r","count":1,"text":"t"}` + "\n"
	if got := string(e.line()); got != want {
		t.Errorf("got  %swant %s", got, want)
	}
	page, err := os.ReadFile("../../docs/audit.md")
	if err != nil {
		t.Fatal(err)
	}
	for i := range reflect.TypeFor[Event]().NumField() {
		name, _, _ := strings.Cut(reflect.TypeFor[Event]().Field(i).Tag.Get("json"), ",")
		if !bytes.Contains(page, []byte("`"+name+"`")) {
			t.Errorf("docs/audit.md does not explain %s", name)
		}
	}
	text, err := os.ReadFile("event.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`= "([a-z-]+)" +//`).FindAllSubmatch(text, -1) {
		if !bytes.Contains(page, []byte("`"+string(m[1])+"`")) {
			t.Errorf("docs/audit.md does not explain the kind %s", m[1])
		}
	}
}

var _ io.WriteCloser = (*File)(nil)
