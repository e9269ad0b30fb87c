package netsim

import (
	"time"

	"github.com/fabricd/fabricd/internal/wait"
)

// A wakeup holds the events that end a wait. Nil channels and a zero time are never.
type wakeup struct {
	changed, rules <-chan struct{}
	at             time.Time
}

// sleep returns at the first of the events.
func (w wakeup) sleep() {
	select {
	case <-w.changed:
	case <-w.rules:
	case <-wait.At(w.at):
	}
}
