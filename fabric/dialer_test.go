package fabric_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/fabric/fabrictest"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/test/bubble"
)

// attaching returns a function that attaches to node i while up says that it is there.
func attaching(c *fabrictest.Cluster, i int, up *atomic.Bool) func(context.Context) (*fabric.Node, error) {
	return func(context.Context) (*fabric.Node, error) {
		if !up.Load() {
			return nil, &fabric.OpError{Op: "attach", Local: fabric.Addr{Node: fabric.NoNode}, Err: status.NoDevice}
		}
		return c.App(i, false), nil
	}
}

// A Dialer and a listener outlive the fabricd of each: they attach again, the listener
// serves its name again, and dials wait meanwhile.
func TestDialerAndListenerOutliveTheirNodes(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := fabrictest.NewCluster(t, 3)
		var up [3]atomic.Bool
		up[1].Store(true)
		up[2].Store(true)
		var reported []error
		config := fabric.ListenConfig{Attach: attaching(c, 1, &up[1]), Lost: func(err error) { reported = append(reported, err) }}
		l, err := config.Listen(t.Context(), 0, fabric.Service("shop"))
		if err != nil {
			t.Fatal(err)
		}
		served := make(chan error, 1)
		srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "at "+r.Host) })}
		go func() { served <- srv.Serve(l) }()
		d := &fabric.Dialer{Attach: attaching(c, 2, &up[2]), Wait: time.Minute}
		transport := &http.Transport{DialContext: d.DialContext}
		client := &http.Client{Transport: transport}
		get := func(when string) {
			t.Helper()
			resp, err := client.Get("http://shop.fabric/")
			if err != nil {
				t.Fatalf("%s: %v", when, err)
			}
			defer resp.Body.Close()
			if text, err := io.ReadAll(resp.Body); err != nil || string(text) != "at shop.fabric" {
				t.Fatalf("%s: %q, %v", when, text, err)
			}
		}
		down := func(i int, away time.Duration) {
			up[i].Store(false)
			c.Kill(i)
			time.AfterFunc(away, func() {
				c.Restart(i)
				up[i].Store(true)
			})
			transport.CloseIdleConnections() // a request on a connection that was reset may have been served
		}
		get("at first")
		down(1, 5*time.Second)
		get("after the server's fabricd went and came back")
		down(2, 5*time.Second)
		get("after the client's did")
		if len(reported) < 2 || reported[0] == nil || reported[len(reported)-1] != nil {
			t.Errorf("the listener's end and return were reported as %v", reported)
		}
		if err := srv.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("Serve: %v", err)
		}
		transport.CloseIdleConnections()
		for _, close := range []func() error{d.Close, config.Close, d.Close, config.Close} {
			if err := close(); err != nil {
				t.Error(err)
			}
		}
		if _, err := d.Dial(t.Context(), "shop"); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Dial after Close: %v", err)
		}
	})
}

func TestDialerWaits(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := fabrictest.NewCluster(t, 2)
		var up atomic.Bool
		up.Store(true)
		for address, want := range map[string]struct {
			wait, takes time.Duration
			errno       syscall.Errno
		}{
			"nowhere":  {3 * time.Second, 3 * time.Second, syscall.ENODEV},
			"elsewher": {-1, 0, syscall.ENODEV},
			"default":  {0, 10 * time.Second, syscall.ENODEV},
			"1:9":      {time.Second, time.Second, syscall.ECONNREFUSED},
			"no/name":  {time.Minute, 0, syscall.EINVAL},
		} {
			d := &fabric.Dialer{Attach: attaching(c, 0, &up), Wait: want.wait}
			began := time.Now()
			_, err := d.Dial(t.Context(), address)
			if took := time.Since(began); !errors.Is(err, want.errno) || took < want.takes || took > want.takes+10*time.Millisecond {
				t.Errorf("Dial(%q) failed after %v: %v; want %v after %v", address, took, err, want.errno, want.takes)
			}
			d.Close()
		}
		up.Store(false)
		d := &fabric.Dialer{Attach: attaching(c, 0, &up)}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := d.Dial(ctx, "db"); !errors.Is(err, syscall.ENODEV) {
			t.Errorf("without a fabricd: %v", err)
		}
		time.AfterFunc(3*time.Second, func() {
			up.Store(true)
			answers(t, c.Node(1), "late", "x")
		})
		if _, err := d.Dial(t.Context(), "late"); err != nil {
			t.Errorf("a service that comes while it is waited for: %v", err)
		}
		d.Close()
	})
}

// Wait ends a connect that is under way, also one that others wait for a place behind.
func TestDialerWaitBoundsTheConnect(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := fabrictest.NewCluster(t, 2)
		var up atomic.Bool
		up.Store(true)
		silent, err := c.Node(1).Listen(0, fabric.Service("silent"), fabric.Backlog(1)) // accepts none
		if err != nil {
			t.Fatal(err)
		}
		const wait = 1500 * time.Millisecond
		for _, address := range []string{"silent", silent.Addr().String()} {
			d := &fabric.Dialer{Attach: attaching(c, 0, &up), Wait: wait}
			began := time.Now()
			failed := make(chan error, 3)
			for range cap(failed) {
				go func() {
					_, err := d.Dial(t.Context(), address)
					failed <- err
				}()
			}
			for range cap(failed) {
				err := <-failed
				if took := time.Since(began); took != wait || !errors.Is(err, syscall.ETIMEDOUT) && !errors.Is(err, syscall.ECONNREFUSED) {
					t.Errorf("Dial(%q) failed after %v: %v; want a time-out or a full backlog after %v", address, took, err, wait)
				}
			}
			d.Close()
		}
	})
}

func TestDialerTakesNodesInTurn(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := fabrictest.NewCluster(t, 3)
		var up atomic.Bool
		up.Store(true)
		for i := range 3 {
			answers(t, c.Node(i), "db", fmt.Sprint(i))
		}
		d := &fabric.Dialer{Attach: attaching(c, 0, &up), RoundRobin: true}
		defer d.Close()
		got := ""
		for range 6 {
			conn, err := d.Dial(t.Context(), "db")
			if err != nil {
				t.Fatal(err)
			}
			word, _ := io.ReadAll(conn)
			conn.Close()
			got += string(word)
		}
		if got != "012012" {
			t.Errorf("dials went to the nodes %s, want 012012", got)
		}
	})
}
