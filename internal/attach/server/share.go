package server

import (
	"context"
	"fmt"
	"os"
	"sync"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/rma"
)

// A memory is memory that an application has passed. It decides which other applications get its
// descriptor, which covers all of it and cannot be revoked: see [memory.grant].
type memory struct {
	*shm.Region
	owner *session
	id    uint32

	mu       sync.Mutex // guards the fields below
	windows  int        // open on it
	writable int        // those of them that the peer may write
	retired  bool       // its number was released; no further window may be opened on it
	granted  grant
}

// grant is the access that other applications have got to a memory. It is never reduced: a process
// that has had a descriptor keeps its access.
type grant uint8

const (
	notGranted grant = iota
	toRead           // sealed: only the owner and the node write to it
	toWrite
)

// Reasons to refuse direct access. The first two hold for all of the owner's windows.
var (
	errAlien     = fmt.Errorf("the peer's memory belongs to its process alone: %w", status.NotSupp)
	errOtherUser = fmt.Errorf("the peer is of another user, and does not share its memory with others: %w", status.NotSupp)
	errPart      = fmt.Errorf("the window is a part of its memory, and the rest is not the peer's: %w", status.NotSupp)
	errWriteOnly = fmt.Errorf("the window may not be read: %w", status.NotSupp)
	errMayWrite  = fmt.Errorf("the window may not be written, but another one of its memory may: %w", status.NotSupp)
	errSealed    = fmt.Errorf("the window's memory was given to others for reading only: %w", status.NotSupp)
)

// sharer returns the memory behind a window if its owner shares it with s.
func (s *session) sharer(r attach.Region) (*memory, error) {
	m, ok := r.(*memory)
	switch {
	case !ok || m.File() == nil:
		return nil, errAlien
	case m.owner.uid != s.uid && !m.owner.shares.Load():
		return nil, errOtherUser
	}
	return m, nil
}

// grant returns to s a descriptor to map the window [off, off+n), which permits prot, with the
// access ask, a subset of prot. The descriptor covers exactly the access that the window permits:
// the window is all of its memory, it may be read, and if it may not be written, no process of this
// user can write it. The owner is notified before another process has the descriptor.
func (m *memory) grant(s *session, off, n int64, prot, ask rma.Prot) (*os.File, error) {
	switch {
	case off != 0 || n != m.Len():
		return nil, errPart
	case prot&rma.ProtRead == 0:
		return nil, errWriteOnly
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.windows == 0 {
		return nil, status.Reset // the owner is about to close it, and may reuse the memory
	}
	if err := m.admit(s, prot&rma.ProtWrite != 0); err != nil {
		return nil, err
	}
	if ask&rma.ProtWrite != 0 {
		return shm.Duplicate(m.File())
	}
	return shm.ReadOnly(m.File())
}

// admit records that s gets the memory. The caller holds mu.
func (m *memory) admit(s *session, write bool) error {
	want, seal := toWrite, shm.SealSeals
	if !write {
		want, seal = toRead, shm.SealWriting
	}
	switch {
	case s == m.owner: // the owner has it
		return nil
	case m.granted == want:
		return nil
	case write && m.granted == toRead:
		return errSealed
	case !write && (m.granted == toWrite || m.writable > 0):
		return errMayWrite
	}
	if err := seal(m.File()); err != nil {
		return err
	}
	if err := m.notifyOwner(); err != nil {
		return err
	}
	m.granted = want
	return nil
}

// open counts a window that is about to be registered.
func (m *memory) open(prot rma.Prot) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.retired {
		return fmt.Errorf("memory %d: %w", m.id, status.Fault)
	}
	m.windows++
	if prot&rma.ProtWrite != 0 {
		m.writable++
	}
	return nil
}

// close counts a window that is gone. After the last one the owner is notified if other
// applications have the memory: it may replace its pages.
func (m *memory) close(prot rma.Prot) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.windows--
	if prot&rma.ProtWrite != 0 {
		m.writable--
	}
	if m.windows == 0 && m.granted != notGranted {
		_ = m.notifyOwner() // an error is the end of the owner's session
	}
}

// notifyOwner notifies the owner that other applications have the memory, and of the number of windows
// left. The caller holds mu, which orders the notifications.
func (m *memory) notifyOwner() error {
	l := proto.Packet{Header: proto.Header{Op: proto.OpShared}, Body: &proto.SharedBody{Memory: m.id, Windows: uint32(m.windows)}}
	return m.owner.out.Notify(l, maxEvents)
}

// doShare records whether applications of other users may access the session's windows directly.
func doShare(_ context.Context, s *session, r *request) (reply, error) {
	on, err := r.on()
	if err == nil {
		s.shares.Store(on)
	}
	return reply{}, err
}

// doRetire is MEM_DROP of memory without a window.
func doRetire(ctx context.Context, s *session, r *request) (reply, error) {
	id := r.in.(*proto.MemoryBody).Memory
	s.mu.Lock()
	m := s.memory.all[id]
	s.mu.Unlock()
	if m != nil {
		m.mu.Lock()
		if m.windows > 0 {
			n := m.windows
			m.mu.Unlock()
			return reply{}, fmt.Errorf("memory %d has %d windows: %w", id, n, status.InUse)
		}
		m.retired = true
		m.mu.Unlock()
	}
	return doMemDrop(ctx, s, r)
}
