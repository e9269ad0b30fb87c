package client

import "sync"

// places is a counting limit on calls of one kind. Calls get a place in FIFO order.
type places struct {
	mu      sync.Mutex // guards the fields below
	free    int
	waiting []chan struct{} // closed when the call has got its place; the oldest first
}

// take takes a place and reports true, or waits for one until a channel of stop is closed; a nil
// channel never is.
func (p *places) take(stop ...<-chan struct{}) bool {
	p.mu.Lock()
	if p.free > 0 {
		p.free--
		p.mu.Unlock()
		return true
	}
	got := make(chan struct{})
	p.waiting = append(p.waiting, got)
	p.mu.Unlock()
	var ends [3]<-chan struct{}
	copy(ends[:], stop)
	select {
	case <-got:
		return true
	case <-ends[0]:
	case <-ends[1]:
	case <-ends[2]:
	}
	return p.leave(got)
}

// leave ends a wait. If the call got a place meanwhile, it reports true.
func (p *places) leave(got chan struct{}) (taken bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, w := range p.waiting {
		if w == got {
			p.waiting = append(p.waiting[:i], p.waiting[i+1:]...)
			return false
		}
	}
	return true
}

// give passes the place to the call that has waited longest.
func (p *places) give() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.waiting) == 0 {
		p.free++
		return
	}
	close(p.waiting[0])
	p.waiting[0] = nil
	p.waiting = p.waiting[1:]
}
