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

// Collect has the node give back the memory that it does not use any more.
func (c *Client) Collect(ctx context.Context) error {
	_, err := ask[struct{}](ctx, c, http.MethodPost, "faults/collect", nil)
	return err
}
