package conformance

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"time"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/internal/wait"
)

// serviceName is one that no other row serves.
func serviceName() string { return fmt.Sprintf("s-%016x", rand.Uint64()) }

// serves listens on app for a name, and waits until the near node knows it.
func (c *check) serves(app *fabric.Node, name string) *fabric.Listener {
	c.Helper()
	notified := c.notified(fabric.ServiceAdded, name, app.ID())
	l, err := app.Listen(0, fabric.Service(name))
	if err != nil {
		c.Fatalf("listen as %s: %v", name, err)
	}
	c.Cleanup(func() { l.Close() })
	notified()
	return l
}

// notified begins to watch the near node for an event. await waits for it.
func (c *check) notified(kind fabric.ServiceEventKind, name string, node fabric.NodeID) (await func()) {
	c.Helper()
	got := make(chan struct{}, 1)
	cancel := c.near.OnService(func(ev fabric.ServiceEvent) {
		if ev.Kind == kind && ev.Service.Name == name && ev.Service.Node == node {
			wait.Notify(got)
		}
	})
	return func() {
		c.Helper()
		defer cancel()
		select {
		case <-got:
		case <-c.ctx.Done():
			c.Fatalf("no event %d of service %s", kind, name)
		}
	}
}

// meets dials an address from the near node, and checks that l accepts that.
func (c *check) meets(l *fabric.Listener, address string) {
	c.Helper()
	accepted := make(chan error, 1)
	go func() {
		conn, err := l.AcceptConn(c.ctx)
		if err == nil {
			defer conn.Close()
			_, err = conn.Write([]byte("x"))
		}
		accepted <- err
	}()
	conn, err := c.near.Dial(c.ctx, address)
	if err != nil {
		c.Fatalf("dial %s: %v", address, err)
	}
	defer conn.Close()
	if n, err := conn.Read(make([]byte, 2)); n != 1 || err != nil {
		c.Errorf("read: %d, %v", n, err)
	}
	c.must(<-accepted)
}

// serviceRows are about names, which SCIF does not have.
var serviceRows = []row{
	{call: "service", name: "a name=the listener that serves it, by itself, at a node's name, at its ID", check: func(c *check) {
		name := serviceName()
		l := c.serves(c.far, name)
		c.meets(l, name)
		c.meets(l, name+"@"+c.far.Name())
		c.meets(l, fmt.Sprint(name, "@", c.far.ID()))
	}},
	{call: "service", name: "a port at a node's name=the listener there", check: func(c *check) {
		l, err := c.far.Listen(0)
		c.must(err)
		defer l.Close()
		c.meets(l, fmt.Sprint(c.far.Name(), ":", l.Addr().(fabric.Addr).Port))
	}},
	{call: "service", name: "a name that nothing serves=ENODEV", check: func(c *check) {
		for _, address := range []string{serviceName(), serviceName() + "@" + c.far.Name(), serviceName() + "@65000", "no-such-node:5"} {
			c.want(errOf(c.near.Dial(c.ctx, address)), syscall.ENODEV)
		}
	}},
	{call: "service", name: "no name=EINVAL", check: func(c *check) {
		for _, name := range []string{"", "7", "a b", "a:1", "a@b", strings.Repeat("x", 64)} {
			c.want(errOf(c.near.Listen(0, fabric.Service(name))), syscall.EINVAL)
		}
		c.want(errOf(c.near.Dial(c.ctx, "a b")), syscall.EINVAL)
	}},
	{call: "service", name: "served twice on a node=EADDRINUSE", only: []Pair{SameNode, SameApp}, check: func(c *check) {
		name := serviceName()
		c.serves(c.far, name)
		c.want(errOf(c.near.Listen(0, fabric.Service(name))), syscall.EADDRINUSE)
	}},
	{call: "service", name: "Listen as a name in a state that does not allow it=as without", check: func(c *check) {
		c.want(c.unbound().Endpoint.Listen(1, fabric.Service(serviceName())), syscall.EINVAL)
		c.want(c.listening().Endpoint.Listen(1, fabric.Service(serviceName())), syscall.EISCONN)
		c.want(c.closed().Endpoint.Listen(1, fabric.Service(serviceName())), syscall.EBADF)
	}},
	{call: "service", name: "the listener closes=the name is gone, and free", check: func(c *check) {
		name := serviceName()
		l := c.serves(c.far, name)
		gone := c.notified(fabric.ServiceRemoved, name, c.far.ID())
		c.must(l.Close())
		gone()
		c.want(errOf(c.near.Dial(c.ctx, name)), syscall.ENODEV)
		c.meets(c.serves(c.far, name), name)
	}},
	{call: "service", name: "the application ends=the name is gone", only: []Pair{Across, SameNode}, check: func(c *check) {
		name := serviceName()
		app := c.site.App(int(c.far.ID()), false)
		c.serves(app, name)
		gone := c.notified(fabric.ServiceRemoved, name, c.far.ID())
		c.must(app.Close())
		gone()
	}},
	{call: "service", name: "the node is lost=the name is gone, and back with the next incarnation", alone: true, only: []Pair{Across}, check: func(c *check) {
		name := serviceName()
		c.serves(c.far, name)
		c.kill()
		if _, err := c.near.Dial(c.ctx, name); !errors.Is(err, syscall.ENODEV) {
			c.Errorf("behind the removal: %v", err)
		}
		c.site.Restart(1)
		c.meets(c.serves(c.site.App(1, false), name), name)
	}},
	{call: "service", name: "a port that another name has=ECONNREFUSED behind the name", check: func(c *check) {
		name, other := serviceName(), serviceName()
		l := c.serves(c.far, name)
		port := l.Addr().(fabric.Addr).Port
		c.must(l.Close())
		again, err := c.far.Listen(port, fabric.Service(other)) // the near node may not know yet
		c.must(err)
		defer again.Close()
		for began := time.Now(); ; {
			_, err := c.near.Dial(c.ctx, name)
			if errors.Is(err, syscall.ENODEV) {
				break
			}
			if !errors.Is(err, syscall.ECONNREFUSED) || time.Since(began) > patience {
				c.Fatalf("dial of a name that is gone: %v", err)
			}
		}
	}},
}
