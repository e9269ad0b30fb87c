// Package server is the node's end of the attach protocol: it offers each application a session of
// the node (attach.Session) over a Unix socket.
package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/internal/faults/failpoint"
	"github.com/fabricd/fabricd/internal/guard"
	"github.com/fabricd/fabricd/internal/ring"
	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/internal/status"
)

// helloTimeout bounds how long a new connection may send nothing.
const helloTimeout = 5 * time.Second

// refusals bounds the connections of one user over its limit that get a refusal; further ones are
// closed without an answer.
const refusals = 16

// Options configure how a node serves applications.
type Options struct {
	Log zerolog.Logger

	// Authorize decides whether a process may attach, and with which credentials. An error refuses
	// it and is sent to it. Nil admits every process, user 0 as Admin.
	Authorize func(attach.Credentials) (attach.Credentials, error)

	// NewSession returns the node's session for an application, or status.Again if the application
	// should try again, because the node has no ID yet. The server closes it. Its endpoints should
	// be RegionEndpoints: others have no windows.
	NewSession func(attach.Credentials) (attach.Session, error)

	// Delivery bounds the delivery of bytes that applications have written, which continues after
	// the server's context is done. Nil: it ends with that.
	Delivery context.Context

	// NoDirect makes every transfer go through the node, also between applications of this machine.
	NoDirect bool
	// NoChannels is the reason why applications of this machine get no channel, so that their
	// messages go through the node; empty: they do.
	NoChannels string
	// NoPaths is the reason why no application gets a path; "": they may.
	NoPaths string

	// Rings are the two of every channel; the zero value is ring.Default.
	Rings Rings
	// HugePages selects whether a channel's memory lies in huge pages. With shm.HugeRequire there
	// is no channel without them.
	HugePages HugePages

	// Faults are the node's injected faults; nil: none.
	Faults *failpoint.Node

	// Staged returns how many bytes the node may hold for transfers from and to plain memory of
	// applications, in pieces of at most a mebibyte; further ones wait. It is called for each
	// piece. Nil: only the limit of a session applies.
	Staged func() int64

	// Descriptors is the limit on descriptors of the node for all applications together; 0: three
	// quarters of the process's limit, and at least 64 fewer than that.
	Descriptors int64
	// MaxPaths is the number of them for paths, unless NoPaths is set; 0: half.
	MaxPaths int64

	Session Limits // of one session; Sessions and Descriptors are ignored
	User    Limits // of all sessions of one user; defaults 4 times those of a session
}

// NewServer returns a server, which serves until ctx is done. The caller must call Serve.
func NewServer(ctx context.Context, opt Options) (*Server, error) {
	if opt.Rings == (Rings{}) {
		opt.Rings = ring.Default
	}
	if err := opt.Rings.Check(); err != nil {
		return nil, fmt.Errorf("serve applications: %w: %w", status.Invalid, err)
	}
	s := &Server{opt: opt, users: make(map[uint32]*user)}
	s.ctx, s.cancel = context.WithCancel(ctx)
	s.pumps = s.ctx
	s.staged.limit, s.staged.freed = opt.Staged, make(chan struct{})
	s.paired.init()
	if opt.Delivery != nil {
		s.pumps = opt.Delivery
	}
	if s.opt.Authorize == nil {
		s.opt.Authorize = admitAll
	}
	s.opt.Session = opt.Session.withDefaults(1)
	s.opt.User = opt.User.withDefaults(4)
	s.total = newTotal(opt.Descriptors, opt.maxPaths())
	return s, nil
}

// Serve serves applications on ln, a "unixpacket" listener, and those of [Server.InProcess], until
// the server's context is done or ln fails. It returns when no session has any resources left:
// sessions end as if their applications had, so bytes of those are delivered until Delivery is
// done. It owns ln; nil serves only those of InProcess. The error is nil if the context ended it.
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
	return err
}

// run runs f, which serves one connection, on a goroutine that Serve waits for; false if Serve is
// already waiting.
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

// maxPaths is the largest number of paths.
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

// A Server serves the applications of a node. Each session has its own goroutines, and wg waits for
// all of them.
type Server struct {
	opt    Options
	ctx    context.Context // of the sessions
	cancel context.CancelFunc
	wg     sync.WaitGroup

	pumps context.Context // of the delivery of their bytes; ends after ctx

	paired pairs
	staged staged
	total  *account // of all applications

	mu    sync.Mutex // guards the fields below
	users map[uint32]*user
	over  bool // Serve waits for the last session: no other may begin
}

