package fabric

import (
	"context"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/client"
	"github.com/fabricd/fabricd/internal/status"
)

// An Endpoint is one end of a connection, as SCIF has it (scif_epd_t):
//
//	Open --> unbound -- Bind --> bound -- Listen --> listening
//	            |                  | ^
//	            +---- Connect -----+ |
//	                     |  refused  |
//	                     +-----------+
//	                     v
//	                 connected -- the peer closes, or its node is lost --> disconnected
//
// Accept makes new endpoints that are connected from the start. A disconnected
// endpoint returns the bytes it had received and can then only be closed. Close may be
// called in every state; after it every method fails with EBADF, which is
// net.ErrClosed, and calls that were blocked return ECONNRESET (Accept: EINTR).
//
// An Endpoint's methods may be called from any goroutine. A call in a state
// that does not allow it fails at once: send, receive, windows, RMA and fences
// with ENOTCONN before a connection and ECONNRESET after it.
type Endpoint struct {
	ep attach.Endpoint

	// receiving is taken while a Recv or TryRecv runs, so that two of them do not mix
	// their bytes although Recv may take several steps.
	receiving client.Mutex
}

func newEndpoint(ep attach.Endpoint) *Endpoint {
	e := &Endpoint{ep: ep}
	e.receiving.Init()
	return e
}

// Bind binds the endpoint to port and returns it; 0 chooses the lowest free
// port from [FirstEphemeral], and if there is none the lowest from [ReservedEnd]
// (scif_bind). It does not block.
//
// As in SCIF a port is free again as soon as its last endpoint is closed or its
// application dies. A process that connects to a chosen port that it has learned may
// reach the port's next holder: let the first message name its receiver.
//
// Errors, in the order in which they are checked: EACCES for a port below
// [AdminEnd] without privilege, or one that an access rule of the node keeps for
// other users; EINVAL if the endpoint is bound already; EISCONN if it listens, connects, or is or was connected; EINVAL if the port
// is in use on this node; ENOSPC if no port is free.
func (e *Endpoint) Bind(port Port) (Port, error) {
	got, err := e.ep.Bind(port)
	return got, e.fail("bind", err)
}

// Listen makes a bound endpoint listen, with room for backlog requests that
// wait for Accept, at most [MaxBacklog] (scif_listen). It does not block. [Allow] names
// the peers that may connect, [Service] the service.
//
// Errors: EINVAL if the endpoint is not bound, is disconnected, backlog is
// less than 1, or an option is wrong; EISCONN if it listens already, connects or
// is connected; EOPNOTSUPP for an option that the node is too old to know.
func (e *Endpoint) Listen(backlog int, opts ...ListenOption) error {
	l := listeningOf(opts)
	allow, err := l.callers()
	if err == nil && l.backlog != 0 && l.backlog != backlog {
		err = status.Invalid
	}
	if err == nil && backlog < 1 {
		err = status.Invalid // before the name is taken
	}
	if err == nil && l.named {
		err = e.ep.Serve(l.service)
	}
	if err == nil {
		err = e.ep.Listen(backlog, allow...)
	}
	return e.fail("listen", err)
}

// Connect connects to dst and returns the local port, which it chooses if the
// endpoint is not bound (scif_connect). It blocks until the peer has accepted,
// or it was refused, or ctx is done. After a failure the endpoint is bound, and
// Connect may be called again.
//
// Errors: ENODEV if dst's node is not in the cluster or is lost meanwhile;
// EINVAL if dst's port is 0, or if the endpoint's connection has ended; EISCONN
// if it is connected or connecting; EOPNOTSUPP if it listens; ENOSPC if no port
// is free; ENOBUFS if there are as many connections to that node as a link carries
// (16,000 by default); ENOMEM if the node has no memory left for connections;
// ECONNREFUSED if no endpoint listens, an access rule of dst's node or the listener's
// [Allow] is against it, the backlog is full, the listener closes, dst's node has no
// room for the connection, or no Accept within the node's time limit (10 s by
// default). An expose whose target is not reached refuses with that, ETIMEDOUT or ENODEV.
func (e *Endpoint) Connect(ctx context.Context, dst Addr) (Port, error) {
	port, err := e.ep.Connect(ctx, dst)
	if err != nil {
		return 0, e.failTo("connect", dst, contextError(ctx, err))
	}
	return port, nil
}

// TryConnect is scif_connect on a non-blocking endpoint. The first call starts
// the attempt; it and later ones fail with EINPROGRESS until it is decided,
// which [Node.Poll] shows as PollOut. The next call then returns the result,
// once; a failed attempt leaves the endpoint bound. Errors are Connect's.
func (e *Endpoint) TryConnect(dst Addr) (Port, error) {
	port, err := e.ep.TryConnect(dst)
	if err != nil {
		return 0, e.failTo("connect", dst, err)
	}
	return port, nil
}

