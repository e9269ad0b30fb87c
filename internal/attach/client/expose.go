package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/internal/status"
)

// Another application that has mapped a window's memory may keep it mapped indefinitely. So when
// the last window on such memory is gone, the memory moves to fresh pages that no other process has
// mapped. The call that ended the window does it, so that the application knows when.

// An exposure counts the memories of a session that other applications have mapped.
type exposure struct {
	count  atomic.Int64
	moving sync.Mutex // held by the call that moves memory
}

// others is the node's report of the applications that have a memory mapped.
type others struct {
	mu   sync.Mutex // guards the fields below
	some bool       // other applications have it mapped
	free bool       // and no window is on it any more
}

// shareWindows lets applications of other users use the session's windows directly.
func (c *session) shareWindows(ctx context.Context) error {
	_, err := c.ask(ctx, request{op: proto.OpShare, body: &proto.WatchBody{On: 1}}, nil)
	return err
}

// shared handles the node's report about a memory. A report about released memory is ignored.
func (t *memoryTable) shared(s proto.SharedBody) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, m := range t.list {
		if m.id.Load() != s.Memory || s.Memory == 0 {
			continue
		}
		o := &m.others
		o.mu.Lock()
		if !o.some {
			t.count.Add(1)
		}
		o.some, o.free = true, s.Windows == 0
		o.mu.Unlock()
		return
	}
}

// moveExposed moves the session's memory that has no window any more and that other applications have
// mapped. over: no window of the session is left at all.
func (t *memoryTable) moveExposed(over bool) error {
	if t.count.Load() == 0 {
		return nil
	}
	t.moving.Lock()
	defer t.moving.Unlock()
	var all error
	for _, m := range t.exposed(over) {
		all = errors.Join(all, m.move(over))
		m.region.Release()
	}
	return all
}

// exposed returns the memories that moveExposed has to move, each with a reference.
func (t *memoryTable) exposed(over bool) (list []*sessionMemory) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, m := range t.list {
		m.others.mu.Lock()
		if m.others.some && (m.others.free || over) {
			m.region.Retain()
			list = append(list, m)
		}
		m.others.mu.Unlock()
	}
	return list
}

// move gives the memory fresh pages, unless it has a window again. The node forgets the old pages.
// Without room for fresh pages the old ones stay, and the next call tries again.
func (m *sessionMemory) move(over bool) error {
	m.moving.Lock()
	defer m.moving.Unlock()
	if id := m.id.Load(); id != 0 && !over {
		m.others.set(true, false) // reports from here on are new
		_, err := m.t.c.ask(context.Background(), request{op: proto.OpRetire, body: &proto.MemoryBody{Memory: id}}, nil)
		switch status.Of(err) {
		case status.InUse:
			return nil // the node reports the end of the new window
		case status.OK, status.BadFD, status.NoDevice, status.Reset: // or the session ends, and with it all windows
		default:
			m.others.set(true, true)
			return err
		}
	}
	m.others.set(true, true)
	m.id.Store(0)
	if err := m.region.Renew("fabric-window"); err != nil {
		return fmt.Errorf("another application keeps the window's pages: %w", err)
	}
	_, _ = min(m.t.c.tuning.huge, shm.HugeTry).Apply(m.region) // small pages suffice
	m.others.set(false, false)
	m.t.count.Add(-1)
	return nil
}

func (o *others) set(some, free bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.some, o.free = some, free
}

// kept returns why no window may be opened on the memory: it has not been moved yet.
func (m *sessionMemory) kept() error {
	m.others.mu.Lock()
	defer m.others.mu.Unlock()
	if m.others.some && m.id.Load() == 0 {
		return fmt.Errorf("another application keeps pages of this memory, and there is no room for others: %w", status.NoMemory)
	}
	return nil
}
