package client

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/internal/status"
)

// stageSlots is the number of pieces of MaxStage bytes in a session's bounce memory: 4 MiB,
// allocated at the first use.
const stageSlots = 4

// memoryTable is the memory that a session has allocated, found by address.
type memoryTable struct {
	c *session

	slots chan int64 // offsets of free pieces of the bounce memory

	mu   sync.Mutex       // guards list
	list []*sessionMemory // by address

	exposure // memory that other applications have mapped

	bounceMu sync.Mutex // guards the fields below; held while the memory is made
	bounce   *sessionMemory
	closed   bool
}

func (t *memoryTable) init(c *session) {
	t.c = c
	t.slots = make(chan int64, stageSlots)
	for i := range int64(stageSlots) {
		t.slots <- i * proto.MaxStage
	}
}

// A sessionMemory is one memfd of the session, also the bounce memory.
type sessionMemory struct {
	t      *memoryTable
	region *shm.Region
	base   uintptr
	small  string // reason why it is not in huge pages, if it should be

	// moving is held for reading during requests that use the memory, and for writing while the
	// memory moves to fresh pages.
	moving sync.RWMutex
	others others // applications that have it mapped

	mu     sync.Mutex    // held while the memory is passed to the node
	id     atomic.Uint32 // the node's number of it; 0 before it was passed
	closed bool          // guarded by mu
}

// Alloc returns memory in a sealed memfd. Its pages are allocated, and charged to this process.
func (c *session) Alloc(n int) (attach.Memory, error) {
	c.mu.Lock()
	closed, lost := c.closed, c.lost
	c.mu.Unlock()
	if closed {
		return nil, status.BadFD
	}
	if lost {
		return nil, fmt.Errorf("the node is gone: %w", status.NoDevice)
	}
	return c.memory.create("window", int64(n), c.tuning.huge)
}

func (t *memoryTable) create(name string, n int64, huge shm.HugePages) (*sessionMemory, error) {
	region, err := shm.Create("fabric-"+name, n)
	if err != nil {
		return nil, err
	}
	small, err := huge.Apply(region)
	if err != nil {
		region.Release()
		return nil, err
	}
	m := &sessionMemory{t: t, region: region, base: addressOf(region.Bytes()), small: small}
	t.mu.Lock()
	defer t.mu.Unlock()
	i, _ := slices.BinarySearchFunc(t.list, m.base, compareBase)
	t.list = slices.Insert(t.list, i, m)
	return m, nil
}

func compareBase(m *sessionMemory, at uintptr) int { return cmp.Compare(m.base, at) }

// find returns the memory that contains p, with a reference for the caller, and p's offset in it.
func (t *memoryTable) find(p []byte) (m *sessionMemory, off int64, ok bool) {
	at := addressOf(p)
	t.mu.Lock()
	defer t.mu.Unlock()
	i, exact := slices.BinarySearchFunc(t.list, at, compareBase)
	if !exact {
		i--
	}
	if i < 0 {
		return nil, 0, false
	}
	m = t.list[i]
	size := uintptr(m.region.Len())
	if at-m.base >= size || uintptr(len(p)) > size-(at-m.base) {
		return nil, 0, false
	}
	m.region.Retain()
	return m, int64(at - m.base), true
}

func (t *memoryTable) remove(m *sessionMemory) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if i := slices.Index(t.list, m); i >= 0 {
		t.list = slices.Delete(t.list, i, i+1)
	}
}

// bouncing returns the bounce memory, with a reference for the caller.
func (t *memoryTable) bouncing() (*sessionMemory, error) {
	t.bounceMu.Lock()
	defer t.bounceMu.Unlock()
	if t.closed {
		return nil, status.BadFD
	}
	if t.bounce == nil {
		m, err := t.create("bounce", stageSlots*proto.MaxStage, min(t.c.tuning.huge, shm.HugeTry)) // the application did not request this memory
		if err != nil {
			return nil, err
		}
		t.bounce = m
	}
	t.bounce.region.Retain()
	return t.bounce, nil
}

// close frees the bounce memory, the only memory that the session itself owns.
func (t *memoryTable) close() {
	t.bounceMu.Lock()
	m := t.bounce
	t.bounce, t.closed = nil, true
	t.bounceMu.Unlock()
	if m != nil {
		m.Close()
	}
}

// name returns the node's number of the memory, which is passed to the node at the first call. The
// caller holds moving.
func (m *sessionMemory) name() (uint32, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return 0, fmt.Errorf("memory is closed: %w", status.Fault)
	}
	if id := m.id.Load(); id != 0 {
		return id, nil
	}
	var out proto.MemoryBody
	q := request{op: proto.OpMemAdd, body: &proto.MemAdd{Size: m.region.Len()}, file: m.region.File()}
	if _, err := m.t.c.ask(context.Background(), q, &out); err != nil {
		return 0, err
	}
	m.id.Store(out.Memory)
	return out.Memory, nil
}

func (m *sessionMemory) Bytes() []byte { return m.region.Bytes() }

func (m *sessionMemory) SmallPages() string { return m.small }

// Close unmaps the memory here. Its windows keep the pages, which the node has mapped itself.
func (m *sessionMemory) Close() error {
	m.mu.Lock()
	id, closed := m.id.Load(), m.closed
	m.closed = true
	m.mu.Unlock()
	if closed {
		return status.BadFD
	}
	m.t.remove(m)
	if id != 0 {
		m.t.c.ask(context.Background(), request{op: proto.OpMemDrop, body: &proto.MemoryBody{Memory: id}}, nil) // the session's end drops it too
	}
	m.region.Release()
	return nil
}

// stage calls move for each piece of p with a place in shared memory. If in, the place holds the
// piece's bytes before move; else the bytes are copied from the place to p after it. Memory of the
// session is its own place.
func (t *memoryTable) stage(p []byte, in bool, move func(memory uint32, memOff, done, n int64) error) error {
	if m, off, ok := t.find(p); ok {
		defer m.region.Release()
		m.moving.RLock()
		defer m.moving.RUnlock()
		id, err := m.name()
		if err != nil {
			return err
		}
		return pieces(int64(len(p)), func(done, n int64) error { return move(id, off+done, done, n) })
	}
	m, err := t.bouncing()
	if err != nil {
		return err
	}
	defer m.region.Release()
	id, err := m.name() // never exposed to other applications, so it never moves
	if err != nil {
		return err
	}
	return pieces(int64(len(p)), func(done, n int64) error {
		slot := <-t.slots // another call frees a slot, at the latest when the session ends
		defer func() { t.slots <- slot }()
		place := m.region.Bytes()[slot : slot+n]
		if in {
			copy(place, p[done:])
			return move(id, slot, done, n)
		}
		if err := move(id, slot, done, n); err != nil {
			return err
		}
		copy(p[done:done+n], place)
		return nil
	})
}

// pieces calls do for consecutive pieces of n bytes, until an error.
func pieces(n int64, do func(done, n int64) error) error {
	for done := int64(0); done < n; done += proto.MaxStage {
		if err := do(done, min(n-done, proto.MaxStage)); err != nil {
			return err
		}
	}
	return nil
}
