package engine

import (
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/core"
	"github.com/fabricd/fabricd/internal/status"
)

// An invalidation notifies an application that uses the peer's windows directly when
// its knowledge of them is invalid.
type invalidation struct {
	once sync.Once // guards end

	mu   sync.Mutex // guards the fields below; not held over fn
	fn   func()     // nil: no subscriber
	over bool       // the connection has ended, or is about to
	used bool       // a window was handed out
	why  string     // why windows are not handed out; "" while they are
}

// notify notifies of windows that the peer has withdrawn.
func (w *invalidation) notify() {
	w.mu.Lock()
	fn := w.fn
	w.mu.Unlock()
	if fn != nil {
		fn()
	}
}

// end notifies of the end of the connection, once, and returns after that.
// Afterwards no window is found; earlier users of one have been notified.
func (w *invalidation) end() {
	w.once.Do(func() {
		w.mu.Lock()
		w.over = true
		w.mu.Unlock()
		w.notify()
	})
}

func (w *invalidation) ended() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.over
}

// found records the result of a request for a window.
func (w *invalidation) found(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case err == nil:
		w.used, w.why = true, ""
	case status.Of(err) == status.NotSupp:
		w.why = reason(err)
	}
}

// rmaPath returns how this end reaches the peer's windows: "direct", by the RMA "path" that
// it has, or through the "node", and why the node.
func (c *conn) rmaPath(hasPath bool) (path, why string) {
	w := &c.invalidation
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.why != "":
		return "node", w.why
	case w.used:
		return "direct", ""
	case c.otherEnd.Load() != nil:
		return "node", "no window has been asked for"
	case hasPath:
		return "path", ""
	}
	return "node", reason(first(c.rma.out.whyNot(), errOtherNode))
}

// reason returns why windows are not handed out, without the error's code: operations on them work.
func reason(err error) string {
	return strings.TrimSuffix(err.Error(), ": "+status.NotSupp.Error())
}

var errOtherNode = fmt.Errorf("the peer is on another node: %w", status.NotSupp)

func (e *endpoint) OnInvalidation(fn func()) (stop func(), err error) {
	c, err := e.connection(core.CallMemory)
	if err != nil {
		return nil, err
	}
	w := &c.invalidation
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fn = fn
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.fn = nil
	}, nil
}

func (e *endpoint) PeerWindow(roff int64) (attach.PeerWindow, error) {
	c, err := e.connection(core.CallMemory)
	if err != nil {
		return attach.PeerWindow{}, err
	}
	w, err := c.peerWindow(roff)
	if status.Of(err) == status.NotSupp {
		c.invalidation.found(err)
	}
	return w, err
}

func (e *endpoint) FoundWindow(why error) {
	if c, err := e.connection(core.CallMemory); err == nil {
		c.invalidation.found(why)
	}
}

func (c *conn) peerWindow(roff int64) (attach.PeerWindow, error) {
	owner := c.otherEnd.Load()
	if owner == nil {
		return attach.PeerWindow{}, errOtherNode
	}
	owner.mu.Lock()
	defer owner.mu.Unlock()
	// The order counts: an application that asked before the end, and gets a window all
	// the same, is notified of the end afterwards.
	if c.invalidation.ended() {
		return attach.PeerWindow{}, status.Reset
	}
	w, err := owner.core.Holding(roff)
	if err != nil {
		return attach.PeerWindow{}, err
	}
	region := w.Mem.region
	if f, ok := region.(filed); !ok || f.File() == nil {
		return attach.PeerWindow{}, fmt.Errorf("the peer's memory belongs to its process alone: %w", status.NotSupp)
	}
	region.Retain()
	return attach.PeerWindow{Offset: w.Offset, Length: w.Length, Prot: w.Prot, Region: region, MemOff: w.Mem.off}, nil
}

// filed is a region with memory that can be handed to another process.
type filed interface{ File() *os.File }
