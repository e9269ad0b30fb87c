package client

import "context"

// Plain is false while the bytes go through the node, and after the end of received ones. Without
// the lock of the direction it may be late.
func (e *endpoint) Plain(in bool) bool {
	p := e.path.Load()
	if p == nil || !p.conn.Plain() {
		return false
	}
	return in && e.pathIsOn() != nil || !in && p.switched.Load()
}

// Splice is a Recv (in) or a Send through the path.
func (e *endpoint) Splice(in bool, move func(fd int) error) {
	lock := &e.sending
	if in {
		lock = &e.receiving
	}
	if e.lock(context.Background(), lock) != nil {
		return
	}
	defer lock.Unlock()
	if !e.Plain(in) || e.shutting() || !in && e.shutOut.Load() {
		return
	}
	p := e.path.Load()
	if !in {
		p.conn.SpliceOut(move)
	} else if err := p.conn.SpliceIn(move); err != nil {
		p.ends(err)
	}
}
