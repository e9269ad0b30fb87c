package server

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/internal/status"
)

// epochSlots is how many endpoints of a session can have an epoch at a time: the default limit of a
// session. Further ones go through the node.
const epochSlots = 4096

// epochs is memory through which the node invalidates the windows that an application knows: one
// word for each endpoint that has asked for a window. The node increments it, the application
// compares it. The node owns the memory; the application's descriptor is read-only.
type epochs struct {
	account *account // charged for the memory's descriptor

	mu     sync.Mutex // guards the fields below
	region *shm.Region
	free   []uint32 // released slots
	next   uint32   // the first slot that was never used
	closed bool
}

// open creates the memory at the first use.
func (p *epochs) open() error {
	switch {
	case p.closed:
		return status.Reset
	case p.region != nil:
		return nil
	}
	if err := p.account.charge(heldFiles, 1); err != nil {
		return err
	}
	region, err := shm.Create("fabric-epochs", 8*epochSlots)
	if err != nil {
		p.account.refund(heldFiles, 1)
		return err
	}
	p.region = region
	return nil
}

// take returns a slot for an endpoint.
func (p *epochs) take() (slot uint32, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.open(); err != nil {
		return 0, err
	}
	if n := len(p.free); n > 0 {
		slot = p.free[n-1]
		p.free = p.free[:n-1]
		return slot, nil
	}
	if p.next == epochSlots {
		return 0, fmt.Errorf("%d endpoints use windows directly: %w", epochSlots, status.NoMemory)
	}
	p.next++
	return p.next - 1, nil
}

// give releases a slot. Its epoch continues, so that windows of its last endpoint are not valid for
// the next one.
func (p *epochs) give(slot uint32) {
	p.bump(slot)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = append(p.free, slot)
}

// bump invalidates all windows known under the slot's epoch.
func (p *epochs) bump(slot uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.word(slot).Add(1)
	}
}

// epoch returns the slot's epoch.
func (p *epochs) epoch(slot uint32) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return 0
	}
	return p.word(slot).Load()
}

// word returns the word of a slot in use. The caller holds mu, and the memory exists.
func (p *epochs) word(slot uint32) *atomic.Uint64 { return p.region.Word(8 * int64(slot)) }

// descriptor returns the memory's size and a descriptor for the application.
func (p *epochs) descriptor() (size int64, f *os.File, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.open(); err != nil {
		return 0, nil, err
	}
	f, err = shm.ReadOnly(p.region.File())
	return p.region.Len(), f, err
}

// close frees the memory. An endpoint that ends later may still call bump.
func (p *epochs) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.region != nil {
		p.region.Release()
		p.region = nil
		p.account.refund(heldFiles, 1)
	}
}
