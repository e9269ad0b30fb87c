package fabric_test

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/fabric/fabrictest"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/client"
	"github.com/fabricd/fabricd/internal/attach/server"
	"github.com/fabricd/fabricd/internal/hook"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/test/bubble"
)

// A frozenSession is that of a node that stops responding at a request.
type frozenSession struct {
	attach.Session
	at string // "open" or "bind"
}

func (s frozenSession) OpenContext(ctx context.Context) (attach.Endpoint, error) {
	if s.at == "open" {
		select {
		case <-ctx.Done():
			return nil, status.Of(ctx.Err())
		case <-s.Done():
			return nil, status.NoDevice
		}
	}
	ep, err := s.Session.OpenContext(ctx)
	return frozenEndpoint{ep, s.Done(), make(chan struct{})}, err
}

type frozenEndpoint struct {
	attach.Endpoint
	over   <-chan struct{}
	closed chan struct{}
}

func (e frozenEndpoint) Bind(addr.Port) (addr.Port, error) {
	select {
	case <-e.closed:
	case <-e.over:
	}
	return 0, status.Reset
}

func (e frozenEndpoint) Close() error {
	err := e.Endpoint.Close()
	if err == nil {
		close(e.closed)
	}
	return err
}

// attachTo returns a session of an application on node 0.
func attachTo(t *testing.T, c *fabrictest.Cluster) (attach.Session, error) {
	ctx, cancel := context.WithCancel(context.Background())
	s, err := server.NewServer(ctx, server.Options{NewSession: func(cred attach.Credentials) (attach.NodeSession, error) { return hook.Session(c, 0, cred), nil }})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(nil) }()
	t.Cleanup(func() { cancel(); <-served })
	return client.AttachTo(ctx, s)
}

// Accepts end with net.ErrClosed in each step of listening again, at once when the listener
// closes, and behind a pause at most when its ListenConfig does.
func TestAcceptEndsWhileItListensAgain(t *testing.T) {
	for _, at := range []string{"attach", "open", "bind"} {
		for _, by := range []string{"listener", "config"} {
			t.Run(at+", closed by the "+by, func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) { testAcceptEnds(t, at, by == "config") })
			})
		}
	}
}

func testAcceptEnds(t *testing.T, at string, byConfig bool) {
	c := fabrictest.NewCluster(t, 1)
	var again atomic.Bool
	config := fabric.ListenConfig{Attach: func(ctx context.Context) (*fabric.Node, error) {
		switch {
		case !again.Load():
			return c.App(0, false), nil
		case at == "attach":
			<-ctx.Done()
			return nil, ctx.Err()
		}
		session, err := attachTo(t, c)
		if err != nil {
			return nil, err
		}
		return hook.Node(frozenSession{session, at}).(*fabric.Node), nil
	}}
	defer config.Close()
	l, err := config.Listen(t.Context(), 2050)
	if err != nil {
		t.Fatal(err)
	}
	failed := make(chan error, 2)
	for range cap(failed) {
		go func() {
			_, err := l.Accept()
			failed <- err
		}()
	}
	synctest.Wait()
	again.Store(true)
	c.Restart(0)
	time.Sleep(time.Minute)
	if len(failed) > 0 {
		t.Fatalf("Accept has ended before Close: %v", <-failed)
	}
	began := time.Now()
	end, most := l.Close, time.Duration(0)
	if byConfig {
		end, most = config.Close, 3*time.Second
	}
	if err := end(); err != nil {
		t.Error(err)
	}
	for range cap(failed) {
		if err := <-failed; !errors.Is(err, net.ErrClosed) || time.Since(began) > most {
			t.Errorf("Accept ended %v after Close: %v, want net.ErrClosed within %v", time.Since(began), err, most)
		}
	}
}
