package engine

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/fabricd/fabricd/internal/core"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/transport"
)

// An outbox sends the message bytes of a connection, never more than the peer has room for. Bytes
// go straight from the caller to the stream; only bytes that a non-blocking send could not hand
// over wait in a buffer, which the peer's limit bounds.
type outbox struct {
	open   func(context.Context) (transport.SendStream, error) // opens the stream on first use
	notify func()                                              // the endpoint may have become writable
	begin  func()                                              // runs flushRest; the link waits for it
	broke  func()                                              // the stream broke: cut the connection off
	keep   int                                                 // bound of rest, in bytes
	more   gate                                                // the limit was raised or the end has come
	token  chan struct{}                                       // held by the writing goroutine

	mu     sync.Mutex           // guards the fields below
	stream transport.SendStream // set once, with token and mu held
	flow   core.Outflow         // of the bytes accepted from callers
	rest   []byte               // accepted by a non-blocking send and not yet written, at most keep
	inUse  bool                 // a blocking send writes to the stream
	flush  bool                 // flush has the token, and will write the bytes added to rest
	full   time.Time            // since when a send has found no room at the peer; zero: it has
	err    error                // why nothing more is accepted
	ended  bool                 // the stream has ended behind the accepted bytes
	cut    bool                 // the connection is gone: nothing more is written either
}

func newOutbox(limit uint64, keep int, open func(context.Context) (transport.SendStream, error), notify func()) *outbox {
	o := &outbox{open: open, notify: notify, broke: func() {}, keep: keep,
		more: newGate(), token: make(chan struct{}, 1)}
	o.flow.Raise(limit)
	return o
}

// raise raises the limit; a lower one than before is ignored.
func (o *outbox) raise(limit uint64) {
	o.mu.Lock()
	o.flow.Raise(limit)
	if o.flow.Room() > 0 {
		o.full = time.Time{}
	}
	o.mu.Unlock()
	o.more.signal()
	o.notify()
}

// waiting returns for how long a send has found no room at the peer, and how many bytes
// were accepted and are not written; 0 while nothing waits.
func (o *outbox) waiting() (d time.Duration, unsent uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.full.IsZero() && o.err == nil {
		d = max(time.Since(o.full), time.Millisecond)
	}
	return d, uint64(len(o.rest))
}

// stop makes every later and every blocked send end with err. Bytes
// accepted before are still written. The first call counts.
func (o *outbox) stop(err error) {
	o.mu.Lock()
	if o.err == nil {
		o.err = err
		if o.inUse {
			o.stream.SetWriteDeadline(longAgo)
		}
	}
	o.mu.Unlock()
	o.more.signal()
	o.notify()
}

// longAgo is a deadline that ends a blocked call at once.
var longAgo = time.Unix(1, 0)

// writable reports whether a send would accept at least one byte.
func (o *outbox) writable() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err == nil && o.flow.Room() > 0
}

// reserve accepts up to n bytes against the limit.
func (o *outbox) reserve(n int) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil {
		o.more.signal() // for the next call that waits
		return 0, o.err
	}
	k := o.flow.Reserve(n)
	if o.flow.Room() > 0 {
		o.more.signal()
	} else if k == 0 && n > 0 && o.full.IsZero() {
		o.full = time.Now()
	}
	return k, nil
}

// send sends all of p. It returns how much was accepted if the connection ends
// or ctx is done before.
func (o *outbox) send(ctx context.Context, p []byte) (n int, err error) {
	if err := o.acquire(ctx); err != nil {
		return 0, err
	}
	defer o.release()
	for n < len(p) {
		k, err := o.reserve(len(p) - n)
		if err != nil {
			return n, err
		}
		if k == 0 {
			select {
			case <-o.more:
				continue
			case <-ctx.Done():
				return n, context.Cause(ctx)
			}
		}
		w, err := o.write(ctx, p[n:n+k], true)
		n += w
		if err != nil {
			o.giveBack(k - w)
			return n, err
		}
	}
	return n, nil
}

func (o *outbox) giveBack(n int) {
	o.mu.Lock()
	o.flow.GiveBack(n)
	o.mu.Unlock()
}

// acquire takes the token. A token that is free is taken even if ctx is done.
func (o *outbox) acquire(ctx context.Context) error {
	select {
	case o.token <- struct{}{}:
		return nil
	default:
	}
	select {
	case o.token <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (o *outbox) release() { <-o.token }

// write hands p to the stream; the caller holds the token. If stoppable, stop ends it.
func (o *outbox) write(ctx context.Context, p []byte, stoppable bool) (int, error) {
	if o.stream == nil {
		if ctx.Err() != nil { // a send that need not block succeeds even so
			ctx = context.WithoutCancel(ctx)
		}
		stream, err := o.open(ctx)
		if err != nil {
			return 0, o.failure(ctx, err)
		}
		if !o.adopt(stream) {
			return 0, o.failure(ctx, status.Reset)
		}
	}
	if len(p) <= tryMax {
		if ok, err := o.stream.TryWrite(p); ok && err == nil {
			return len(p), nil
		}
	}
	if stoppable {
		if err := o.use(); err != nil {
			return 0, err
		}
		defer o.unuse()
	}
	if ctx.Done() != nil {
		defer deadlineOnDone(ctx, o.stream.SetWriteDeadline)()
	}
	n, err := o.stream.Write(p)
	if err != nil {
		err = o.failure(ctx, err)
	}
	return n, err
}

// use lets stop end the write that follows.
func (o *outbox) use() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.inUse = o.err == nil
	return o.err
}

// unuse clears the deadline that stop may have set on the stream, which still has to
// carry the bytes accepted before.
func (o *outbox) unuse() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.inUse = false
	if o.err != nil {
		o.stream.SetWriteDeadline(time.Time{})
	}
}

