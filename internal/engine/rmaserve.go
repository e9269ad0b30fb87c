package engine

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/fabricd/fabricd/internal/core"
	"github.com/fabricd/fabricd/internal/path"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/wire"
	"github.com/fabricd/fabricd/rma"
)

// A rmaServer applies the operations of one RMA path, in their order. It does not trust its
// initiator: the access of an operation is checked here, and again for each piece of a long one.
type rmaServer struct {
	c *conn
	e *path.RMAServed

	spans   []span                // of the piece being copied; reused
	windows []*rma.Window[memory] // of the last write or read, when it came
	off, n  int64                 // its range
	last    status.Code           // of the request before
	faulty  bool                  // of this one: its windows allow it, but memory could not be used
	bad     uint64                // number of the first operation whose memory could not be used
	badCode status.Code           // why
	refused [64]refusal           // the last ones, in a ring
	next    int                   // in refused
	dropped [2]refusal            // the first and the last one that have left the ring; 0: none
}

// A refusal is that of one request.
type refusal struct {
	number uint64
	code   status.Code
}

// serveRMA serves the peer's RMA path, of the attempt ours, until it ends. gone is closed behind it.
func (c *conn) serveRMA(s *net.TCPConn, ours *wire.Path, o path.RMAOptions, gone <-chan struct{}) {
	p := &c.rma.in
	var err error
	if o.Key, err = rmaKey(); err != nil {
		c.refuseRMA(p, ours, err)
		return
	}
	e, err := path.NewRMAServed(s, o)
	if err != nil {
		c.refuseRMA(p, ours, fmt.Errorf("%w: %w", err, status.NotSupp))
		return
	}
	server := rmaServer{c: c, e: e}
	err = server.run()
	if errors.Is(err, path.ErrRMA) {
		c.fail("the peer's application broke the protocol of its RMA path")
		return
	}
	late := time.NewTimer(rmaGrace)
	defer late.Stop()
	select {
	case <-gone: // with its connection
	case <-c.link.end.down:
	case <-late.C:
		c.fail("the RMA path has ended: " + err.Error())
	}
}

// rmaGrace is how long after its RMA path a connection may end in order. Then the node
// ends it with an error.
const rmaGrace = time.Second

func (s *rmaServer) run() error {
	for {
		r, err := s.e.Next()
		if err == nil {
			err = s.c.link.awaitFresh() // as in conn.apply
		}
		if err != nil {
			return err
		}
		if err := s.do(&r); err != nil {
			return err
		}
	}
}

// do applies an operation and answers it. An error ends the path.
func (s *rmaServer) do(r *path.RMARequest) (err error) {
	var code status.Code
	var old uint64
	answered := false
	s.faulty = false
	switch r.Kind {
	case path.RMANop:
		code = s.asked(r)
	case path.RMAWrite:
		code, err = s.write(r)
	case path.RMARead:
		code, err = s.read(r)
		answered = code == status.OK
	case path.RMAAtomic:
		old, code = s.atomic(r)
	case path.RMASignal:
		code = s.signal(r)
	}
	if err != nil {
		return err
	}
	if r.Kind != path.RMANop {
		s.note(r.Number, code)
		s.c.link.n.counters.overPath(r)
	}
	if !r.WantsAnswer() || answered {
		return nil
	}
	return s.e.Answer(path.RMAAnswer{Kind: path.RMADone, Flags: path.RMALast, Code: uint16(code), Number: r.Number,
		Value: old, Bad: s.bad, BadCode: uint16(s.badCode)}, nil)
}

// note records the result of a request. An honest initiator's is refused when the peer has
// withdrawn the window meanwhile; then its call asks with a nop. Memory that cannot be used, and
// closed windows, are no fault of that call: fences and signals report them.
func (s *rmaServer) note(number uint64, code status.Code) {
	s.last = code
	if code == status.OK {
		return
	}
	if old := s.refused[s.next]; old.number > 0 {
		if s.dropped[1] = old; s.dropped[0].number == 0 {
			s.dropped[0] = old
		}
	}
	s.refused[s.next] = refusal{number, code}
	s.next = (s.next + 1) % len(s.refused)
	if !s.faulty && code != status.Reset || s.bad != 0 {
		return
	}
	s.bad, s.badCode = number, code
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.c.core.PeerRefused(code)
}

// asked returns the code of the first of the requests that a nop asks about that was
// refused. Requests between the first and the last one dropped from the ring may have been
// refused: asked fails them, even if they were applied, as if their window had been withdrawn.
func (s *rmaServer) asked(r *path.RMARequest) status.Code {
	about := func(f refusal) bool { return f.number >= r.Offset && f.number-r.Offset < r.Length }
	for _, f := range s.dropped {
		if about(f) {
			return f.code
		}
	}
	if r.Length > 0 && s.dropped[0].number < r.Offset && r.Offset < s.dropped[1].number {
		return status.NoAddress
	}
	var first refusal
	for _, f := range s.refused {
		if about(f) && (first.number == 0 || f.number < first.number) {
			first = f
		}
	}
	return first.code
}

