package chaos

import "fmt"

// A Refusal is a run that was not begun, or could not be judged, because of the request
// or the place of the run: not because of fabricd. Its text is one line.
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
