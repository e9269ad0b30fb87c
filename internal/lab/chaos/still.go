package chaos

import (
	"time"

	"github.com/fabricd/fabricd/internal/lab/history"
)

const (
	stillTick  = 20 * time.Millisecond  // how often the lab looks whether it is late
	stillLeast = 200 * time.Millisecond // the shortest stall that is written down
)

// watchStill writes down when this process got no processor: then other processes may
// have got none either, and a node that was taken for lost stood still. It ends with
// the cluster's ctx.
func (c *cluster) watchStill() {
	ticker := time.NewTicker(stillTick)
	defer ticker.Stop()
	for due := time.Now().Add(stillTick); ; due = time.Now().Add(stillTick) {
		select {
		case <-c.ctx.Done():
			return
		case <-ticker.C:
		}
		if late := time.Since(due); late >= stillLeast {
			c.log.Put(&history.Still{For: int64(late)})
		}
	}
}
