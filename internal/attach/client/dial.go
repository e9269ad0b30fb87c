package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/wait"
)

// Dial attaches to the node that serves path. ctx bounds the attaching only.
// The session ends with Close, or when the node goes away: blocked calls then
// return status.Reset, later ones status.NoDevice.
//
// Of the environment it takes $FABRIC_LATENCY, $FABRIC_SPIN and
// $FABRIC_HUGE_PAGES; see [tuning].
//
// Window memory must come from the session's Alloc. A VWriteTo returns when
// its bytes have been copied, a VReadFrom when they have arrived; one of more
// than 1 MiB that the node performs is done in pieces of that size. The range is
// checked before the first; when the peer takes windows away beside the call, or
// the connection ends, the error may find earlier pieces done.
func Dial(ctx context.Context, path string) (attach.Session, error) {
	return DialWith(ctx, path, DialOptions{})
}

// DialOptions are options of a session of [DialWith].
type DialOptions struct {
	// ShareWindows lets applications of other users on this node use the session's
	// windows directly, as those of its own user may.
	ShareWindows bool
}

// DialWith is Dial with options.
func DialWith(ctx context.Context, path string, opt DialOptions) (attach.Session, error) {
	c, err := dialMember(ctx, path)
	if err != nil {
		return nil, err
	}
	if !opt.ShareWindows {
		return c, nil
	}
	if err := c.shareWindows(ctx); err != nil {
		c.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// dialMember is dial that waits, until ctx ends, for a node that is starting or
// joining to get its ID: an earlier call of an application would have no address.
func dialMember(ctx context.Context, path string) (*session, error) {
	var unready error // of the dial before
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, 250*time.Millisecond) {
		c, err := dial(ctx, path)
		switch {
		case err != nil && ctx.Err() != nil && unready != nil: // ctx has ended the dial
			return nil, &unreadyError{unready, ctx.Err()}
		case err == nil || status.Of(err) != status.Again:
			return c, err
		}
		unready = err
		wait.For(ctx.Done(), pause) // an end of ctx ends the next dial
	}
}

// An unreadyError is the end of a wait for a node's ID.
type unreadyError struct{ node, ctx error }

func (e *unreadyError) Error() string   { return fmt.Sprintf("%v: %v", e.node, e.ctx) }
func (e *unreadyError) Unwrap() []error { return []error{status.Of(e.ctx), e.ctx} }

func dial(ctx context.Context, path string) (*session, error) {
	if err := shm.Absent(); err != nil {
		return nil, fmt.Errorf("%s: attach: %w", path, err)
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unixpacket", path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, proto.Coded(err, dialCode(ctx, err)))
	}
	if err := shm.CheckServer(conn.(*net.UnixConn), path); err != nil {
		conn.Close()
		return nil, err
	}
	c, err := begin(ctx, proto.Socket(conn.(*net.UnixConn)), nil)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// begin opens a session on conn, which it takes. nodesEnd returns the node's end of an
// endpoint, where the node is in this process.
func begin(ctx context.Context, conn attach.Packets, nodesEnd func(uint32) attach.NodeEndpoint) (*session, error) {
	tuned, err := readTuning(os.Getenv)
	if err != nil {
		conn.Close()
		return nil, err
	}
	c := newClient(conn)
	c.tuning, c.nodesEnd = tuned, nodesEnd
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	err = c.hello(ctx)
	if !stop() && err == nil { // it is closed, or soon will be
		err = ended(ctx)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	c.wg.Go(c.out.Run)
	c.wg.Go(c.read)
	c.watchers.start()
	return c, nil
}

// dialCode names the failure to reach a node: there is no listener, unless the
// kernel denies access or ctx has ended.
func dialCode(ctx context.Context, err error) status.Code {
	if ctx.Err() != nil {
		return status.Of(ctx.Err())
	}
	if errors.Is(err, os.ErrPermission) {
		return status.Access
	}
	return status.NoDevice
}

// hello opens the session; nothing else uses the socket yet. The end of ctx
// closes it.
func (c *session) hello(ctx context.Context) error {
	ask := proto.AppendFrame(nil, proto.Header{Op: proto.OpHello, Request: 1}, &proto.Hello{Magic: proto.Magic, Min: proto.VersionMin, Max: proto.VersionMax})
	if err := c.conn.Send(ask, nil); err != nil {
		return proto.Coded(err, status.Reset)
	}
	buf := make([]byte, proto.MaxFrame)
	n, f, err := c.conn.Recv(buf)
	if f != nil {
		f.Close()
	}
	if ctx.Err() != nil {
		return fmt.Errorf("node does not answer: %w: %w", status.Of(ctx.Err()), ctx.Err())
	}
	if err != nil {
		return proto.Coded(fmt.Errorf("node ended the connection: %w: %w", status.Reset, err), status.Reset)
	}
	h, body, err := proto.ParseFrame(buf[:n])
	if err != nil {
		return err
	}
	if h.Op != proto.OpHello|proto.OpReply {
		return fmt.Errorf("answer to HELLO is operation %#x: %w", h.Op, status.Protocol)
	}
	var w proto.Welcome
	if err := proto.ParseAnswer(h, body, &w); err != nil {
		return err
	}
	if w.Version < proto.VersionMin || w.Version > proto.VersionMax {
		return fmt.Errorf("node chose attach protocol %d, this program speaks %d to %d: %w",
			w.Version, proto.VersionMin, proto.VersionMax, status.Version)
	}
	c.self, c.next = w.Self, 1
	for _, k := range []proto.Kind{proto.Connects, proto.Moves} {
		c.slots[k] = make(slots, max(min(w.Requests, proto.MaxRequests), 1))
	}
	return nil
}
