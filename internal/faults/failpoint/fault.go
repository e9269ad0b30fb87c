package failpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"time"
)

// A Kind is the effect of a fault.
type Kind string

// The kinds. Those that take a step happen there, or at once without one where
// Step may be empty.
const (
	Crash        Kind = "crash"         // the node ends without a word; at a step or at once
	Freeze       Kind = "freeze"        // the node stands still for For; at a step or at once
	Delay        Kind = "delay"         // the goroutine that reaches the step waits For
	Error        Kind = "error"         // the step fails
	Clock        Kind = "clock"         // the wall clock is Offset ahead (or behind) for For
	Disk         Kind = "disk"          // the state directory is as in Disk for For
	Descriptors  Kind = "descriptors"   // Free descriptors are left for For
	SlowReceiver Kind = "slow-receiver" // every receive of messages on Port waits Delay, for For
)

// Kinds are all kinds, in the order in which help lists them.
var Kinds = []Kind{Crash, Freeze, Delay, Error, Clock, Disk, Descriptors, SlowReceiver}

// The effects of a Disk fault on the state directory.
const (
	DiskFull     = "full"      // ENOSPC wherever something is written
	DiskReadOnly = "read-only" // EROFS wherever something is changed
	DiskSync     = "sync"      // EIO when a change is to last; it may have lasted
	DiskSlow     = "slow"      // every change takes Delay longer
)

var diskModes = []string{DiskFull, DiskReadOnly, DiskSync, DiskSlow}

// Bounds of a fault's fields.
const (
	MinFor = time.Millisecond
	// MaxFreeze bounds how long a node, or a goroutine at a step, stands still.
	MaxFreeze = 10 * time.Minute
	// MaxFor bounds every other fault: none outlives its controller for ever.
	MaxFor = 24 * time.Hour
	// MaxOffset bounds how wrong a clock can be.
	MaxOffset = 10 * 365 * 24 * time.Hour
	// MaxDelay bounds one slow write or receive.
	MaxDelay = time.Minute
	// MaxCount bounds Nth, Times and Free.
	MaxCount = 1 << 20
	// MaxFault bounds the JSON of one fault, in bytes.
	MaxFault = 4 << 10
	// DefaultWithin is how long a fault at a step stays armed.
	DefaultWithin = 10 * time.Minute
)

// A Fault is one thing that goes wrong at one node. Which fields a kind takes
// is in its constant's comment; all others must be zero. Check checks that.
type Fault struct {
	Kind Kind `json:"kind"`
	// Step names where it happens; see [Steps].
	Step string `json:"step,omitempty"`
	// For is how long it lasts: MinFor to MaxFreeze for a freeze or a delay, to
	// MaxFor for the others.
	For Duration `json:"for,omitempty"`

	// Within is how long a fault at a step stays armed, up to MaxFor; 0 means
	// DefaultWithin.
	Within Duration `json:"within,omitempty"`
	// Nth is the first hit of the step that counts, from 1; 0 means 1.
	Nth int `json:"nth,omitempty"`
	// Times is how often it happens at most; 0 means once, -1 always.
	Times int `json:"times,omitempty"`
	// Probability is that of each hit that counts, above 0 and up to 1, drawn
	// from Seed; 0 means 1.
	Probability float64 `json:"probability,omitempty"`
	Seed        uint64  `json:"seed,omitempty"`

	Offset Duration `json:"offset,omitempty"` // of a clock, up to MaxOffset either way
	Disk   string   `json:"disk,omitempty"`   // full, read-only, sync or slow
	Delay  Duration `json:"delay,omitempty"`  // of a slow disk or receiver, MinFor to MaxDelay
	Free   int      `json:"free,omitempty"`   // descriptors that are left
	Port   uint16   `json:"port,omitempty"`   // local port of a slow receiver; 0: all
}

// A FieldError describes in one line an error in a fault.
type FieldError struct {
	Field   string // as in the JSON, and as the command's flag
	Value   string
	Allowed string // the allowed values
}

func (e *FieldError) Error() string {
	return fmt.Sprintf("%s: %q: %s", e.Field, e.Value, e.Allowed)
}

func wrong(field string, value any, format string, args ...any) error {
	return &FieldError{field, fmt.Sprint(value), fmt.Sprintf(format, args...)}
}

// needs are the fields of a kind beside those of a step: all of must, and those
// of may if they are wanted.
type needs struct {
	step, noStep bool // it may have a step; it may have none
	must, may    []string
}

var needsOf = map[Kind]needs{
	Crash:        {step: true, noStep: true},
	Freeze:       {step: true, noStep: true, must: []string{"for"}},
	Delay:        {step: true, must: []string{"for"}},
	Error:        {step: true},
	Clock:        {noStep: true, must: []string{"for", "offset"}},
	Disk:         {noStep: true, must: []string{"for", "disk"}, may: []string{"delay"}},
	Descriptors:  {noStep: true, must: []string{"for"}, may: []string{"free"}},
	SlowReceiver: {noStep: true, must: []string{"for", "delay"}, may: []string{"port"}},
}

// stepFields are those that only a fault at a step has.
var stepFields = []string{"within", "nth", "times", "probability", "seed"}

// fields yields all fields but kind and step, with their values, in the order in which problems are
// reported.
func (f Fault) fields(yield func(name string, value reflect.Value) bool) {
	v := reflect.ValueOf(f)
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		if name != "kind" && name != "step" && !yield(name, v.Field(i)) {
			return
		}
	}
}

