package membership

import "github.com/fabricd/fabricd/internal/wait"

// A signal wakes the goroutine that receives from it. Those before it does are one.
type signal chan struct{}

func newSignal() signal { return make(signal, 1) }

func (s signal) send() { wait.Notify(s) }
