package fabrictest

import (
	"context"
	"sync/atomic"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/client"
	"github.com/fabricd/fabricd/internal/attach/server"
	"github.com/fabricd/fabricd/internal/engine"
	"github.com/fabricd/fabricd/internal/hook"
)

// apps serve the applications of one run of a node, as fabricd serves those of its own process.
type apps struct {
	server *server.Server
	admin  atomic.Bool // the next application may be an administrator
	stop   context.CancelFunc
	done   chan struct{} // closed when nothing of any application is left at the node
}

// outside is why the connections of a node's own applications have neither shared-memory paths nor
// paths between nodes: a bubble waits for ever for a socket.
const outside = "a test cluster makes none"

func newApps(n *engine.Node) (*apps, error) {
	ctx, stop := context.WithCancel(context.Background())
	a := &apps{stop: stop, done: make(chan struct{})}
	var err error
	a.server, err = server.NewServer(ctx, server.Options{
		Authorize: func(c attach.Credentials) (attach.Credentials, error) {
			c.Admin = a.admin.Load()
			return c, nil
		},
		NewSession: func(c attach.Credentials) (attach.NodeSession, error) { return n.NewSession(c), nil },
		NoShmPaths: outside,
		NoPaths:    outside,
	})
	if err != nil {
		stop()
		return nil, err
	}
	go func() {
		defer close(a.done)
		_ = a.server.Serve(nil) // without a listener nothing fails
	}()
	return a, nil
}

// attach returns a new application. One call runs at a time.
func (a *apps) attach(admin bool) (*fabric.Node, error) {
	a.admin.Store(admin)
	s, err := client.AttachTo(context.Background(), a.server)
	if err != nil {
		return nil, err
	}
	return hook.Node(s).(*fabric.Node), nil
}

// close returns when the node, which has ended, holds nothing of its applications.
func (a *apps) close() {
	a.stop()
	<-a.done
}
