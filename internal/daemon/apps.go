package daemon

import (
	"context"
	"net"
	"time"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/server"
	"github.com/fabricd/fabricd/internal/shm"
)

// apps serves the applications of this machine.
type apps struct {
	server *server.Server
	stop   context.CancelFunc
	abort  context.CancelFunc // ends the delivery of bytes that they have written
	done   chan struct{}      // closed when nothing of any application is left
}

// openApps begins to serve applications: this process, and others by the socket if there
// is one. Until the node is a member they are refused, with that reason.
func (d *Daemon) openApps(context.Context) error {
	none, err := d.tryShmPaths()
	if err != nil {
		return err
	}
	if none == "" {
		if err := d.tryHugePages(); err != nil {
			return err
		}
	}
	d.live.set(func(p *parts) { p.noShmPaths = none })
	ctx, stop := context.WithCancel(context.Background())
	delivery, abort := context.WithCancel(context.Background())
	a := &apps{stop: stop, abort: abort, done: make(chan struct{})}
	var l *net.UnixListener
	a.server, err = server.NewServer(ctx, d.serving(delivery, none))
	if o := d.cfg.Local; err == nil && o.Socket != "" {
		l, err = listenUnix(socketOptions{field: "socket", network: "unixpacket", path: o.Socket, mode: o.SocketMode, group: o.SocketGroup})
	}
	if err != nil {
		stop()
		abort()
		return err
	}
	go func() {
		defer close(a.done)
		if err := a.server.Serve(l); err != nil {
			d.fail(err)
		}
	}()
	d.live.set(func(p *parts) { p.apps = a })
	return nil
}

// tryApps connects to the applications' socket: its file may be gone, or another's. The server
// sees a process that has left.
func (d *Daemon) tryApps() error {
	if d.cfg.Local.Socket == "" {
		return nil
	}
	c, err := net.DialTimeout("unixpacket", d.cfg.Local.Socket, time.Second)
	if err == nil {
		c.Close()
	}
	return err
}

// serving says how applications are served. noShmPaths is why they get no shared-memory paths.
func (d *Daemon) serving(delivery context.Context, noShmPaths string) server.Options {
	o := d.cfg.Local
	may, _ := d.cfg.sharesMemory()
	app, user := o.Quotas.limits()
	return server.Options{
		Log: d.log,
		Authorize: func(c attach.Credentials) (attach.Credentials, error) {
			c.Admin = d.admits(c)
			return c, nil
		},
		NewSession: d.newSession,
		Delivery:   delivery,
		NoDirect:   !may || shm.Absent() != nil,
		NoShmPaths: noShmPaths,
		NoPaths:    d.cfg.NoPaths(),
		MaxPaths:   int64(d.cfg.maxPaths()),
		Rings:      o.Rings,
		HugePages:  o.HugePages,
		Faults:     d.nodeFaults,
		Staging:    d.memory.stagingQuota,
		Session:    app,
		User:       user,
	}
}

// InProcess begins a session of an application in this process; see [server.Server.InProcess].
func (d *Daemon) InProcess() (app attach.Packets, nodesEnd func(id uint32) attach.NodeEndpoint, err error) {
	return d.live.get().apps.server.InProcess()
}

// leave ends every session and waits until all bytes written by the applications are delivered, or
// until ctx ends.
func (a *apps) leave(ctx context.Context) {
	a.stop()
	select {
	case <-a.done:
	case <-ctx.Done():
	}
}

// close ends every session and waits for it.
func (a *apps) close() {
	a.abort()
	a.stop()
	<-a.done
}
