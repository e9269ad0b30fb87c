package core

import (
	"fmt"
	"time"

	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/wire"
)

// DialRounds is how often a dial goes through a peer's addresses, and DialPause the
// time between two rounds: a peer that has just come up, or that does not yet know
// this node, gets a moment.
const (
	DialRounds = 4
	DialPause  = 100 * time.Millisecond
)

// WorthAnotherTry reports whether a refusal may change by itself: the peer may
// not know this incarnation yet, or dialed at the same moment.
func WorthAnotherTry(err error) bool {
	code := status.Of(err)
	return code != status.Access && code != status.Version && code != status.Reset
}

// ReadHello returns the HELLO that a dialed session begins with.
func ReadHello(h wire.Header, body []byte) (wire.Hello, error) {
	if h.Type != wire.TypeHello {
		return wire.Hello{}, fmt.Errorf("%w: %v instead of HELLO", status.Protocol, h.Type)
	}
	f, err := wire.ParseHello(h.Flags, body)
	if err == nil && f.Answer {
		err = fmt.Errorf("%w: HELLO is an answer", status.Protocol)
	}
	return f, err
}

// ReadAnswer returns the HELLO that answers one. The error of a refusal has the peer's
// reason in the form that text returns.
func ReadAnswer(h wire.Header, body []byte, text func(string) string) (wire.Hello, error) {
	switch h.Type {
	case wire.TypeHelloRefuse:
		f, err := wire.ParseHelloRefuse(h.Flags, body)
		if err == nil {
			err = fmt.Errorf("%w: refused by peer: %s", f.Code, text(f.Reason))
		}
		return wire.Hello{}, err
	case wire.TypeHello:
		f, err := wire.ParseHello(h.Flags, body)
		if err == nil && !f.Answer {
			err = fmt.Errorf("%w: HELLO is not an answer", status.Protocol)
		}
		return f, err
	}
	return wire.Hello{}, fmt.Errorf("%w: %v instead of HELLO", status.Protocol, h.Type)
}

// NewRefusal returns the frame that gives a dialing peer the reason of its refusal.
func NewRefusal(err error) wire.HelloRefuse {
	return wire.HelloRefuse{Code: status.Of(err), VersionMin: wire.VersionMin, VersionMax: wire.VersionMax, Reason: err.Error()}
}
