package chaos

import (
	"time"

	"github.com/fabricd/fabricd/internal/lab/history"
)

const (
	stallTick  = 20 * time.Millisecond  // how often the lab looks whether it is late
	stallLeast = 200 * time.Millisecond // the shortest stall that is written down
)

// watchStall writes down when this process got no processor: then other processes may
// have got none either, and a node that was taken for lost stood still. It ends with
// the cluster's ctx.
func (c *cluster) watchStall() {
	ticker := time.NewTicker(stallTick)
	defer ticker.Stop()
	for due := time.Now().Add(stallTick); ; due = time.Now().Add(stallTick) {
		select {
		case <-c.followers.ctx.Done():
			return
		case <-ticker.C:
		}
		if late := time.Since(due); late >= stallLeast {
			c.log.Put(&history.Stall{For: int64(late)})
		}
	}
}
