package daemon

import (
	"context"
	"net/http"
	"runtime"
	"runtime/debug"
)

// Collect returns unused memory to the kernel, so that the process has only the memory that it
// uses: the lab compares that before and after a run, also of nodes that were started without
// faults. It costs two garbage collections, no more than other requests of an administrator.
func (d *Daemon) Collect() {
	runtime.GC() // the second collection frees the contents of pools
	debug.FreeOSMemory()
}

func (a *admin) collect(http.ResponseWriter, *http.Request) (any, error) {
	a.subject.Collect()
	return struct{}{}, nil
}

// Collect has the node give back the memory that it does not use any more.
func (c *Client) Collect(ctx context.Context) error {
	_, err := ask[struct{}](ctx, c, http.MethodPost, "collect", nil)
	return err
}
