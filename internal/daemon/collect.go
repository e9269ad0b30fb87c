package daemon

import (
	"context"
	"net/http"
	"runtime"
	"runtime/debug"
)

// Collect returns unused memory to the kernel, so that the process has only the memory that it
// uses. It costs a garbage collection, a load that any client could put on a node: it is part of
// testing, and refused where faults are off.
func (d *Daemon) Collect() error {
	if d.links == nil {
		return errFaultsOff
	}
	runtime.GC() // the second collection frees the contents of pools
	debug.FreeOSMemory()
	return nil
}

// collector is the part of a subject that collects.
type collector interface{ Collect() error }

// Collected is the answer to POST /v1/faults/collect.
type Collected struct{}

// collectRoute adds the request to collect.
func (a *admin) collectRoute(mux *http.ServeMux, s collector) {
	mux.HandleFunc("POST /v1/faults/collect", func(w http.ResponseWriter, _ *http.Request) {
		a.answerFault(w, Collected{}, s.Collect())
	})
}

// Collect has the node give back the memory that it does not use any more.
func (c *Client) Collect(ctx context.Context) error {
	_, err := decodeAnswer[Collected](c.do(ctx, http.MethodPost, "faults/collect", nil))
	return err
}
