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

// Another application that has got a window's memory keeps it for as long as it likes.
// So when the last window of such memory is gone, the memory moves to fresh pages,
// which nobody else has: in the call that has ended the window, because the program is
// to know when.

// An exposure counts the memory of a session that other applications have.
type exposure struct {
	count atomic.Int64
	turn  sync.Mutex // held by the call that moves memory; others wait for it
}

// others is what the node has told of the applications that have a memory.
type others struct {
	mu   sync.Mutex // guards the fields below
	some bool       // there are such applications
	free bool       // and no window any more
}

// shareWindows lets applications of other users use the session's windows directly.
func (c *client) shareWindows(ctx context.Context) error {
	_, err := c.ask(ctx, question{op: proto.OpShare, body: &proto.WatchBody{On: 1}}, nil)
	return err
}

// told takes what the node tells of a memory. What was given up is not looked for.
func (t *memoryTable) told(s proto.SharedBody) {
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

// withdraw moves the memory of the session that no window is on any more and that
// others have. With over, no window of the session is left at all.
func (t *memoryTable) withdraw(over bool) error {
	if t.count.Load() == 0 {
		return nil
	}
	t.turn.Lock()
	defer t.turn.Unlock()
	var all error
	for _, m := range t.exposed(over) {
		all = errors.Join(all, m.move(over))
		m.region.Release()
	}
	return all
}

// exposed returns what withdraw is about, each with a reference.
func (t *memoryTable) exposed(over bool) (list []*clientMemory) {
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

// move gives the memory fresh pages, unless it has got a window again. The node forgets
// the old ones. If there is no memory for that, the old pages stay, and the next call
// tries again.
func (m *clientMemory) move(over bool) error {
	m.moving.Lock()
	defer m.moving.Unlock()
	if id := m.id.Load(); id != 0 && !over {
		m.others.set(true, false) // what the node tells from here on is news
		_, err := m.t.c.ask(context.Background(), question{op: proto.OpRetire, body: &proto.MemoryBody{Memory: id}}, nil)
		switch status.Of(err) {
		case status.InUse:
			return nil // the node tells when the new window is gone
		case status.OK, status.BadFD, status.NoDevice, status.Reset: // or the session ends, and all its windows
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
	_, _ = min(m.t.c.tuning.huge, shm.HugeTry).Apply(m.region) // small pages will do
	m.others.set(false, false)
	m.t.count.Add(-1)
	return nil
}

func (o *others) set(some, free bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.some, o.free = some, free
}

// kept returns why no window may be opened on the memory: it is not moved yet.
func (m *clientMemory) kept() error {
	m.others.mu.Lock()
	defer m.others.mu.Unlock()
	if m.others.some && m.id.Load() == 0 {
		return fmt.Errorf("another application keeps pages of this memory, and there is no room for others: %w", status.NoMemory)
	}
	return nil
}
