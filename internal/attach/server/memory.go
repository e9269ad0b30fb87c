package server

import (
	"context"
	"fmt"
	"os"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/rma"
)

// doMemAdd maps memory that an application passes. It stays charged until its last use, which may
// outlive the session.
func doMemAdd(_ context.Context, s *session, r *request) (reply, error) {
	size := r.in.(*proto.MemAdd).Size
	if size <= 0 || size > shm.MaxSize {
		return reply{}, fmt.Errorf("memory of %d bytes: %w", size, status.Invalid)
	}
	if err := s.account.charge(memories, 1); err != nil {
		return reply{}, err
	}
	region, err := s.mapMemory(r, size)
	if err != nil {
		s.account.refund(memories, 1)
		return reply{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	id := s.memory.next()
	s.memory.all[id] = &memory{Region: region, owner: s, id: id}
	return reply{body: &proto.MemoryBody{Memory: id}}, nil
}

// mapMemory checks and maps the request's descriptor, and owns it.
func (s *session) mapMemory(r *request, size int64) (*shm.Region, error) {
	if err := s.account.chargeBoth(windowBytes, size, heldFiles, 1); err != nil {
		return nil, err
	}
	back := func() {
		s.account.refund(heldFiles, 1)
		s.account.refund(windowBytes, size)
	}
	err := shm.Check(r.file, size, s.account.limit[windowBytes])
	var region *shm.Region
	if err == nil {
		region, err = shm.Map(r.file, 0, size, true)
	}
	if err != nil {
		back()
		return nil, err
	}
	r.file = nil
	region.OnRelease(back)
	return region, nil
}

func doMemDrop(_ context.Context, s *session, r *request) (reply, error) {
	id := r.in.(*proto.MemoryBody).Memory
	s.mu.Lock()
	region, ok := s.memory.take(id)
	s.mu.Unlock()
	if !ok {
		return reply{}, fmt.Errorf("memory %d: %w", id, status.Invalid)
	}
	s.account.refund(memories, 1)
	region.Release()
	return reply{}, nil
}

// use returns the memory id, with a reference for the caller, if it contains [off, off+n).
func (s *session) use(id uint32, off, n int64) (*memory, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	region := s.memory.all[id]
	if region == nil {
		return nil, fmt.Errorf("memory %d: %w", id, status.Fault)
	}
	if off < 0 || n < 0 || off > region.Len() || n > region.Len()-off {
		return nil, fmt.Errorf("[%d, +%d) is not in memory %d of %d bytes: %w", off, n, id, region.Len(), status.Invalid)
	}
	region.Retain()
	return region, nil
}

func doRegister(_ context.Context, s *session, r *request) (reply, error) {
	m := r.in.(*proto.Register)
	region, err := s.use(m.Memory, m.MemOff, m.Len)
	if err != nil {
		return reply{}, err
	}
	defer region.Release()
	if err := s.account.charge(windows, 1); err != nil {
		return reply{}, err
	}
	if err := region.open(m.Prot); err != nil {
		s.account.refund(windows, 1)
		return reply{}, err
	}
	off, err := r.ep.ep.RegisterRegion(region, m.MemOff, m.Len, m.Off, m.Prot, m.Flags)
	if err != nil {
		region.close(m.Prot)
		s.account.refund(windows, 1)
		return reply{}, err
	}
	r.ep.opened(window{proto.Span{Off: off, Len: m.Len}, region, m.Prot})
	return reply{body: &proto.Offset{Off: off}}, nil
}

func doUnregister(_ context.Context, _ *session, r *request) (reply, error) {
	m := *r.in.(*proto.Span)
	err := r.ep.ep.Unregister(m.Off, m.Len)
	if err == nil {
		r.ep.gone(m)
	}
	return reply{}, err
}

// stage returns a buffer for t and the memory to copy from or to, with a reference. done releases
// both.
func (s *session) stage(ctx context.Context, t *proto.VTransfer) (buf []byte, region *memory, done func(), err error) {
	if t.Len <= 0 || t.Len > proto.MaxStage {
		return nil, nil, nil, fmt.Errorf("%d bytes, want 1 to %d: %w", t.Len, proto.MaxStage, status.Invalid)
	}
	free, err := s.acquireStaging(ctx, t.Len)
	if err != nil {
		return nil, nil, nil, err
	}
	region, err = s.use(t.Memory, t.MemOff, t.Len)
	if err != nil {
		free()
		return nil, nil, nil, err
	}
	return make([]byte, t.Len), region, func() { region.Release(); free() }, nil
}

// acquireStaging waits for the session's token for a piece of n bytes, and then for room at the node:
// sessions that wait for a token do not hold up others.
func (s *session) acquireStaging(ctx context.Context, n int64) (free func(), err error) {
	select {
	case s.staging.tokens <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if err := s.srv.staging.acquire(ctx, &s.staging.bytes, n); err != nil {
		<-s.staging.tokens
		return nil, err
	}
	return func() { s.srv.staging.release(&s.staging.bytes, n); <-s.staging.tokens }, nil
}

func doVWriteTo(ctx context.Context, s *session, r *request) (reply, error) {
	t := r.in.(*proto.VTransfer)
	return reply{}, s.copied(ctx, t, func(b []byte) error { return r.ep.ep.VWriteTo(b, t.Remote, t.Flags) })
}

func doVPutSignal(ctx context.Context, s *session, r *request) (reply, error) {
	m := r.in.(*proto.VPutBody)
	return reply{}, s.copied(ctx, &proto.VTransfer{Memory: m.Memory, MemOff: m.MemOff, Len: m.Len}, func(b []byte) error { return r.ep.ep.VPutSignal(b, m.Put) })
}

// copied copies the bytes before it has them written: the application may change them once it has
// the answer. The operation owns the copy.
func (s *session) copied(ctx context.Context, t *proto.VTransfer, write func(b []byte) error) error {
	buf, region, done, err := s.stage(ctx, t)
	if err != nil {
		return err
	}
	defer done()
	if err := region.ReadAt(buf, t.MemOff); err != nil {
		return err
	}
	return write(buf)
}

// doVReadFrom is synchronous regardless of its flags: no goroutine would copy the bytes to the
// application later.
func doVReadFrom(ctx context.Context, s *session, r *request) (reply, error) {
	t := r.in.(*proto.VTransfer)
	buf, region, done, err := s.stage(ctx, t)
	if err != nil {
		return reply{}, err
	}
	defer done()
	flags := t.Flags
	const known = rma.UseCPU | rma.UseCache | rma.Sync | rma.Ordered
	if flags == 0 || flags&known != 0 { // else they are an error, which the node reports
		flags |= rma.Sync
	}
	if err := r.ep.ep.VReadFrom(buf, t.Remote, flags); err != nil {
		return reply{}, err
	}
	return reply{}, s.copyToApp(region, buf, t.MemOff)
}

// copyToApp copies b to the application's memory, unless that is frozen already.
func (s *session) copyToApp(region attach.Region, b []byte, off int64) error {
	s.copies.RLock()
	defer s.copies.RUnlock()
	if s.copies.over {
		return status.Reset
	}
	return region.WriteAt(b, off)
}

// doCheck checks a transfer of several pieces before the first.
func doCheck(_ context.Context, _ *session, r *request) (reply, error) {
	m := r.in.(*proto.CheckBody)
	if m.Need != rma.ProtRead && m.Need != rma.ProtWrite {
		return reply{}, fmt.Errorf("protection %d, want 1 or 2: %w", m.Need, status.Invalid)
	}
	return reply{}, r.ep.ep.CheckTransfer(m.Remote, m.Len, m.Flags, m.Need)
}

// doMmap passes a descriptor of the peer's memory, read-only unless prot asks for writing. The
// session owns the mapping until MUNMAP.
func doMmap(_ context.Context, s *session, r *request) (reply, error) {
	m := r.in.(*proto.MmapBody)
	if err := s.account.charge(mappings, 1); err != nil {
		return reply{}, err
	}
	region, off, err := r.ep.ep.MapRegion(m.Off, m.Len, m.Prot)
	if err != nil {
		s.account.refund(mappings, 1)
		return reply{}, err
	}
	out, err := s.grant(region, m.Prot)
	if err == nil {
		var id uint32
		id, err = s.keep(region)
		out.body = &proto.Mapped{Mapping: id, Off: off}
	}
	if err != nil {
		out.end()
		region.Release()
		s.account.refund(mappings, 1)
		return reply{}, err
	}
	return out, nil
}

// grant returns a reply with a new descriptor for the memory of the window that region refers to.
// It holds no reference to the region while the answer is in flight: the application may have
// mapped and unmapped it before the answer counts as sent, and its munmap must drop the last
// reference.
func (s *session) grant(region attach.WindowRegion, ask rma.Prot) (reply, error) {
	behind, off, n, prot := region.Window()
	m, err := s.sharer(behind)
	if err != nil {
		return reply{}, err
	}
	return s.account.answerWith(nil, func() (*os.File, error) { return m.grant(s, off, n, prot, ask) })
}

// keep assigns a number to a mapping.
func (s *session) keep(region attach.Region) (uint32, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return 0, status.Reset
	}
	id := s.mappings.next()
	s.mappings.all[id] = region
	return id, nil
}

func doMunmap(_ context.Context, s *session, r *request) (reply, error) {
	id := r.in.(*proto.MemoryBody).Memory
	s.mu.Lock()
	region, ok := s.mappings.take(id)
	s.mu.Unlock()
	if !ok {
		return reply{}, fmt.Errorf("mapping %d: %w", id, status.Invalid)
	}
	region.Release()
	s.account.refund(mappings, 1)
	return reply{}, nil
}