// Check returns the error in a fault, a *FieldError, or nil.
func (f Fault) Check() error {
	need, known := needsOf[f.Kind]
	if !known {
		return wrong("kind", f.Kind, "want %s", list(Kinds))
	}
	if err := f.checkStep(need); err != nil {
		return err
	}
	for name, value := range f.fields {
		is := !value.IsZero()
		valid, allowed := f.bounds(name)
		must := slices.Contains(need.must, name)
		may := must || slices.Contains(need.may, name) || f.Step != "" && slices.Contains(stepFields, name)
		switch {
		case must && !is:
			return wrong(name, "", "a %s needs it: %s", f.Kind, allowed)
		case is && !may:
			return wrong(name, value, "a %s does not take it%s", f.Kind, f.withoutStep(name))
		case is && !valid:
			return wrong(name, value, "want %s", allowed)
		}
	}
	return f.checkDelay()
}

func (f Fault) checkStep(need needs) error {
	if f.Step == "" {
		if !need.noStep {
			return wrong("step", "", "a %s needs a step: `fabricd faults steps` lists them", f.Kind)
		}
		return nil
	}
	info, known := FindStep(f.Step)
	switch {
	case !need.step:
		return wrong("step", f.Step, "a %s does not take it", f.Kind)
	case !known:
		return wrong("step", f.Step, "no such step: `fabricd faults steps` lists them")
	case f.Kind == Error && info.Fails == "":
		return wrong("step", f.Step, "this step cannot fail")
	}
	return nil
}

// checkDelay ties a disk's delay to its mode.
func (f Fault) checkDelay() error {
	switch {
	case f.Kind != Disk:
	case f.Disk == DiskSlow && f.Delay == 0:
		_, allowed := f.bounds("delay")
		return wrong("delay", "", "a slow disk needs it: %s", allowed)
	case f.Disk != DiskSlow && f.Delay != 0:
		return wrong("delay", f.Delay, "only a slow disk takes it")
	}
	return nil
}

// withoutStep explains why a field that steps take is refused.
func (f Fault) withoutStep(name string) string {
	if needsOf[f.Kind].step && slices.Contains(stepFields, name) {
		return " without a step"
	}
	return ""
}

// maxFor returns the bound of For.
func (f Fault) maxFor() time.Duration {
	if f.Kind == Freeze || f.Kind == Delay {
		return MaxFreeze
	}
	return MaxFor
}

// bounds reports whether the value of a field is valid, if it is set, and describes the valid values.
func (f Fault) bounds(name string) (valid bool, allowed string) {
	span := func(d Duration, low, high time.Duration) (bool, string) {
		return time.Duration(d) >= low && time.Duration(d) <= high, fmt.Sprintf("a duration from %s to %s", Duration(low), Duration(high))
	}
	switch name {
	case "for":
		return span(f.For, MinFor, f.maxFor())
	case "within":
		return span(f.Within, MinFor, MaxFor)
	case "nth":
		return f.Nth >= 1 && f.Nth <= MaxCount, fmt.Sprintf("a number from 1 to %d", MaxCount)
	case "times":
		if f.Kind == Crash {
			return f.Times == 1, "1: a node crashes once"
		}
		return f.Times >= -1 && f.Times <= MaxCount, fmt.Sprintf("a number from 1 to %d, or -1 for always", MaxCount)
	case "probability":
		return f.Probability > 0 && f.Probability <= 1, "a number above 0 and up to 1"
	case "offset":
		valid, allowed = span(f.Offset, -MaxOffset, MaxOffset)
		return valid, allowed + ", not 0"
	case "disk":
		return slices.Contains(diskModes, f.Disk), list(diskModes)
	case "delay":
		return span(f.Delay, MinFor, MaxDelay)
	case "free":
		return f.Free >= 0 && f.Free <= MaxCount, fmt.Sprintf("a number from 0 to %d", MaxCount)
	}
	return true, "another value"
}

// list writes "a, b or c".
func list[T ~string](words []T) string {
	all := make([]string, len(words))
	for i, w := range words {
		all[i] = string(w)
	}
	last := len(all) - 1
	return strings.Join(all[:last], ", ") + " or " + all[last]
}

// Parse reads one fault from JSON, which must hold nothing else and no unknown
// key, and checks it.
func Parse(b []byte) (Fault, error) {
	var f Fault
	if len(b) > MaxFault {
		return f, fmt.Errorf("fault: %d bytes, want at most %d", len(b), MaxFault)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&f); err != nil {
		return Fault{}, fmt.Errorf("fault: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return Fault{}, errors.New("fault: something follows it")
	}
	if err := f.Check(); err != nil {
		return Fault{}, err
	}
	return f, nil
}

// String returns the fault in the words of the command line, without its kind's
// defaults: "crash step=host.grant_persisted nth=2".
func (f Fault) String() string {
	words := []string{string(f.Kind)}
	if f.Step != "" {
		words = append(words, "step="+f.Step)
	}
	for name, v := range f.fields {
		if !v.IsZero() {
			words = append(words, fmt.Sprintf("%s=%v", name, v))
		}
	}
	return strings.Join(words, " ")
}

// A Duration is a time.Duration that JSON writes as text: "1.5s".
type Duration time.Duration

// String returns the duration as time.Duration does.
func (d Duration) String() string { return time.Duration(d).String() }

// MarshalText writes the duration.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads the format of time.ParseDuration.
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	if err != nil {
		return fmt.Errorf("%q: want a duration such as 500ms or 1m30s", shorten(b))
	}
	*d = Duration(v)
	return nil
}

// shorten bounds the text that an error quotes.
func shorten(b []byte) string {
	if len(b) > 32 {
		return string(b[:32]) + "…"
	}
	return string(b)
}
