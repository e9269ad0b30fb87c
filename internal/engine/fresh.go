package engine

import "github.com/fabricd/fabricd/internal/status"

// settle ends the waits for a confirmation. The caller holds mu.
func (l *link) settle() {
	if l.confirm != nil {
		close(l.confirm)
		l.confirm = nil
	}
}

// Revalidate drops the confirmations of all links: this process noticed that it
// stood still. Frames that arrive wait until each peer has confirmed both incarnations anew.
func (n *Node) Revalidate() {
	for _, l := range n.allLinks() {
		l.mu.Lock()
		l.keepalive.Doubt(n.now())
		l.freshUntil.Store(int64(l.keepalive.FreshUntil()))
		l.mu.Unlock()
	}
}

// awaitFresh waits until both incarnations have been confirmed freshly. After a
// pause of this process or of the peer, nothing that arrives is applied before
// a round trip has shown that neither was replaced.
func (l *link) awaitFresh() error {
	for l.otherEnd == nil && int64(l.n.now()) > l.freshUntil.Load() {
		select {
		case <-l.startProbe():
		case <-l.end.down:
			return status.Reset
		}
	}
	if isClosed(l.end.down) {
		return status.Reset
	}
	return nil
}

// startProbe asks the peer for a confirmation, and returns a channel that is closed
// when one has come.
func (l *link) startProbe() <-chan struct{} {
	l.mu.Lock()
	if l.confirm == nil {
		l.confirm = make(chan struct{})
	}
	confirm, ask := l.confirm, l.keepalive.Ask(l.n.now())
	l.mu.Unlock()
	if ask != nil {
		l.sendFrame(ask)
	}
	return confirm
}
