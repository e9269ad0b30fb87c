package fabric

import "github.com/fabricd/fabricd/rma"

// WriteTo copies n bytes from loffset of the endpoint's own windows to roffset
// of the peer's (scif_writeto). Offsets need no alignment; a range may span
// adjacent windows.
//
// Without [Sync] it may return before the bytes have moved: until a fence, the
// source must not change and the destination has no defined contents. An
// endpoint's transfers are applied in the order in which they were begun: one
// that would change the result of a read under way, or that takes its bytes from
// where a read is about to put some, waits for the end of that read before it
// begins. Offsets decide this, not memory: two windows over the same memory are
// two. With [Ordered], a peer that sees the last 64-byte line sees the rest.
//
// Errors: ENOTCONN or ECONNRESET; EINVAL if n is less than 1 or flags has only
// unknown bits; ENXIO if a range is not registered; EACCES if a window's
// protection does not allow the direction: the source needs [ProtRead], the
// destination [ProtWrite].
func (e *Endpoint) WriteTo(loffset, n, roffset int64, flags RMAFlags) error {
	return e.fail("writeto", e.ep.WriteTo(loffset, n, roffset, rma.Flags(flags)))
}

// ReadFrom copies n bytes from roffset of the peer's windows to loffset of the
// endpoint's own (scif_readfrom). Everything else is as with WriteTo.
func (e *Endpoint) ReadFrom(loffset, n, roffset int64, flags RMAFlags) error {
	return e.fail("readfrom", e.ep.ReadFrom(loffset, n, roffset, rma.Flags(flags)))
}

// VWriteTo copies p to roffset of the peer's windows (scif_vwriteto). p is any
// memory. Without [Sync] it belongs to the transfer until a fence. Everything
// else is as with WriteTo.
func (e *Endpoint) VWriteTo(p []byte, roffset int64, flags RMAFlags) error {
	return e.fail("vwriteto", e.ep.VWriteTo(p, roffset, rma.Flags(flags)))
}

// VReadFrom fills p from roffset of the peer's windows (scif_vreadfrom). p is
// any memory. Without [Sync] it belongs to the transfer until a fence; through
// [Attach] it is full when VReadFrom returns. Everything else is as with
// WriteTo.
func (e *Endpoint) VReadFrom(p []byte, roffset int64, flags RMAFlags) error {
	return e.fail("vreadfrom", e.ep.VReadFrom(p, roffset, rma.Flags(flags)))
}
