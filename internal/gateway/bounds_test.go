package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/fabric/fabrictest"
	"github.com/fabricd/fabricd/internal/gateway/spec"
	"github.com/fabricd/fabricd/internal/test/bubble"
)

// TestPlacesAreBounded: connections beyond them are reset at once, and counted.
func TestPlacesAreBounded(t *testing.T) {
	w := newWorld(t)
	at, forwarded, _ := func() (string, <-chan spec.Event, <-chan spec.Event) {
		a, e, f := w.chain(echoAll, "", " max 2")
		return a, f, e
	}()
	var open []conn
	for range 2 {
		open = append(open, dial(t, at))
		await(t, forwarded, spec.Opened)
	}
	if err := dialReset(t, at); err != nil {
		t.Error(err)
	}
	if ev := await(t, forwarded, spec.Refused); !strings.Contains(ev.Detail, "all of its 2 connections") {
		t.Errorf("%+v", ev)
	}
	open[0].CloseWrite()
	await(t, forwarded, spec.Closed)
	c := dial(t, at)
	io.WriteString(c, "hello")
	c.CloseWrite()
	if got, err := io.ReadAll(c); string(got) != "hello" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
}

// TestARingOverTwoNodesEndsAtABound: a client that enters it is reset, its connections end, and the
// gateway with the bound names the one that it leads to, to this node alone.
func TestARingOverTwoNodesEndsAtABound(t *testing.T) {
	w := newWorld(t)
	at, back := freeAddress(t), freeAddress(t)
	_, exposed, _ := w.run(1, spec.Expose, "2050="+back+" max 8")
	w.run(0, spec.Expose, "2051="+at)
	w.run(1, spec.Forward, back+"=0:2051")
	_, forwarded, _ := w.run(0, spec.Forward, at+"=1:2050 wait 0s")
	if err := dialReset(t, at); err != nil {
		t.Error(err)
	}
	want := "node-0 has its share of connections, 6 of 8; they lead on by forward " + back + "=0:2051, perhaps in a ring"
	if ev := await(t, exposed, spec.Refused); ev.Detail != want {
		t.Errorf("%q, want %q", ev.Detail, want)
	}
	if ev := await(t, forwarded, spec.Refused); strings.Contains(ev.Detail, "ring") {
		t.Errorf("the other node is told %q", ev.Detail)
	}
	for limit := time.Now().Add(patience); w.at[1].List()[0].Open > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("it has connections still: %+v", w.at[1].List()[0])
		}
	}
}

// TestNoMemberTakesAllPlaces of an expose.
func TestNoMemberTakesAllPlaces(t *testing.T) {
	w := &world{t: t, cluster: fabrictest.NewCluster(t, 3)}
	w.at[1] = New(func(context.Context) (*fabric.Node, error) { return w.cluster.App(1, true), nil }, zerolog.Nop())
	t.Cleanup(w.at[1].Close)
	target := serve(t, "tcp", func(c conn) { io.Copy(c, c) })
	_, exposed, _ := w.run(1, spec.Expose, "2050="+target+" max 8")
	say := func(node int) error {
		c, err := w.cluster.App(node, true).Dial(t.Context(), "1:2050")
		if err != nil {
			return err
		}
		t.Cleanup(func() { c.Close() })
		c.SetDeadline(time.Now().Add(patience))
		c.Write([]byte("x")) // the read returns the result
		_, err = c.Read(make([]byte, 1))
		return err
	}
	for i := range 10 {
		err := say(0)
		if (err == nil) != (i < 6) {
			t.Fatalf("connection %d of the hostile member: %v", i+1, err)
		}
		if err == nil {
			continue
		}
		const want = "node-0 has its share of connections, 6 of 8"
		if !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("it gets %v", err)
		}
		if i > 6 {
			continue // equal ones are reported once
		}
		if ev := await(t, exposed, spec.Refused); ev.Detail != want {
			t.Errorf("%+v", ev)
		}
	}
	if err := say(2); err != nil {
		t.Errorf("another member: %v", err)
	}
}

