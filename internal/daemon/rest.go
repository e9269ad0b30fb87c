package daemon

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/fabricd/fabricd/internal/wait"
)

// A node that has served thousands of connections and then rests keeps their memory:
// Go collects no garbage while the process allocates nothing, for two minutes at least, and gives
// pages back slowly after that. A Heap has it collected when the process rests.

const (
	restEvery = 10 * time.Second
	// restGrowth is how much more than after the last collection the process must
	// have for another one, in bytes: a node that rests always collects no more.
	restGrowth = 32 << 20
	// restAgain is after how many looks at a resting process its memory is collected again,
	// although it has not grown: memory in use may have been freed since. Go itself does so after
	// two minutes, but keeps the pages.
	restAgain = 6
)

// A rester decides when the memory of a process that rests is collected.
type rester struct {
	cycles uint64 // collections at the last look
	kept   uint64 // bytes that Go had after the last collection that this asked for
	looks  int    // at a process that rests, since then
}

// due reports whether to collect, in a process that has had cycles collections and for
// which Go has had bytes of the kernel. It is asked at regular times: a process that
// has collected since the last one does not rest.
func (r *rester) due(cycles, had uint64) bool {
	rests := cycles == r.cycles
	r.cycles = cycles
	if !rests {
		return false
	}
	r.looks++
	again := r.looks >= restAgain && had > 2*restGrowth
	if !again && had <= r.kept+r.kept/4+restGrowth {
		return false
	}
	r.looks = 0
	return true
}

// rest collects until ctx is done.
func (h *Heap) rest(ctx context.Context) {
	var r rester
	for wait.For(ctx.Done(), restEvery) {
		if r.due(memory()) {
			debug.FreeOSMemory()
			r.cycles, r.kept = memory()
		}
	}
}

// memory returns how often garbage was collected, and how many bytes Go has of the
// kernel.
func memory() (cycles, had uint64) {
	s := []metrics.Sample{{Name: "/gc/cycles/total:gc-cycles"}, {Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64(), s[1].Value.Uint64() - s[2].Value.Uint64()
}
