package faults

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/fabricd/fabricd/fabric/addr"
)

// A FieldError describes in one line an error in one field of a rule.
type FieldError struct {
	Field string // its name in JSON
	Value string
	Want  string // the allowed values, or why it cannot be
}

// Error returns the field, its value and the allowed values.
func (e *FieldError) Error() string { return fmt.Sprintf("%.40s: %.80q: %s", e.Field, e.Value, e.Want) }

// Check returns nil if the rule can be added to a Plane, else a *FieldError for
// the first field that is not allowed.
func (r *Rule) Check() error {
	for _, check := range []func() *FieldError{r.checkPlace, r.checkNumbers, r.checkTimes, r.checkSense, r.checkStreams} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

// checkPlace checks the name and the traffic of the rule.
func (r *Rule) checkPlace() *FieldError {
	if len(r.Name) > MaxName || !printable(r.Name) {
		return &FieldError{"name", r.Name, fmt.Sprintf("want at most %d bytes of printable text", MaxName)}
	}
	if !slices.Contains(Planes, r.On) {
		return &FieldError{"plane", string(r.On), "want gossip, control, messages, rma, link (messages and rma) or all"}
	}
	if !slices.Contains([]End{AtBoth, AtFrom, AtTo}, r.At) {
		return &FieldError{"at", string(r.At), "want from, to, or nothing for both"}
	}
	for _, side := range []struct {
		name string
		ids  Nodes
	}{{"from", r.From}, {"to", r.To}} {
		if len(side.ids) > MaxNodes {
			return &FieldError{side.name, fmt.Sprint(len(side.ids)), fmt.Sprintf("want at most %d nodes", MaxNodes)}
		}
		for i, id := range side.ids {
			if id >= addr.FirstReserved {
				return &FieldError{side.name, fmt.Sprint(id), fmt.Sprintf("want node IDs from 0 to %d", addr.FirstReserved-1)}
			}
			if slices.Contains(side.ids[:i], id) {
				return &FieldError{side.name, fmt.Sprint(id), "is there twice"}
			}
		}
	}
	if len(r.From) == 1 && len(r.To) == 1 && r.From[0] == r.To[0] {
		return &FieldError{"to", r.To.String(), "is from too: a node has no link with itself that could break"}
	}
	return nil
}

func printable(s string) bool {
	return utf8.ValidString(s) && strings.IndexFunc(s, func(c rune) bool { return c < ' ' || c == 0x7f }) < 0
}

// checkNumbers checks the bounds of each field.
func (r *Rule) checkNumbers() *FieldError {
	for _, p := range []struct {
		name  string
		value Probability
	}{{"drop", r.Drop}, {"duplicate", r.Duplicate}, {"reorder", r.Reorder}, {"corrupt", r.Corrupt}} {
		if !(p.value >= 0 && p.value <= 1) {
			return &FieldError{p.name, fmt.Sprint(float64(p.value)), "want 0% to 100%"}
		}
	}
	if r.Rate != 0 && (r.Rate < MinRate || r.Rate > MaxRate) {
		return &FieldError{"rate", fmt.Sprint(int64(r.Rate)), fmt.Sprintf("want %d to %d bytes per second", MinRate, int64(MaxRate))}
	}
	if r.Buffer < 0 || r.Buffer > MaxBuffer {
		return &FieldError{"buffer", fmt.Sprint(int64(r.Buffer)), fmt.Sprintf("want up to %d bytes", MaxBuffer)}
	}
	if r.MTU != 0 && (r.MTU < MinMTU || r.MTU > MaxMTU) {
		return &FieldError{"mtu", fmt.Sprint(r.MTU), fmt.Sprintf("want %d to %d bytes", MinMTU, MaxMTU)}
	}
	if !slices.Contains([]Shape{"", Uniform, Normal, Exponential}, r.Shape) {
		return &FieldError{"shape", string(r.Shape), "want uniform, normal or exponential"}
	}
	return nil
}

// checkTimes checks the bounds of each duration.
func (r *Rule) checkTimes() *FieldError {
	for _, d := range []struct {
		name  string
		value Duration
		limit time.Duration
	}{
		{"delay", r.Delay, MaxDelay}, {"jitter", r.Jitter, MaxDelay},
		{"after", r.After, MaxLength}, {"for", r.For, MaxLength}, {"up", r.Up, MaxLength}, {"down", r.Down, MaxLength},
	} {
		if d.value < 0 || time.Duration(d.value) > d.limit {
			return &FieldError{d.name, d.value.String(), fmt.Sprintf("want a duration up to %v", d.limit)}
		}
	}
	if (r.Up == 0) != (r.Down == 0) {
		return &FieldError{"up", r.Up.String(), fmt.Sprintf("with down %v: want both or none", r.Down)}
	}
	if r.Up != 0 && min(r.Up, r.Down) < Duration(MinFlap) {
		return &FieldError{"up", r.Up.String(), fmt.Sprintf("with down %v: want each at least %v", r.Down, MinFlap)}
	}
	return nil
}

// checkSense refuses a rule that does nothing, and fields that mean nothing
// without another.
func (r *Rule) checkSense() *FieldError {
	switch {
	case r.Shape != "" && r.Jitter == 0:
		return &FieldError{"shape", string(r.Shape), "means nothing without jitter"}
	case r.Buffer != 0 && r.Rate == 0:
		return &FieldError{"buffer", r.Buffer.String(), "means nothing without rate"}
	case r.Hold && r.For == 0:
		return &FieldError{"hold", "true", "wants a duration in for: what is held must be let go"}
	case len(r.effects()) == 0:
		return &FieldError{"rule", r.Name, "does nothing: want at least one of drop, duplicate, reorder, corrupt, delay, jitter, rate, mtu, cut, half_open, hold, udp_blocked, reset"}
	}
	return nil
}

// checkStreams refuses faults that the plane's carrier cannot have.
func (r *Rule) checkStreams() *FieldError {
	why := map[Traffic]string{
		Control:  "control links and lifelines are TCP, which puts right what happens to packets: they take drop, delay, jitter, rate, cut, half_open, hold and reset",
		Messages: onStream,
		RMA:      onStream,
	}[r.On]
	if why == "" {
		return nil
	}
	for _, f := range []struct {
		name   string
		on     bool
		stream bool // control takes it, a stream does not
	}{
		{"duplicate", r.Duplicate > 0, false}, {"reorder", r.Reorder > 0, false}, {"corrupt", r.Corrupt > 0, false},
		{"mtu", r.MTU > 0, false}, {"udp_blocked", r.BlockUDP, false},
		{"drop", r.Drop > 0, true}, {"half_open", r.HalfOpen, true},
	} {
		if f.on && (!f.stream || r.On != Control) {
			return &FieldError{f.name, "on " + string(r.On), why}
		}
	}
	return nil
}

const onStream = "a stream is reliable and in order, and shares its encrypted packets with the rest of the link: " +
	"it takes delay, jitter, rate, cut, hold and reset; for the others use the plane link"
