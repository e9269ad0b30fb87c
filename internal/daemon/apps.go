package daemon

import (
	"context"
	"github.com/fabricd/fabricd/internal/ipc"
)

// apps serves the applications of this machine.
type apps struct {
	stop  context.CancelFunc
	abort context.CancelFunc // ends the delivery of what they have written
	done  chan struct{}      // closed when nothing of any application is left
}

// openSocket begins to serve applications. Until the node is a member they are
// refused, with that reason.
func (d *Daemon) openSocket(context.Context) error {
	o := d.cfg.Local
	if o.Socket == "" {
		return nil
	}
	none, err := d.tryChannels()
	if err != nil {
		return err
	}
	if none == "" {
		if err := d.tryHugePages(); err != nil {
			return err
		}
	}
	d.mu.Lock()
	d.noChannels = none
	d.mu.Unlock()
	may, _ := d.cfg.sharesMemory()
	app, user := o.Quotas.limits()
	l, err := listenUnix(socketOptions{field: "socket", network: "unixpacket", path: o.Socket, mode: o.SocketMode, group: o.SocketGroup})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	delivery, abort := context.WithCancel(context.Background())
	a := &apps{stop: stop, abort: abort, done: make(chan struct{})}
	go func() {
		defer close(a.done)
		err := ipc.Serve(ctx, l, ipc.Options{
			Log: d.log,
			Authorize: func(c ipc.Credentials) (ipc.Credentials, error) {
				c.Admin = d.admits(c)
				return c, nil
			},
			NewSession: d.NewSession,
			Delivery:   delivery,
			NoDirect:   !may,
			NoChannels: none,
			NoPaths:    d.noPaths(),
			MaxPaths:   int64(d.cfg.maxPaths()),
			Rings:      o.Rings,
			HugePages:  o.HugePages,
			Faults:     d.nodeFaults,
			Staged:     d.memory.staged,
			Session:    app,
			User:       user,
		})
		if err != nil {
			d.fail(err)
		}
	}()
	d.apps = a
	return nil
}

// leave ends every session and waits until what the applications have written
// is delivered, or until ctx ends.
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