// A user is the state that the sessions of one user ID share. It exists while it has any resources.
type user struct {
	account *account
	conns   int64 // accepted and not yet ended; guarded by server.mu
	refused int64 // those over the limit, still to be refused; guarded by server.mu
	refs    int   // sessions that have resources left; guarded by server.mu
}

// accept runs until ln is closed. If the process runs out of descriptors it waits and retries:
// attached applications must not suffer.
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
			select {
			case <-time.After(100 * time.Millisecond):
			case <-s.ctx.Done():
			}
		case err != nil:
			return fmt.Errorf("accept applications: %w", err)
		default:
			s.run(func() { s.attach(conn, nil) }) // Serve waits only after accept
		}
	}
}

// broke logs a panic outside a session's goroutines.
func (s *Server) broke(err error, stack []byte) {
	s.opt.Log.Error().Err(err).Bytes("stack", stack).Msg("serving an application failed")
}

// attach serves one connection from its first byte to its last. It stores the session in inProcess
// if the application is in this process; nil: it is in another one.
func (s *Server) attach(conn *net.UnixConn, inProcess *atomic.Pointer[serverSession]) {
	defer conn.Close()
	cred, err := shm.PeerCred(conn)
	if err != nil {
		s.opt.Log.Warn().Err(err).Msg("attach application")
		return
	}
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
		level := zerolog.InfoLevel
		if status.Of(err) == status.Again { // the application tries again soon
			level = zerolog.DebugLevel
		}
		log.WithLevel(level).Err(err).Msg("application refused")
		return
	}
	sess.log, sess.ended = log, end
	sess.serve()
}

// enter counts a connection of a user. If it exceeds a limit, enter returns the number of refused
// connections and the reason. The node's own process may have any number.
func (s *Server) enter(uid uint32, own bool) (u *user, crowd int64, quota error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u = s.users[uid]
	if u == nil {
		u = &user{account: newAccount(fmt.Sprintf("user %d", uid), s.opt.User, s.total)}
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

// exit reverses the counting of enter.
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

// leave removes the user with its last session. Memory that peers still use keeps a reference to
// the account.
func (s *Server) leave(uid uint32, u *user) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if u.refs--; u.refs == 0 && u.account.idle() {
		delete(s.users, uid)
	}
}

// handshake reads HELLO and answers it. It sends a refusal before it returns the error.
func (s *Server) handshake(conn *net.UnixConn, c shm.Cred, u *user, quota error, inProcess *atomic.Pointer[serverSession]) (*serverSession, error) {
	stop := context.AfterFunc(s.ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	conn.SetDeadline(time.Now().Add(helloTimeout))
	h, m, err := readHello(conn)
	if err != nil {
		return nil, err
	}
	refuse := func(err error) (*serverSession, error) {
		r := &proto.Refusal{Min: proto.VersionMin, Max: proto.VersionMax, Text: err.Error()}
		answer := proto.Header{Op: proto.OpHello | proto.OpReply, Code: status.Of(err), Request: h.Request}
		return nil, errors.Join(err, shm.Send(conn, proto.AppendFrame(nil, answer, r), nil))
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
	sess := newServerSession(s, conn, node, cred.UID, newSessionAccount(s.opt.Session, u.account))
	if inProcess != nil {
		sess.inProcess = true
		inProcess.Store(sess) // before the application gets the answer
	}
	if err := shm.Send(conn, proto.AppendFrame(nil, answer, w), nil); err != nil {
		node.Close()
		return nil, err
	}
	conn.SetDeadline(time.Time{})
	return sess, nil
}

// readHello reads the first packet, which must be HELLO.
func readHello(conn *net.UnixConn) (h proto.Header, m proto.Hello, err error) {
	buf := make([]byte, proto.HeaderLen+64)
	n, f, err := shm.Recv(conn, buf)
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

// choose returns the highest version that both sides support.
func choose(m proto.Hello) (uint16, error) {
	v := min(m.Max, proto.VersionMax)
	if m.Min > m.Max || v < max(m.Min, proto.VersionMin) {
		return 0, fmt.Errorf("application speaks attach protocol %d to %d, node %d to %d: %w",
			m.Min, m.Max, proto.VersionMin, proto.VersionMax, status.Version)
	}
	return v, nil
}
