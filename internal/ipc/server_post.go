package ipc

import (
	"context"

	"github.com/fabricd/fabricd/rma"
)

// putBody is PUTSIGNAL.
type putBody struct {
	Local, Len int64
	Put        rma.Put
}

func (m *putBody) fields(c *coder) {
	c.i64(&m.Local)
	c.i64(&m.Len)
	putFields(c, &m.Put)
}

// vputBody is VPUTSIGNAL.
type vputBody struct {
	Memory      uint32
	MemOff, Len int64
	Put         rma.Put
}

func (m *vputBody) fields(c *coder) {
	c.u32(&m.Memory)
	c.reserved(4)
	c.i64(&m.MemOff)
	c.i64(&m.Len)
	putFields(c, &m.Put)
}

func putFields(c *coder, p *rma.Put) {
	c.i64(&p.Offset)
	c.i64(&p.Word)
	c.u64(&p.Value)
	c.i64(&p.More)
}

func doPostAtomic(_ context.Context, _ *serverSession, r *request) (reply, error) {
	return reply{}, r.ep.ep.PostAtomic(rma.Atomic(*r.in.(*atomicBody)))
}

func doPutSignal(_ context.Context, _ *serverSession, r *request) (reply, error) {
	m := r.in.(*putBody)
	return reply{}, r.ep.ep.PutSignal(m.Local, m.Len, m.Put)
}

// doVPutSignal copies the bytes as doVWriteTo does.
func doVPutSignal(ctx context.Context, s *serverSession, r *request) (reply, error) {
	m := r.in.(*vputBody)
	buf, region, done, err := s.staged(ctx, &vtransfer{Memory: m.Memory, MemOff: m.MemOff, Len: m.Len})
	if err != nil {
		return reply{}, err
	}
	defer done()
	if err := region.ReadAt(buf, m.MemOff); err != nil {
		return reply{}, err
	}
	return reply{}, r.ep.ep.VPutSignal(buf, m.Put)
}