// TestWaitingClientsLeavePlaces to those of a name that is served.
func TestWaitingClientsLeavePlaces(t *testing.T) {
	w := newWorld(t)
	target := serve(t, "tcp", echoAll)
	w.run(1, spec.Expose, "2050="+target)
	at, events, _ := w.run(0, spec.HTTPProxy, "0 max 4 wait 10m")
	ask := func(name string) conn {
		c := dial(t, at)
		fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\n\r\n", name)
		return c
	}
	for range 3 {
		ask("1.fabric:2051")
	}
	if ev := await(t, events, spec.Refused); !strings.HasPrefix(ev.Detail, "2 connections wait already: ") {
		t.Errorf("%+v", ev)
	}
	answer := make([]byte, 12)
	if _, err := io.ReadFull(ask("1.fabric:2050"), answer); string(answer) != "HTTP/1.1 200" {
		t.Errorf("another name: %q, %v", answer, err)
	}
}

// A slow is a connection that takes so many bytes a second.
type slow struct {
	conn
	rate  int
	ended chan struct{}
}

func (s *slow) Write(p []byte) (int, error) {
	select {
	case <-time.After(time.Duration(len(p)) * time.Second / time.Duration(s.rate)):
		return len(p), nil
	case <-s.ended:
		return 0, net.ErrClosed
	}
}

func (s *slow) Close() error { close(s.ended); return nil }

func (*slow) CloseWrite() error { return nil }

func (*slow) SetLinger(int) error { return nil }

func (s *slow) RemoteAddr() net.Addr { return &net.TCPAddr{} }

// A source is a connection that has sent so many bytes, and its end.
type source struct {
	slow
	left int
}

func (s *source) Read(p []byte) (int, error) {
	n := min(len(p), s.left)
	if s.left -= n; n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

// TestASlowWriteIsNotIdle: its bytes count as they go.
func TestASlowWriteIsNotIdle(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			rate int
			want string
		}{{32 << 10, ""}, {4 << 10, "no byte for 1s"}} {
			const size = 1 << 20
			client := &source{slow{ended: make(chan struct{})}, size}
			server := &source{slow{rate: c.rate, ended: make(chan struct{})}, 0}
			carried := &carrier{ends: ends{client, server}, idle: time.Second}
			err := carried.run()
			if (err == nil) != (c.want == "") || err != nil && err.Error() != c.want {
				t.Errorf("%d bytes a second: %v, want %q", c.rate, err, c.want)
			}
			if n := carried.sent.Load(); (n == size) != (err == nil) {
				t.Errorf("%d bytes a second: %d were sent, %v", c.rate, n, err)
			}
		}
	})
}