// Accept waits for the next request of a listening endpoint and returns the
// new, connected endpoint, whose RemoteAddr is the requester's (scif_accept
// with SCIF_ACCEPT_SYNC). Requests are accepted in the order of their arrival,
// and one whose requester has gone away is passed over. The new endpoint has
// the listener's port and outlives the listener.
//
// Errors: EINVAL if the endpoint does not listen; EINTR if it is closed
// meanwhile; EACCES, once, if the host does not let this node serve the listener's [Service].
func (e *Endpoint) Accept(ctx context.Context) (*Endpoint, error) {
	ep, _, err := e.ep.Accept(ctx)
	return e.accepted(ep, contextError(ctx, err))
}

func (e *Endpoint) accepted(ep attach.Endpoint, err error) (*Endpoint, error) {
	if err != nil {
		return nil, e.fail("accept", err)
	}
	return newEndpoint(ep), nil
}

// TryAccept is Accept without waiting: EAGAIN if there is no request
// (scif_accept without flags).
func (e *Endpoint) TryAccept() (*Endpoint, error) {
	ep, _, err := e.ep.TryAccept()
	return e.accepted(ep, err)
}

// Send sends all of p (scif_send with SCIF_SEND_BLOCK): it returns when all
// bytes are on their way, which does not mean that the peer has received them.
// n < len(p) only with an error. Sends of several goroutines do not mix their
// bytes. An empty p does nothing, in every state but closed.
//
// Errors: ENOTCONN, or ECONNRESET after the peer's close or loss.
func (e *Endpoint) Send(ctx context.Context, p []byte) (n int, err error) {
	if len(p) == 0 {
		return 0, e.nothing("send")
	}
	n, err = e.ep.Send(ctx, p)
	return n, e.fail("send", contextError(ctx, err))
}

// TrySend sends as much of p as there is room for now, which may be nothing,
// and returns how much that was (scif_send without flags). No room is not an
// error. Errors are Send's.
func (e *Endpoint) TrySend(p []byte) (n int, err error) {
	if len(p) == 0 {
		return 0, e.nothing("send")
	}
	n, err = e.ep.TrySend(p)
	return n, e.fail("send", err)
}

// Recv receives until p is full (scif_recv with SCIF_RECV_BLOCK). n < len(p)
// only with an error; the n bytes are good. Recvs of several goroutines do not
// mix their bytes. An empty p does nothing, in every state but closed. To take
// the bytes that have arrived, use [Conn.Read] or TryRecv.
//
// Errors: ENOTCONN before a connection. ECONNRESET when the connection has
// ended and everything that had arrived was received; the error is io.EOF as
// well if the peer closed in order, and not if it was lost.
func (e *Endpoint) Recv(ctx context.Context, p []byte) (n int, err error) {
	if len(p) == 0 {
		return 0, e.nothing("recv")
	}
	if !e.receiving.TryLock() && !e.receiving.Lock(ctx.Done(), nil) {
		return 0, e.fail("recv", contextError(ctx, status.Canceled))
	}
	defer e.receiving.Unlock()
	for {
		m, err := e.ep.Recv(ctx, p[n:])
		if n += m; err != nil || n == len(p) {
			return n, e.fail("recv", contextError(ctx, err))
		}
	}
}

// TryRecv receives the bytes that have arrived, at most len(p), which may be
// nothing (scif_recv without flags). Nothing to receive is not an error on a
// live connection; while another goroutine is in Recv, new bytes are for that
// one. Errors are Recv's.
func (e *Endpoint) TryRecv(p []byte) (n int, err error) {
	if len(p) == 0 {
		return 0, e.nothing("recv")
	}
	if !e.receiving.TryLock() {
		return 0, nil
	}
	defer e.receiving.Unlock()
	n, err = e.ep.TryRecv(p)
	return n, e.fail("recv", err)
}

// nothing is the result of a Send or Recv of no bytes: it succeeds in every state
// but closed.
func (e *Endpoint) nothing(op string) error {
	if Events(e.ep.Ready())&PollNval != 0 {
		return e.fail(op, status.BadFD)
	}
	return nil
}

// LocalAddr returns the address that the endpoint is bound to, its port 0
// before that.
func (e *Endpoint) LocalAddr() Addr { return e.ep.LocalAddr() }

// RemoteAddr returns the peer's address, the zero Addr before a connection.
func (e *Endpoint) RemoteAddr() Addr { return e.ep.RemoteAddr() }

// Close closes the endpoint (scif_close): its windows are unregistered, RMA in
// progress completes, bytes already sent are still delivered, and requests that
// waited at a listener are refused. It does not wait for the peer to receive.
// Mappings stay until they are closed themselves. A second Close fails with
// EBADF.
func (e *Endpoint) Close() error { return e.fail("close", e.ep.Close()) }

func (e *Endpoint) fail(op string, err error) error {
	if err == nil {
		return nil
	}
	return e.failTo(op, e.ep.RemoteAddr(), err)
}

func (e *Endpoint) failTo(op string, remote Addr, err error) error {
	return &OpError{Op: op, Local: e.ep.LocalAddr(), Remote: remote, Err: err}
}
