package core

import (
	"errors"
	"strings"
	"testing"

	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/wire"
)

// The valid answers to a HELLO, and the valid first frames of a dialed session.
func TestHellosAndTheirAnswers(t *testing.T) {
	hello := wire.Hello{VersionMin: wire.VersionMin, VersionMax: wire.VersionMax}
	answer := NewAnswer(hello, LinkEnd{}, LinkEnd{})
	for name, c := range map[string]struct {
		frame             framer
		begins, answering error
	}{
		"HELLO":          {hello, nil, status.Protocol},
		"an answer":      {answer, status.Protocol, nil},
		"a refusal":      {NewRefusal(status.Version), status.Protocol, status.Version},
		"something else": {wire.Credit{Limit: 1}, status.Protocol, status.Protocol},
	} {
		b := c.frame.AppendTo(nil)
		h, err := wire.ParseHeader(b)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ReadHello(h, b[wire.HeaderLen:]); !errors.Is(err, c.begins) {
			t.Errorf("%s begins a session: %v, want %v", name, err, c.begins)
		}
		if _, err := ReadAnswer(h, b[wire.HeaderLen:], strings.ToUpper); !errors.Is(err, c.answering) {
			t.Errorf("%s answers a HELLO: %v, want %v", name, err, c.answering)
		}
	}
}

// A refusal says why, in words that are made printable, and whether a dial may try again.
func TestARefusalSaysWhy(t *testing.T) {
	b := NewRefusal(refusal(status.NoDevice, "not %s", "yet")).AppendTo(nil)
	h, err := wire.ParseHeader(b)
	if err != nil {
		t.Fatal(err)
	}
	_, err = ReadAnswer(h, b[wire.HeaderLen:], strings.ToUpper)
	if err == nil || !strings.Contains(err.Error(), "NOT YET") || !WorthAnotherTry(err) {
		t.Errorf("refused with %v", err)
	}
	for _, final := range []status.Code{status.Access, status.Version, status.Reset} {
		if WorthAnotherTry(refusal(final, "for good")) {
			t.Errorf("%v is tried again", final)
		}
	}
}