// TestAnIdleConnectionIsReset, and one that is in use is not.
func TestAnIdleConnectionIsReset(t *testing.T) {
	w := newWorld(t)
	at, _, forwarded := w.chain(func(c conn) { io.Copy(c, c) }, "", " idle 1s")
	idle, busy := dial(t, at), dial(t, at)
	over := make(chan error, 1)
	go func() { over <- reset(idle) }()
	for waits := true; waits; {
		select {
		case err := <-over:
			if err != nil {
				t.Error(err)
			}
			waits = false
		case <-time.After(100 * time.Millisecond):
			io.WriteString(busy, "x")
			if _, err := io.ReadFull(busy, make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if ev := await(t, forwarded, spec.Closed); ev.Detail != "reset: no byte for 1s" {
		t.Errorf("%+v", ev)
	}
}

// TestAThousandConnections at a time.
func TestAThousandConnections(t *testing.T) {
	w := newWorld(t)
	at, _, _ := w.chain(func(c conn) { io.Copy(c, c); c.CloseWrite() }, "", " wait 30s")
	var all sync.WaitGroup
	var reached sync.WaitGroup
	reached.Add(1000)
	failed := make(chan error, 1000)
	for i := range 1000 {
		all.Go(func() {
			c, err := net.Dial("tcp", at)
			if err != nil {
				reached.Done()
				failed <- err
				return
			}
			defer c.Close()
			word := fmt.Appendf(nil, "%08d", i)
			c.Write(word)
			got := make([]byte, len(word))
			_, err = io.ReadFull(c, got)
			reached.Done()
			reached.Wait() // so that all are there at once
			if err == nil {
				err = c.(*net.TCPConn).CloseWrite()
			}
			if rest, rerr := io.ReadAll(c); err != nil || rerr != nil || len(rest) > 0 || !bytes.Equal(got, word) {
				failed <- fmt.Errorf("%d: %q, then %d bytes, %v, %v", i, got, len(rest), err, rerr)
			}
		})
	}
	all.Wait()
	close(failed)
	for err := range failed {
		t.Error(err)
	}
}

// TestCommandsAreBounded: they must not take the admin interface's connections.
func TestCommandsAreBounded(t *testing.T) {
	w := newWorld(t)
	for range maxCommands {
		w.run(0, spec.Forward, "0=1:2050")
	}
	g, err := spec.Parse(spec.Forward, "0=1:2050")
	if err != nil {
		t.Fatal(err)
	}
	if err := w.at[0].Run(t.Context(), g, func(spec.Event) {}); err == nil || !strings.Contains(err.Error(), "lines of its configuration") {
		t.Errorf("one more: %v", err)
	}
	w.at[0].Set([]spec.Gateway{g})
	if n := len(w.at[0].List()); n != maxCommands+1 {
		t.Errorf("%d gateways, want a line beside %d commands", n, maxCommands)
	}
}

// TestAWaitingClientThatGoesAwayLeavesItsPlace, and one that has ended its direction does
// not: it gets its answer.
func TestAWaitingClientThatGoesAwayLeavesItsPlace(t *testing.T) {
	w := newWorld(t)
	target := serve(t, "tcp", echoAll)
	path := filepath.Join(t.TempDir(), "s")
	for _, c := range []struct {
		kind     spec.Kind
		line     string
		ask      string
		greeting string // in front of the echo
		gone     func(conn)
	}{
		{spec.Forward, "127.0.0.1:0=db", "", "", func(c conn) { abort(net.ErrClosed, c) }},
		{spec.Forward, path + "=db", "", "", func(c conn) { finish(c) }},
		{spec.HTTPProxy, "0", "CONNECT db.fabric:1 HTTP/1.1\r\n\r\n", "HTTP/1.1 200 Connection established\r\n\r\n", func(c conn) { abort(net.ErrClosed, c) }},
	} {
		at, events, stop := w.run(0, c.kind, c.line+" max 2 wait 10m") // so that one may wait
		gone := dial(t, at)
		io.WriteString(gone, c.ask+"unread")
		waiting(t, w, 1)
		c.gone(gone)
		if ev := await(t, events, spec.Refused); !strings.Contains(ev.Detail, "the client has gone away: ") {
			t.Errorf("%s: %+v", c.line, ev)
		}
		patient := dial(t, at)
		io.WriteString(patient, c.ask+"hello")
		patient.CloseWrite()
		waiting(t, w, 1)
		_, _, close := w.run(1, spec.Expose, "db="+target)
		if got, err := io.ReadAll(patient); string(got) != c.greeting+"hello" || err != nil {
			t.Errorf("%s: a client that has ended its direction got %q, %v", c.line, got, err)
		}
		close()
		stop()
	}
}

// waiting waits until n connections of the gateways at node 0 wait for their service.
func waiting(t *testing.T, w *world, n int) {
	t.Helper()
	for began := time.Now(); ; time.Sleep(time.Millisecond) {
		got := 0
		w.at[0].mu.Lock()
		for _, g := range w.at[0].all {
			switch side := g.side.(type) {
			case forwarded:
				got += len(side.waiting)
			case proxy:
				got += len(side.waiting)
			}
		}
		w.at[0].mu.Unlock()
		if got == n {
			return
		}
		if time.Since(began) > patience {
			t.Fatalf("%d connections wait, want %d", got, n)
		}
	}
}
