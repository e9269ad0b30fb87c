package driver

import (
	"github.com/fabricd/fabricd/internal/core"
	"github.com/fabricd/fabricd/internal/wire"
)

// take applies the small frames at the front of p, with what follows them, and
// returns how long they are. Whoever has read them calls it, while the reader of
// the operations lane waits for its next frame: that one need not be woken for
// them. The reader gets everything else.
func (c *conn) take(p []byte) (n int) {
	n, left, err := c.takeAndStart(p)
	if err != nil || left != nothing {
		c.link.spawn(func() { // not here: the reader waits for this, and fail for nobody
			c.link.n.log.Debug().Err(err).Uint64("conn", uint64(c.id)).Stringer("peer", c.link.peer.Life).
				Msg("operations lane cut off")
			c.cutOff(err)
		})
	}
	if n > 0 {
		c.once.Do(func() { close(c.first) })
	}
	return n
}

// takeAndStart is the part of take with mu held: it applies frames and starts what
// they allow. A panic lets go of mu: the link must be able to end.
func (c *conn) takeAndStart(p []byte) (n int, left chore, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.taking = true
	if n, err = c.takeFrames(p); n > 0 && err == nil {
		left = c.start(false)
	}
	c.taking = false
	return n, left, err
}

// takeFrames applies frames as long as it can. The caller holds mu.
func (c *conn) takeFrames(p []byte) (n int, err error) {
	for n < len(p) {
		k, err := c.takeFrame(p[n:])
		n += k
		if k == 0 || err != nil {
			return n, err
		}
	}
	return n, nil
}

// takeFrame applies one frame and returns its length; 0: it is not taken. The caller
// holds mu.
func (c *conn) takeFrame(p []byte) (int, error) {
	if len(p) < wire.HeaderLen {
		return 0, nil
	}
	h, err := wire.ParseHeader(p)
	end := wire.HeaderLen + int(h.Len)
	if err != nil || len(p) < end || !c.takes(h.Type) {
		return 0, nil
	}
	body, rest := p[wire.HeaderLen:end:end], p[end:]
	switch h.Type {
	case wire.TypeCredit:
		f, err := wire.ParseCredit(h.Flags, body)
		if err != nil {
			return 0, nil
		}
		c.out.raise(f.Limit)
		return end, nil
	case wire.TypeWrite:
		f, err := wire.ParseWrite(h.Flags, body)
		if err != nil || f.Ordered || int64(f.Length) > int64(len(rest)) {
			return 0, nil
		}
		end += int(f.Length)
	}
	into, err := c.core.Handle(h, body)
	if err == nil && into != nil {
		c.core.PayloadDone(into, storePayload(into, rest))
	}
	return end, err
}

// storePayload puts the first bytes of b where p says.
func storePayload(p *core.Payload[memory], b []byte) (memErr error) {
	for _, sp := range p.Spans {
		err := sp.Window.Mem.region.WriteAt(b[:sp.Length], at(sp))
		memErr, b = first(memErr, err), b[sp.Length:]
	}
	return memErr
}

// takes reports whether a frame can be applied by who has read it: it must not
// make that one wait.
func (c *conn) takes(t wire.Type) bool {
	switch t {
	case wire.TypeDone, wire.TypeResult, wire.TypeCredit:
		return true
	case wire.TypeWrite, wire.TypeSignal, wire.TypeAtomic:
		return c.link.n.cfg.Faults == nil && c.link.serving()
	}
	return false
}

// serving reports whether both lives have been confirmed freshly.
func (l *link) serving() bool {
	select {
	case <-l.down:
		return false
	default:
		return l.twin != nil || int64(l.n.now()) <= l.servingUntil.Load()
	}
}
