package client

import (
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/status"
)

// fakeDirect is the fake node's state for direct access, off unless a test enables it: then
// transfers of the other tests go through the node.
type fakeDirect struct {
	on           bool
	idle         bool // no operation has ever reached the node
	calls        int  // transfers, atomics and fences that reached the node
	invalidation map[*fakeEndpoint]func()
}

// The node's mu is held over
// fn, which is so short that it must not matter.
func (e *fakeEndpoint) OnInvalidation(fn func()) (stop func(), err error) {
	e.n.mu.Lock()
	defer e.n.mu.Unlock()
	if err := e.rma(); err != nil {
		return nil, err
	}
	d := &e.n.direct
	if d.invalidation == nil {
		d.invalidation = make(map[*fakeEndpoint]func())
	}
	d.invalidation[e] = fn
	return func() {
		e.n.mu.Lock()
		defer e.n.mu.Unlock()
		delete(d.invalidation, e)
	}, nil
}

func (e *fakeEndpoint) FoundWindow(error) {}

// invalidated notifies the users of the windows of e's peer.
func (e *fakeEndpoint) invalidated() {
	if e == nil {
		return
	}
	if fn := e.n.direct.invalidation[e]; fn != nil {
		fn()
	}
}

func (e *fakeEndpoint) PeerWindow(roff int64) (attach.PeerWindow, error) {
	e.n.mu.Lock()
	defer e.n.mu.Unlock()
	if !e.n.direct.on {
		return attach.PeerWindow{}, status.NotSupp
	}
	if err := e.rma(); err != nil {
		return attach.PeerWindow{}, err
	}
	for _, w := range e.peer.wins {
		if roff >= w.off && roff-w.off < w.n {
			w.r.Retain()
			return attach.PeerWindow{Offset: w.off, Length: w.n, Prot: w.prot, Region: w.r, MemOff: w.memOff}, nil
		}
	}
	return attach.PeerWindow{}, status.NoAddress
}

// allowDirect turns direct use on.
func (n *fakeNode) allowDirect() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.direct.on = true
}
