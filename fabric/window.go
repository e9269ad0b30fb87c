package fabric

import (
	"sync/atomic"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/rma"
)

// Memory is zeroed, page-aligned memory that [Endpoint.Register] accepts on a Node
// of any kind: attached, embedded or of a test.
type Memory struct {
	mem    attach.Memory
	closed atomic.Bool
}

// Alloc returns size bytes of [Memory], rounded up to whole pages. They stay in use
// until Close. It fails
// with EINVAL if size is less than 1 and with ENOMEM when memory or a quota is
// exhausted, or huge pages that are required ($FABRIC_HUGE_PAGES, see [Attach]).
func (n *Node) Alloc(size int) (*Memory, error) {
	mem, err := n.session.Alloc(size)
	if err != nil {
		return nil, n.fail("alloc", err)
	}
	return &Memory{mem: mem}, nil
}

// Bytes returns the memory. It is valid until Close.
func (m *Memory) Bytes() []byte { return m.mem.Bytes() }

// SmallPages returns the reason why the memory does not lie in huge pages although
// the application has asked for that with FABRIC_HUGE_PAGES=try; "" if it does, if
// it is too small to fill one, or if the application has not asked for them.
func (m *Memory) SmallPages() string {
	return m.mem.SmallPages()
}

// Close gives the memory up. A window that uses it keeps its pages until it is
// gone; this process must not touch the bytes any more. A second Close does
// nothing.
func (m *Memory) Close() error {
	if m.closed.Swap(true) {
		return nil
	}
	return m.mem.Close()
}

// Register opens [offset, offset+len(p)) of the endpoint's registered address
// space as a window onto p, and returns where the window begins
// (scif_register). The peer has the window when Register returns; prot is
// the set of accesses allowed, 0 being none. p belongs to its owner as before, and its
// bytes may be read and written by both sides at any time. A window that is all of
// a [Memory] is the fast one for a peer on this node; the package's
// documentation describes the memory that such a peer sees.
//
// With [MapFixed], offset is taken as it is. Without it, offset is a hint: it
// is used if it is not 0, page-aligned and free; otherwise the lowest free
// range from [FirstOffset] is, so that both ends of a fresh connection that
// register the same sizes get the same offsets.
//
// p is whole pages of one [Memory] of the endpoint's own Node, of any kind. They stay
// in use until the window is gone: after Unregister or Close, and after the
// last transfer, signal and mapping that uses it.
//
// Errors: EINVAL for unknown flags or protection, memory or a fixed offset that
// is not page-aligned, an empty p, or a range that overflows; ENOTCONN or
// ECONNRESET; EADDRINUSE if a fixed range is in use; EFAULT if p is not memory
// of [Node.Alloc]; ENOMEM over quota, or if p was handed to another
// application and there is no memory to move it.
func (e *Endpoint) Register(p []byte, offset int64, prot Prot, flags MapFlags) (int64, error) {
	off, err := e.ep.Register(p, offset, rma.Prot(prot), rma.MapFlags(flags))
	if err != nil {
		return -1, e.fail("register", err)
	}
	return off, nil
}

// Unregister removes every window inside [offset, offset+n), which may be none
// (scif_unregister). New transfers and mappings no longer find them; those that
// run complete, which on one node may be after Unregister has returned: there the
// peer copies by itself. On an error other than ENOMEM nothing is removed.
//
// With the last window on a [Memory] that an application on this node has had, the
// Memory moves to pages of this process alone: stores of this process into it
// during the call may be lost, and so may the bytes of such transfers.
//
// Errors: EINVAL if the range is empty, not page-aligned, or cuts a window;
// ENOTCONN or ECONNRESET; ENOMEM if the windows are gone, but there was no memory to
// move to.
func (e *Endpoint) Unregister(offset, n int64) error {
	return e.fail("unregister", e.ep.Unregister(offset, n))
}

// A Mapping is memory of the peer's windows, mapped into this process. It
// stays valid until Close, also after the end of the connection, the windows and
// the peer. When the peer has closed its end or unregistered the window, it may be
// memory that the peer no longer uses, with its contents of that moment.
type Mapping struct {
	m      attach.Mapping
	prot   Prot
	closed atomic.Bool
}

// Bytes returns the mapped memory: the peer's own pages, coherent with its
// view of them while the window is there. With [ProtRead] alone a store into it faults.
func (m *Mapping) Bytes() []byte { return m.m.Bytes() }

// Close removes the mapping (scif_munmap). The bytes must not be used
// afterwards. A second Close does nothing.
func (m *Mapping) Close() error {
	if m.closed.Swap(true) {
		return nil
	}
	return m.m.Close()
}

// Mmap maps [roffset, roffset+n) of the peer's registered address space
// (scif_mmap). Both ends must be on one node; the range lies in one window, which is
// all of a [Memory] that the peer shares with this user, and may be read. The
// kernel keeps every application from accesses that the window does not allow.
//
// Errors: EINVAL if the range is empty or not page-aligned; ENOTCONN or
// ECONNRESET; ENXIO if it is not registered; EACCES if prot asks for more than
// the window gives; EOPNOTSUPP across nodes, and where the window's memory is not
// handed out: a [Mirror] is the substitute there.
func (e *Endpoint) Mmap(roffset, n int64, prot Prot) (*Mapping, error) {
	m, err := e.ep.Mmap(roffset, n, rma.Prot(prot))
	if err != nil {
		return nil, e.fail("mmap", err)
	}
	return &Mapping{m: m, prot: prot}, nil
}
