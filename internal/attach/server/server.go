// Package server is the node's end of the attach protocol: it serves applications the
// sessions that the node makes for them (attach.Session), over a Unix socket each.
package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/internal/faults/failpoint"
	"github.com/fabricd/fabricd/internal/guard"
	"github.com/fabricd/fabricd/internal/logbound"
	"github.com/fabricd/fabricd/internal/ring"
	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/wait"
)

// helloTimeout bounds how long a new connection may stay silent.
const helloTimeout = 5 * time.Second

// refusals bounds the connections of one user over its limit that get an answer; further
// ones are closed without.
const refusals = 16

// Options are how a node serves applications.
type Options struct {
	Log zerolog.Logger

	// Authorize decides whether a process may attach, and as what; an error
	// refuses it and is its answer. Nil lets every process in, user 0 as Admin.
	Authorize func(attach.Credentials) (attach.Credentials, error)

	// NewSession returns the node's session for an application, or status.Again
	// while the node is to be asked again, because it has no ID yet. The server
	// closes it.
	NewSession func(attach.Credentials) (attach.NodeSession, error)

	// Delivery bounds the delivery of bytes that applications have written, which
	// goes on when the server's context is done. Nil: it ends with that.
	Delivery context.Context

	// NoDirect makes every transfer go through the node, also between
	// applications of this machine.
	NoDirect bool
	// NoShmPaths is why no two applications of this machine get a shared-memory path, so that
	// their messages go through the node; empty: they do.
	NoShmPaths string
	// NoPaths is why no application gets a path; "": they may.
	NoPaths string

	// Rings are the two of every shared-memory path; the zero value is ring.Default.
	Rings ring.Params
	// HugePages say whether a shared-memory path's memory lies in huge pages. With
	// shm.HugeRequire there is no shared-memory path without them.
	HugePages shm.HugePages

	// Faults are those of the node; nil: none.
	Faults *failpoint.Node

	// Staging returns how many bytes the node may hold for transfers from and to plain
	// memory of applications, in pieces of at most a mebibyte: others wait. It is asked
	// for each piece. Nil: a session's bound alone holds.
	Staging func() int64

	// Descriptors are how many all applications together may make the node hold; 0:
	// three quarters of the process's limit, and 64 fewer than that at least.
	Descriptors int64
	// MaxPaths are how many of them are for paths, unless NoPaths is set; 0: half.
	MaxPaths int64

	Session Limits // of one session; Sessions and Descriptors are not looked at
	User    Limits // of all sessions of one user; defaults 4 times those of a session
}

// NewServer returns a server, which serves until ctx is done. Serve must be called.
func NewServer(ctx context.Context, opt Options) (*Server, error) {
	if opt.Rings == (ring.Params{}) {
		opt.Rings = ring.Default
	}
	if err := opt.Rings.Check(); err != nil {
		return nil, fmt.Errorf("serve applications: %w: %w", status.Invalid, err)
	}
	s := &Server{opt: opt, users: make(map[uint32]*user), refused: logbound.New(opt.Log, "applications were refused")}
	s.ctx, s.cancel = context.WithCancel(ctx)
	s.relays = s.ctx
	s.staging.limit, s.staging.freed = opt.Staging, make(chan struct{})
	s.paired.ends = make(map[any]*endpoint)
	if opt.Delivery != nil {
		s.relays = opt.Delivery
	}
	if s.opt.Authorize == nil {
		s.opt.Authorize = admitAll
	}
	s.opt.Session = opt.Session.withDefaults(1)
	s.opt.User = opt.User.withDefaults(4)
	s.total = newTotal(opt.Descriptors, opt.maxPaths())
	return s, nil
}

// Serve serves applications on ln, a "unixpacket" listener, and those of [Server.InProcess],
// until the server's context is done or ln fails, and returns when nothing of any session
// is left: sessions end as if their applications had, so the bytes that these have written are
// delivered, until Delivery is done. It takes ln; nil serves those of InProcess alone.
// The error is nil when the context ended it.
func (s *Server) Serve(ln *net.UnixListener) (err error) {
	if ln == nil {
		<-s.ctx.Done()
	} else {
		stop := context.AfterFunc(s.ctx, func() { ln.Close() })
		err = s.accept(ln)
		if stop() {
			ln.Close()
		}
	}
	s.cancel() // sessions end at once
	s.mu.Lock()
	s.over = true
	s.mu.Unlock()
	s.wg.Wait()
	s.refused.Close()
	return err
}

