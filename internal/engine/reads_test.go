package engine_test

import (
	"sync"
	"testing"

	"github.com/fabricd/fabricd/internal/engine"
	"github.com/fabricd/fabricd/rma"
)

// TestAsManyReadsAsAllowed keeps as many reads under way as the limit allows: a peer
// that has its answer, and reads again, is not refused because this end still holds
// the memory that the answer was read from.
func TestAsManyReadsAsAllowed(t *testing.T) {
	const size, readers = 1 << 20, 3 * engineOps
	for _, provider := range []string{"tcp-plain", "mem"} {
		t.Run(provider, func(t *testing.T) {
			pa, pb := benchProviders[provider](t)
			here, there := pairWith(t, pa, pb, func(c *engine.Config) { c.Limits.Ops = engineOps })
			roff, err := register(there, alloc(t, size), 0, rma.ProtRead, 0)
			if err != nil {
				t.Fatal(err)
			}
			var all sync.WaitGroup
			for i := range readers {
				all.Go(func() {
					p := make([]byte, size)
					for range 30 {
						if err := here.VReadFrom(p[:size-i], roff, rma.Sync); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			all.Wait()
		})
	}
}

// engineOps is the limit.
const engineOps = 2
