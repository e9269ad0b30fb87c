package core

// An Inflow accounts for the message bytes of a connection that arrive at one
// end. The peer never sends more than the window holds, so that its stream is
// always drained, and learns of new room in quarters of the window. An Inflow
// is an offer to the holder of the bytes; it does not hold them itself.
type Inflow struct {
	window        uint64
	read, arrived uint64 // since the beginning; arrived-read <= window
	limit         uint64 // the last limit announced to the peer
	total         uint64 // bytes that the peer sent in all, if ended
	ended         bool   // the peer has sent total, its last count
	reset         bool   // the peer's application has not closed in order
	cut           bool   // the stream has ended
	lost          bool   // the connection was cut off
	muted         bool   // this end has closed: bytes that arrive are dropped
}

// NewInflow returns the account of a connection that keeps up to window bytes.
func NewInflow(window int) Inflow {
	return Inflow{window: uint64(window), limit: uint64(window)}
}

// Read and Arrived return the positions of the reader and of the stream, in
// bytes since the beginning.
func (f *Inflow) Read() uint64 { return f.read }

// Arrived is described at Read.
func (f *Inflow) Arrived() uint64 { return f.arrived }

// Unread returns how many bytes have arrived and were not taken.
func (f *Inflow) Unread() int { return int(f.arrived - f.read) }

// Admits reports whether the peer was allowed to send n more bytes, and did not say
// that there are fewer.
func (f *Inflow) Admits(n int) bool {
	end := f.arrived + uint64(n)
	return end <= f.limit && (!f.ended || end <= f.total)
}

// Arrive counts n bytes from the stream. It reports false if Admits did not admit them.
func (f *Inflow) Arrive(n int) bool {
	ok := f.Admits(n)
	f.arrived += uint64(n)
	if f.muted {
		f.read = f.arrived
	}
	return ok
}

// Cut records that the stream has ended. It reports false if the peer has announced
// that there are more bytes.
func (f *Inflow) Cut() bool {
	f.cut = true
	return !f.ended || f.arrived >= f.total
}

// End records that the peer sends no more after total bytes, in order or, with reset, not.
// It reports false if more have arrived already, or never will, or if it has said
// another number before.
func (f *Inflow) End(total uint64, reset bool) bool {
	if f.ended && total != f.total {
		return false
	}
	f.ended, f.total, f.reset = true, total, f.reset || reset
	return f.arrived <= total && total <= f.limit && (!f.cut || f.arrived == total)
}

// Lose records that the connection was cut off. Bytes that arrived stay readable, and no good
// end follows.
func (f *Inflow) Lose() { f.lost, f.reset = true, f.reset || !f.ended }

// Mute records that this end has closed: unread bytes, and bytes that arrive
// from here on, are dropped.
func (f *Inflow) Mute() { f.muted, f.read = true, f.arrived }

// Muted reports whether this end has closed.
func (f *Inflow) Muted() bool { return f.muted }

// Over reports whether nothing more will arrive.
func (f *Inflow) Over() bool { return f.lost || f.ended && f.arrived == f.total }

// PeerClosed reports whether everything that the peer sent before it ended its direction
// in order has arrived; once that is read, the stream has ended well.
func (f *Inflow) PeerClosed() bool { return f.ended && !f.reset && f.arrived == f.total }

// Take counts n bytes that the reader has taken.
func (f *Inflow) Take(n int) { f.read += uint64(n) }

// Grant decides whether to send the peer a new limit. Sending it after each
// quarter of the window keeps both sides busy.
func (f *Inflow) Grant() (limit uint64, send bool) {
	limit = f.read + f.window
	if f.Over() || f.ended || limit-f.limit < f.window/4 {
		return 0, false
	}
	f.limit = limit
	return limit, true
}

// An Outflow accounts for the message bytes that one end sends: never more
// than the peer has room for.
type Outflow struct {
	limit uint64 // bytes that the peer has room for, since the beginning
	sent  uint64 // bytes accepted from callers, <= limit
}

// Raise raises the limit; a lower one than before is ignored.
func (f *Outflow) Raise(limit uint64) { f.limit = max(f.limit, limit) }

// Room returns how many bytes may be accepted now.
func (f *Outflow) Room() uint64 { return f.limit - f.sent }

// Reserve accepts up to n bytes against the limit and returns how many.
func (f *Outflow) Reserve(n int) int {
	k := int(min(uint64(n), f.Room()))
	f.sent += uint64(k)
	return k
}

// GiveBack takes back n reserved bytes that were not handed to the stream.
func (f *Outflow) GiveBack(n int) { f.sent -= uint64(n) }

// Sent returns how many bytes were accepted in all.
func (f *Outflow) Sent() uint64 { return f.sent }