// write takes the bytes behind a write and stores them, if all of them may be.
func (s *rmaServer) write(r *path.RMARequest) (status.Code, error) {
	code := s.check(r, rma.ProtWrite)
	stage := stages.Get().(*[stageLen]byte)
	defer stages.Put(stage)
	off := int64(r.Offset)
	for rest := r.Length; rest > 0; {
		n := piece(rest)
		if err := s.e.Payload(stage[:n]); err != nil {
			return code, err
		}
		rest -= uint64(n)
		if code != status.OK {
			continue
		}
		if err := s.c.link.awaitFresh(); err != nil {
			return code, err
		}
		code = s.store(off, stage[:n], r.Flags&path.RMAOrdered != 0 && rest == 0)
		off += int64(n)
	}
	return code, nil
}

// check returns the code that an operation on all of its range would return now.
func (s *rmaServer) check(r *path.RMARequest, need rma.Prot) status.Code {
	if r.Length > 1<<63-1 {
		return status.Invalid
	}
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	var code status.Code
	s.off, s.n, s.windows = int64(r.Offset), int64(r.Length), s.windows[:0]
	if s.spans, code = s.c.core.PeerBegin(s.spans[:0], s.off, s.n, need); code != status.OK {
		return code
	}
	for _, sp := range s.spans {
		s.windows = append(s.windows, sp.Window)
	}
	return s.c.core.PeerEnd(s.spans, nil)
}

// begin finds the windows of a piece, and holds them until end. The caller holds applying: no
// piece begins behind endRMAPaths and awaitApplied, although it was read before.
func (s *rmaServer) begin(off, n int64, need rma.Prot) status.Code {
	if !s.c.servesRMA() {
		return status.Reset
	}
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	return s.beginLocked(off, n, need)
}

// beginLocked is begin with conn.mu held. Windows that were registered where those of the
// operation have gone are not its own.
func (s *rmaServer) beginLocked(off, n int64, need rma.Prot) (code status.Code) {
	s.spans, code = s.c.core.PeerBegin(s.spans[:0], off, n, need)
	for _, sp := range s.spans {
		if !slices.Contains(s.windows, sp.Window) {
			s.c.core.PeerEnd(s.spans, nil)
			return status.NoAddress
		}
	}
	return code
}

func (s *rmaServer) end(err error) status.Code {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.c.moved.Add(1)
	s.faulty = err != nil
	return s.c.core.PeerEnd(s.spans, err)
}

// store stores a piece of a write.
func (s *rmaServer) store(off int64, p []byte, ordered bool) status.Code {
	s.c.rma.applying.Lock()
	defer s.c.rma.applying.Unlock()
	if code := s.begin(off, int64(len(p)), rma.ProtWrite); code != status.OK {
		return code
	}
	return s.end(storeSpans(s.spans, p, ordered))
}

// load reads a piece of a read's range.
func (s *rmaServer) load(off int64, p []byte) status.Code {
	s.c.rma.applying.Lock()
	defer s.c.rma.applying.Unlock()
	if code := s.begin(off, int64(len(p)), rma.ProtRead); code != status.OK {
		return code
	}
	return s.end(loadSpans(s.spans, p))
}

// read sends the range of a read, in pieces, if all of it may be read. One that fails
// behind the first piece ends with the answer that do sends.
func (s *rmaServer) read(r *path.RMARequest) (status.Code, error) {
	code := s.check(r, rma.ProtRead)
	stage := stages.Get().(*[stageLen]byte)
	defer stages.Put(stage)
	off := int64(r.Offset)
	for rest := r.Length; rest > 0 && code == status.OK; {
		n := int(min(rest, stageLen))
		if err := s.c.link.awaitFresh(); err != nil {
			return code, err
		}
		if code = s.load(off, stage[:n]); code != status.OK {
			break
		}
		off += int64(n)
		rest -= uint64(n)
		a := path.RMAAnswer{Kind: path.RMAData, Number: r.Number, Value: uint64(n), Bad: s.bad, BadCode: uint16(s.badCode)}
		if rest == 0 {
			a.Flags = path.RMALast
		}
		if err := s.e.Answer(a, stage[:n]); err != nil {
			return code, err
		}
		s.c.rma.in.goesOn()
	}
	return code, nil
}

func (s *rmaServer) atomic(r *path.RMARequest) (uint64, status.Code) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	a := rma.Atomic{Op: rma.AtomicOp(r.Op), Width: r.Width, Offset: int64(r.Offset), Operand: r.Length, Compare: r.Compare}
	sp, code := s.c.core.PeerAtomic(a)
	if code != status.OK {
		return 0, code
	}
	old, err := atomicAt(sp, a)
	return old, core.MemoryCode(err)
}

func (s *rmaServer) signal(r *path.RMARequest) status.Code {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if r.Flags&path.RMABehind != 0 {
		if s.last != status.OK {
			return s.last
		}
		if code := s.beginLocked(s.off, s.n, rma.ProtWrite); code != status.OK {
			return code
		}
		s.c.core.PeerEnd(s.spans, nil)
	}
	sp, code := s.c.core.PeerStore(int64(r.Offset))
	if code != status.OK {
		return code
	}
	return core.MemoryCode(store8(sp, r.Length))
}
