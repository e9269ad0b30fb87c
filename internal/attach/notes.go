package attach

import (
	"sync"

	"github.com/fabricd/fabricd/internal/wait"
)

// Notes are channels that are notified of changes. The zero Notes has none. Its methods may be
// called from any goroutine and do not block.
type Notes struct {
	mu sync.Mutex // guards to; innermost
	to map[*chan<- struct{}]chan<- struct{}
}

// Add has Send send to ch until stop is called.
func (n *Notes) Add(ch chan<- struct{}) (stop func()) {
	key := &ch
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.to == nil {
		n.to = make(map[*chan<- struct{}]chan<- struct{})
	}
	n.to[key] = ch
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.to, key)
	}
}

// Send sends to each channel that has room: one notification is pending in the others.
func (n *Notes) Send() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, ch := range n.to {
		wait.Notify(ch)
	}
}