// run runs f, which serves one connection, on a goroutine that Serve waits for; false if
// Serve waits already.
func (s *Server) run(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return false
	}
	s.wg.Go(func() {
		defer guard.Recover(s.broke)
		f()
	})
	return true
}

// maxPaths is how many paths applications may have.
func (o *Options) maxPaths() int64 {
	switch {
	case o.NoPaths != "":
		return 0
	case o.MaxPaths == 0:
		return DefaultPaths()
	}
	return o.MaxPaths
}

func admitAll(c attach.Credentials) (attach.Credentials, error) {
	c.Admin = c.UID == 0
	return c, nil
}

// A Server serves the applications of a node. Each has goroutines of its own, all of
// which wg waits for.
type Server struct {
	opt    Options
	ctx    context.Context // of the sessions
	cancel context.CancelFunc
	wg     sync.WaitGroup

	relays context.Context // of the delivery of their bytes; ends after ctx

	refused *logbound.Summary

	paired  pairs
	staging stagingQuota
	total   *account // of all applications

	mu    sync.Mutex // guards the fields below
	users map[uint32]*user
	over  bool // Serve waits for the last session: no other may begin
}

// A user is the state that the sessions of one user ID share. It exists while it holds
// anything.
type user struct {
	account *account
	conns   int64 // accepted and not yet ended; guarded by server.mu
	refused int64 // those of them that are about to be refused; guarded by server.mu
	refs    int   // sessions with anything left; guarded by server.mu

	sessions map[*account]struct{} // of those that are attached; guarded by server.mu
}

// accept runs until ln is closed. Running out of descriptors is waited out: it
// is no reason to leave the applications that are attached.
func (s *Server) accept(ln *net.UnixListener) error {
	for {
		conn, err := ln.AcceptUnix()
		switch {
		case s.ctx.Err() != nil:
			if err == nil {
				conn.Close()
			}
			return nil
		case shm.Exhausted(err):
			s.opt.Log.Warn().Err(err).Msg("accept application")
			wait.For(s.ctx.Done(), 100*time.Millisecond)
		case err != nil:
			return fmt.Errorf("accept applications: %w", err)
		default:
			s.run(func() { s.attachTo(conn) }) // Serve waits only behind accept
		}
	}
}

// broke logs a panic outside of a session's goroutines.
func (s *Server) broke(err error, stack []byte) {
	s.opt.Log.Error().Err(err).Bytes("stack", stack).Msg("serving an application failed")
}

// attachTo attaches the process at the other end of conn.
func (s *Server) attachTo(conn *net.UnixConn) {
	cred, err := shm.PeerCred(conn)
	if err != nil {
		conn.Close()
		s.opt.Log.Warn().Err(err).Msg("attach application")
		return
	}
	s.attach(proto.Socket(conn), cred, nil)
}

// attach serves one connection from its first byte to its last. inProcess takes the session
// of an application of this process; nil: it is of another one.
func (s *Server) attach(conn attach.Packets, cred shm.Cred, inProcess *atomic.Pointer[session]) {
	defer conn.Close()
	log := s.opt.Log.With().Int32("pid", cred.PID).Uint32("uid", cred.UID).Logger()
	u, crowd, quota := s.enter(cred.UID, inProcess != nil)
	end := sync.OnceFunc(func() { s.exit(u, quota != nil) })
	defer s.leave(cred.UID, u)
	defer end()
	if crowd > refusals {
		return
	}
	sess, err := s.handshake(conn, cred, u, quota, inProcess)
	if err != nil {
		event := log.Debug() // of one that asks again soon, or only looks whether it could ask
		if status.Of(err) != status.Again && !errors.Is(err, io.EOF) {
			event = s.refused.Line(zerolog.InfoLevel, netip.Addr{}).Int32("pid", cred.PID).Uint32("uid", cred.UID)
		}
		event.Err(err).Msg("application refused")
		return
	}
	sess.log, sess.ended = log, end
	s.list(u, sess.account, true)
	defer s.list(u, sess.account, false)
	sess.serve()
}

// list notes whether a session's account is one of its user's.
func (s *Server) list(u *user, a *account, is bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if is {
		u.sessions[a] = struct{}{}
		return
	}
	delete(u.sessions, a)
}

