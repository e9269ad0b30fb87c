package engine

import (
	"time"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/core"
)

// A payloadFill records whether bytes behind a frame are being put into memory. The conn's mu
// guards it.
type payloadFill struct {
	on    bool
	ended chan struct{} // closed when on becomes false; nil while no call waits
}

func (f *payloadFill) end() {
	f.on = false
	if f.ended != nil {
		close(f.ended)
		f.ended = nil
	}
}

// wait returns a channel that is closed when they are in memory, nil if there are none.
func (f *payloadFill) wait() <-chan struct{} {
	if f.on && f.ended == nil {
		f.ended = make(chan struct{})
	}
	return f.ended
}

// payloadDone reports to the core that the bytes behind a frame are in memory, or why not.
func (c *conn) payloadDone(p *core.Payload[memory], err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.core.PayloadDone(p, err)
	c.moved.Add(1)
	c.fill.end()
}

// fillTime bounds how long closeWindows waits for bytes that are on their way: those
// of one frame, which are on the stream together. A link that has stopped is mostly
// given up earlier, and with it they are.
const fillTime = 3 * time.Second

// closeWindows makes the memory of this end's windows stay as it is, once it has
// returned: see attach.NodeSession.
func (c *conn) closeWindows() {
	c.mu.Lock()
	c.core.CloseWindows()
	filled := c.fill.wait()
	c.mu.Unlock()
	if otherEnd := c.otherEnd.Load(); otherEnd != nil { // one that comes later finds no window
		otherEnd.invalidation.end()
	}
	c.awaitApplied()
	if filled == nil {
		return
	}
	late := time.NewTimer(fillTime)
	defer late.Stop()
	select {
	case <-filled:
	case <-late.C:
		c.fail(attach.CauseStopped(c.link.self.Node)) // ends the reader
		<-filled
	}
}