// adopt takes the stream into use, unless the connection has gone meanwhile.
func (o *outbox) adopt(stream transport.SendStream) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.cut {
		stream.Cancel()
		return false
	}
	o.stream = stream
	return true
}

// deadlineOnDone makes a blocked call on a stream end when ctx is done. The
// returned function undoes it and must be called after the call.
func deadlineOnDone(ctx context.Context, set func(time.Time) error) (undo func()) {
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		set(longAgo)
		close(done)
	})
	return func() {
		if !stop() {
			<-done
		}
		set(time.Time{})
	}
}

// failure returns why a stream did not take bytes: the context, the connection's
// end, or, if the stream itself broke, a reset.
func (o *outbox) failure(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	o.mu.Lock()
	stopped := o.err
	o.mu.Unlock()
	if stopped != nil {
		return stopped
	}
	o.broke()
	return status.Reset
}

// tryMax is the largest piece that is offered to a stream without blocking, in bytes.
// A QUIC stream sends such bytes together with those that come behind them; a write that
// waits costs ten microseconds. From three packets on waiting costs no more, and bytes that
// a stream has taken are copied once more for each packet.
const tryMax = 3 << 10

// trySend accepts the bytes that the peer has room for. Those that the stream does not take
// at once are kept and written by a goroutine.
func (o *outbox) trySend(p []byte) (int, error) {
	for {
		select {
		case o.token <- struct{}{}:
			return o.tryAlone(p)
		default:
		}
		if k, free, err := o.tryAppend(p); !free {
			return k, err
		}
	}
}

// tryAlone is trySend for the holder of the token, which it gives up or hands to flush.
func (o *outbox) tryAlone(p []byte) (int, error) {
	k, err := o.reserve(min(len(p), o.keep))
	if k == 0 || err != nil {
		o.release()
		return 0, err
	}
	o.mu.Lock()
	o.rest = append(o.rest, p[:k]...)
	o.mu.Unlock()
	if k <= tryMax && o.stream != nil && o.tryRest() {
		o.release()
		return k, nil
	}
	o.mu.Lock()
	o.flush = true
	o.mu.Unlock()
	o.begin()
	return k, nil
}

// tryAppend adds to the bytes that a flush is about to write. Behind a blocked send it accepts
// nothing, or the bytes would overtake it. If the flush has just ended, the token is free.
func (o *outbox) tryAppend(p []byte) (n int, free bool, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil {
		return 0, false, o.err
	}
	if !o.flush {
		return 0, len(o.token) == 0, nil
	}
	k := o.flow.Reserve(min(len(p), o.keep-len(o.rest)))
	o.rest = append(o.rest, p[:k]...)
	return k, false, nil
}

func (o *outbox) tryRest() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	ok, err := o.stream.TryWrite(o.rest)
	if !ok || err != nil {
		return false
	}
	o.rest = o.rest[:0]
	return true
}

// flushRest writes the rest of non-blocking sends, then gives up the token that its caller held:
// with mu held, so that the bytes of a sender that finds it taken are written by this.
func (o *outbox) flushRest() {
	for {
		o.mu.Lock()
		p := o.rest
		if len(p) == 0 || o.cut {
			o.rest, o.flush = nil, false
			o.release()
			o.mu.Unlock()
			o.notify()
			return
		}
		o.mu.Unlock()
		n, err := o.write(context.Background(), p, false)
		if err != nil {
			o.abort(status.Reset)
			continue
		}
		o.mu.Lock()
		o.rest = o.rest[n:]
		o.mu.Unlock()
	}
}

// finish ends the stream after everything accepted and returns how many bytes
// that is. The caller has called stop.
func (o *outbox) finish(ctx context.Context) (sent uint64, err error) {
	if err := o.acquire(ctx); err != nil {
		return 0, err
	}
	defer o.release()
	return o.endStream()
}

// endStream is finish for the holder of the token.
func (o *outbox) endStream() (sent uint64, err error) {
	o.mu.Lock()
	stream, sent, ended := o.stream, o.flow.Sent(), o.ended
	o.ended = true
	o.mu.Unlock()
	if stream != nil && !ended {
		err = stream.Close()
	}
	return sent, err
}

// shut stops the outbox and ends the stream behind the accepted bytes, once: first is false if
// that was done.
func (o *outbox) shut() (sent uint64, first bool, err error) {
	if err := o.acquire(context.Background()); err != nil {
		return 0, false, err
	}
	defer o.release()
	o.mu.Lock()
	stopped, ended := o.err, o.ended
	o.mu.Unlock()
	switch {
	case ended:
		return 0, false, nil
	case stopped != nil:
		return 0, false, stopped
	}
	o.stop(errShut)
	sent, err = o.endStream()
	return sent, err == nil, err
}

// errShut is the error of a send behind a CloseWrite.
var errShut = fmt.Errorf("this end sends no more: %w", status.Reset)

// abort drops the stream and the unwritten bytes: the connection is gone.
func (o *outbox) abort(err error) {
	o.stop(err)
	o.mu.Lock()
	stream := o.stream
	o.cut = true
	o.mu.Unlock()
	if stream != nil {
		stream.Cancel()
	}
}

// total returns how many bytes were accepted in all.
func (o *outbox) total() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.flow.Sent()
}
