package transporttest

import (
	"io"
	"slices"
	"testing"
	"time"
)

// What the attributes of a provider are about.
const (
	shortWrite = 64      // bytes
	longWrite  = 1 << 20 // bytes
	stretch    = 16      // long writes that are timed together
)

// Costs measures what a provider's Attributes estimate, over a lane each way
// between here and there: half a round trip of a short write, and what one lane
// carries that is written without a pause. Both are medians, which a busy machine
// moves less than means. Run it with -count, and with the providers in turns.
func Costs(b *testing.B, open func(b *testing.B) (here, there io.ReadWriter)) {
	b.Run("latency", func(b *testing.B) {
		here, there := open(b)
		go func() { // ends with the session
			p := make([]byte, shortWrite)
			for {
				if _, err := io.ReadFull(there, p); err != nil {
					return
				}
				if _, err := there.Write(p); err != nil {
					return
				}
			}
		}()
		p := make([]byte, shortWrite)
		var trips []time.Duration
		for b.Loop() {
			began := time.Now()
			write(b, here, p)
			if _, err := io.ReadFull(here, p); err != nil {
				b.Fatal(err)
			}
			trips = append(trips, time.Since(began))
		}
		b.ReportMetric(middle(trips).Seconds()/2*1e6, "µs")
	})
	b.Run("bandwidth", func(b *testing.B) {
		here, there := open(b)
		go func() { // ends with the session
			buf := make([]byte, longWrite)
			for {
				if _, err := there.Read(buf); err != nil {
					return
				}
			}
		}()
		p := make([]byte, longWrite)
		var stretches []time.Duration
		for b.Loop() {
			began := time.Now()
			for range stretch {
				write(b, here, p)
			}
			stretches = append(stretches, time.Since(began))
		}
		b.ReportMetric(stretch*longWrite/(1<<20)/middle(stretches).Seconds(), "MiB/s")
	})
}

func write(b *testing.B, to io.Writer, p []byte) {
	if _, err := to.Write(p); err != nil {
		b.Fatal(err)
	}
}

// middle returns the median of d, which has one at least.
func middle(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}
