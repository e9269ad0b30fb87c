package daemon

import (
	"bytes"
	"context"
	"net/http"
	"runtime"
	"runtime/pprof"
	"time"

	"github.com/fabricd/fabricd/internal/metrics"
	"github.com/fabricd/fabricd/internal/observe"
)

// A Debug describes a process for a repair. It holds no secret: settings name the files of secrets,
// and goroutines come without their arguments.
type Debug struct {
	Version    string            `json:"version"`
	Go         string            `json:"go"`
	Platform   string            `json:"platform"`
	Settings   map[string]string `json:"settings"`
	Goroutines string            `json:"goroutines"` // as runtime/pprof writes them, those that are alike together
	Memory     DebugMemory       `json:"memory"`
}

// DebugMemory is the memory of Go in a process, in bytes; see runtime.MemStats.
type DebugMemory struct {
	HeapInUse    uint64 `json:"heap_in_use_bytes"`
	HeapObjects  uint64 `json:"heap_objects"`
	HeapReleased uint64 `json:"heap_released_bytes"`
	Stacks       uint64 `json:"stacks_bytes"`
	System       uint64 `json:"system_bytes"`
	Collections  uint32 `json:"collections"`
	PausedNS     uint64 `json:"paused_ns"` // by all collections
	Goroutines   int    `json:"goroutines"`
	Processors   int    `json:"processors"` // that Go uses
}

// Debug returns the description of the process.
func (d *Daemon) Debug() Debug {
	answer := Debug{Version: d.opts.Version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
		Settings: map[string]string{}}
	for _, s := range settings {
		answer.Settings[s.Key] = s.Value(d.loaded)
	}
	var text bytes.Buffer // its writes do not fail
	_ = pprof.Lookup("goroutine").WriteTo(&text, 1)
	answer.Goroutines = text.String()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	answer.Memory = DebugMemory{m.HeapInuse, m.HeapObjects, m.HeapReleased, m.StackInuse, m.Sys, m.NumGC, m.PauseTotalNs,
		runtime.NumGoroutine(), runtime.GOMAXPROCS(0)}
	return answer
}

// Metrics serves the metrics of /metrics, also where there is no page.
func (d *Daemon) Metrics() http.Handler {
	return metrics.Handler(func() observe.Snapshot { return d.observe(time.Now()) }, d.log)
}

// Debug asks for the description of the process.
func (c *Client) Debug(ctx context.Context) (Debug, error) { return get[Debug](ctx, c, "debug") }
