package chaos

import "fmt"

// A Refusal is a run that was not begun, or could not be judged, because of
// what it was asked or where it was to run: not of what fabricd did. Its text
// is one line.
type Refusal struct {
	text string
	err  error // nil or the cause
}

func (r *Refusal) Error() string {
	if r.err == nil {
		return r.text
	}
	return r.text + ": " + r.err.Error()
}

// Unwrap returns the cause.
func (r *Refusal) Unwrap() error { return r.err }

// refusef returns a Refusal.
func refusef(format string, args ...any) error { return &Refusal{text: fmt.Sprintf(format, args...)} }
