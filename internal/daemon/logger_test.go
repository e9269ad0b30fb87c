package daemon

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode"

	"github.com/fabricd/fabricd/internal/test/bubble"
)

func TestLogLinesHaveTheirTimeAndFields(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log, err := NewLogger(LogConfig{Level: "info", Format: "json"}, &out, nil)
		if err != nil {
			t.Fatal(err)
		}
		log.Debug().Msg("too quiet")
		log = log.With().Str("node", "rack-1").Logger()
		log.Warn().Str("op", "join").Msg("no answer")
		var line map[string]string
		if err := json.Unmarshal(out.Bytes(), &line); err != nil {
			t.Fatalf("want one JSON object, got %q: %v", out.String(), err)
		}
		for key, want := range map[string]string{"level": "warn", "node": "rack-1", "op": "join", "message": "no answer"} {
			if line[key] != want {
				t.Errorf("%s is %q, want %q", key, line[key], want)
			}
		}
		if !strings.HasPrefix(line["time"], "2000-01-01T00:00:00.000") && !strings.HasPrefix(line["time"], "1999-12-31T") {
			t.Errorf("time is %q, want the time to the millisecond", line["time"])
		}
		out.Reset()
		log, err = NewLogger(LogConfig{Level: "debug", Format: "console"}, &out, nil)
		if err != nil {
			t.Fatal(err)
		}
		log.Debug().Str("peer", "2.1").Msg("fine")
		if got := out.String(); !strings.Contains(got, ":00.000 DBG fine peer=2.1") {
			t.Errorf("the console line is %q", got)
		}
	})
	if _, err := NewLogger(LogConfig{Level: "loud"}, nil, nil); err == nil {
		t.Error("a level that does not exist was accepted")
	}
}

// A message that holds what a peer sent is one line of the console, which no
// terminal obeys.
func TestConsoleLinesHoldNoControlCharacters(t *testing.T) {
	var out bytes.Buffer
	log, err := NewLogger(LogConfig{Level: "info", Format: "console"}, &out, nil)
	if err != nil {
		t.Fatal(err)
	}
	const evil = "x\x1b[2J\r\n12:00:00.000 INF forged\u009b\xff"
	log.Info().Str("name", evil).Strs("addresses", []string{evil}).Err(errors.New(evil)).Msg(evil)
	line, rest, _ := strings.Cut(out.String(), "\n")
	if rest != "" || !strings.Contains(line, `x\x1b[2J`) {
		t.Errorf("want one line with the text escaped, got %q", out.String())
	}
	for _, r := range line {
		if !unicode.IsPrint(r) {
			t.Errorf("the line has %q: %q", r, line)
		}
	}
}