// enter counts a connection, and returns how many its user has that it may not have,
// and why. The node's own process may have any number.
func (s *Server) enter(uid uint32, own bool) (u *user, crowd int64, quota error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u = s.users[uid]
	if u == nil {
		u = &user{account: newAccount(fmt.Sprintf("user %d", uid), s.opt.User, s.total), sessions: map[*account]struct{}{}}
		s.users[uid] = u
	}
	u.refs++
	if u.conns >= s.opt.User.Sessions && !own {
		quota = fmt.Errorf("user %d may attach %d sessions: %w", uid, s.opt.User.Sessions, status.NoMemory)
	} else {
		quota = u.account.charge(heldFiles, 1)
	}
	if quota != nil {
		u.refused++
		return u, u.refused, quota
	}
	u.conns++
	return u, 0, nil
}

// exit ends a connection's place among its user's sessions.
func (s *Server) exit(u *user, refused bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if refused {
		u.refused--
		return
	}
	u.conns--
	u.account.refund(heldFiles, 1)
}

// leave forgets the user with its last session. Memory that peers still use
// keeps its account alive by itself.
func (s *Server) leave(uid uint32, u *user) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if u.refs--; u.refs == 0 && u.account.idle() {
		delete(s.users, uid)
	}
}

// handshake reads HELLO and answers it. A refusal is answered before it is
// returned.
func (s *Server) handshake(conn attach.Packets, c shm.Cred, u *user, quota error, inProcess *atomic.Pointer[session]) (*session, error) {
	ctx, cancel := context.WithTimeout(s.ctx, helloTimeout)
	defer cancel()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	h, m, err := readHello(conn)
	if err != nil {
		return nil, err
	}
	refuse := func(err error) (*session, error) {
		r := &proto.Refusal{Min: proto.VersionMin, Max: proto.VersionMax, Text: err.Error()}
		answer := proto.Header{Op: proto.OpHello | proto.OpReply, Code: status.Of(err), Request: h.Request}
		return nil, errors.Join(err, conn.Send(proto.AppendFrame(nil, answer, r), nil))
	}
	version, err := choose(m)
	if err != nil {
		return refuse(err)
	}
	if quota != nil {
		return refuse(quota)
	}
	cred, err := s.opt.Authorize(attach.Credentials{UID: c.UID, GID: c.GID, PID: c.PID})
	if err != nil {
		return refuse(proto.Coded(err, status.Access))
	}
	node, err := s.opt.NewSession(cred)
	if err != nil {
		return refuse(proto.Coded(err, status.NoDevice))
	}
	if err := s.opt.Faults.Hit(failpoint.AppAttached); err != nil {
		node.Close()
		return refuse(proto.Coded(err, status.NoDevice))
	}
	w := &proto.Welcome{Version: version, Requests: proto.MaxRequests, Self: node.Self()}
	answer := proto.Header{Op: proto.OpHello | proto.OpReply, Request: h.Request}
	sess := newSession(s, conn, node, cred.UID, newSessionAccount(s.opt.Session, u.account))
	if inProcess != nil {
		sess.inProcess = true
		inProcess.Store(sess) // before the application is notified of it
	}
	if err := conn.Send(proto.AppendFrame(nil, answer, w), nil); err != nil {
		node.Close()
		return nil, err
	}
	return sess, nil
}

// readHello reads the first packet, which must be HELLO.
func readHello(conn attach.Packets) (h proto.Header, m proto.Hello, err error) {
	buf := make([]byte, proto.HeaderLen+64)
	n, f, err := conn.Recv(buf)
	if err != nil {
		return h, m, err
	}
	if f != nil {
		f.Close()
		return h, m, fmt.Errorf("descriptor with HELLO: %w", status.Protocol)
	}
	h, body, err := proto.ParseFrame(buf[:n])
	if err == nil && (h.Op != proto.OpHello || h.Code != 0 || h.Endpoint != 0 || h.Request == 0) {
		err = fmt.Errorf("first packet is no HELLO: %w", status.Protocol)
	}
	if err == nil {
		err = proto.ParseBody(body, &m)
	}
	if err == nil && m.Magic != proto.Magic {
		err = fmt.Errorf("HELLO with magic %#x, want %#x: %w", m.Magic, proto.Magic, status.Protocol)
	}
	return h, m, err
}

// choose returns the highest version that both sides speak.
func choose(m proto.Hello) (uint16, error) {
	v := min(m.Max, proto.VersionMax)
	if m.Min > m.Max || v < max(m.Min, proto.VersionMin) {
		return 0, fmt.Errorf("application speaks attach protocol %d to %d, node %d to %d: %w",
			m.Min, m.Max, proto.VersionMin, proto.VersionMax, status.Version)
	}
	return v, nil
}
