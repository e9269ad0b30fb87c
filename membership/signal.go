package membership

// A signal wakes the goroutine that receives from it. Those before it does are one.
type signal chan struct{}

func newSignal() signal { return make(signal, 1) }

func (s signal) send() {
	select {
	case s <- struct{}{}:
	default: // the goroutine has been woken already
	}
}
