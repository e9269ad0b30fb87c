package engine_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/engine"
	"github.com/fabricd/fabricd/internal/path"
	"github.com/fabricd/fabricd/internal/status"
)

// A pathed is a fabric whose paths are sockets on loopback. Node 0 dials.
type pathed struct {
	*fabric
	net engine.PathNetwork
}

// newPathed starts two nodes. show is called with the far end of each dialed
// socket; nil: the right node accepts it.
func newPathed(t *testing.T, show func(p *pathed, far *net.TCPConn)) *pathed {
	p := &pathed{}
	if show == nil {
		show = func(p *pathed, far *net.TCPConn) { p.nodes[1].AcceptPath(far, far) }
	}
	p.net.Dial = func(ctx context.Context, _ string) (*net.TCPConn, error) {
		near, far := tcpPair(t)
		go show(p, far)
		return near, nil
	}
	p.fabric = newFabricOf(t, 2, engine.Config{Paths: &p.net})
	return p
}

func tcpPair(t *testing.T) (near, far *net.TCPConn) {
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if near, err = net.DialTCP("tcp", nil, l.Addr().(*net.TCPAddr)); err != nil {
		t.Fatal(err)
	}
	if far, err = l.AcceptTCP(); err != nil {
		t.Fatal(err)
	}
	return near, far
}

// ask asks for the path at both ends.
func (p *pathed) ask(a, b attach.NodeEndpoint) (sockets [2]attach.PathSocket, errs [2]error) {
	var wg sync.WaitGroup
	for i, ep := range []attach.NodeEndpoint{a, b} {
		wg.Go(func() {
			sockets[i], errs[i] = ep.Path(p.t.Context(), path.Hash{byte(i + 1)}, func() {})
		})
	}
	wg.Wait()
	return sockets, errs
}

// conns makes the sockets connections.
func conns(t *testing.T, sockets [2]attach.PathSocket) (c [2]net.Conn) {
	for i, s := range sockets {
		var err error
		if c[i], err = net.FileConn(s.File); err != nil {
			t.Fatal(err)
		}
		s.File.Close()
		t.Cleanup(func() { c[i].Close() })
	}
	return c
}

// TestAPathJoinsTheTwoApplications: each end gets its side, and the other one's key.
func TestAPathJoinsTheTwoApplications(t *testing.T) {
	p := newPathed(t, nil)
	a, b := p.pair(0, 1)
	sockets, errs := p.ask(a, b)
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
	if !sockets[0].Client || sockets[1].Client || sockets[0].Peer != (path.Hash{2}) || sockets[1].Peer != (path.Hash{1}) {
		t.Errorf("%+v", sockets)
	}
	c := conns(t, sockets)
	if _, err := c[0].Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 5)
	if _, err := io.ReadFull(c[1], got); err != nil || string(got) != "hello" {
		t.Fatalf("%q, %v", got, err)
	}
	if _, err := a.Path(t.Context(), path.Hash{}, func() {}); !errors.Is(err, status.InUse) {
		t.Errorf("a second path: %v", err)
	}
	info := p.nodes[0].Conns()[0].Socket
	if info == nil || !info.TLS || info.SentBytes == 0 || info.Local != c[0].LocalAddr().String() {
		t.Errorf("the table says %+v", info)
	}
}

// TestAPathEndsWithItsConnection: bytes that arrived before the end can be read, and none
// that are sent later, by a peer that goes on sending.
func TestAPathEndsWithItsConnection(t *testing.T) {
	for name, end := range map[string]func(p *pathed, a, b attach.NodeEndpoint){
		"node removed": func(p *pathed, _, _ attach.NodeEndpoint) { p.nodes[0].NodeLost(p.peers[1].Incarnation, "crashed") },
		"aborted":      func(_ *pathed, a, _ attach.NodeEndpoint) { a.Abort("the application died") },
		"node closes":  func(p *pathed, _, _ attach.NodeEndpoint) { p.nodes[0].Close() },
		"path broken":  func(_ *pathed, a, _ attach.NodeEndpoint) { a.NoPath("broken", true) },
	} {
		t.Run(name, func(t *testing.T) {
			p := newPathed(t, nil)
			a, b := p.pair(0, 1)
			sockets, errs := p.ask(a, b)
			if err := errors.Join(errs[:]...); err != nil {
				t.Fatal(err)
			}
			c := conns(t, sockets)
			if _, err := c[1].Write([]byte("before")); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, 6)
			if _, err := io.ReadFull(c[0], got); err != nil {
				t.Fatal(err)
			}
			end(p, a, b)
			late := make(chan error, 1)
			go func() { // a peer that goes on: a stopped process's kernel, or a hostile one
				for {
					if _, err := c[1].Write([]byte("after")); err != nil {
						late <- err
						return
					}
					time.Sleep(time.Millisecond)
				}
			}()
			c[0].SetReadDeadline(time.Now().Add(10 * time.Second))
			if n, err := c[0].Read(got); n != 0 || errors.Is(err, syscall.EAGAIN) || err == nil {
				t.Errorf("after the end: %d bytes, %v", n, err)
			}
			select {
			case <-late:
			case <-time.After(20 * time.Second):
				t.Error("the peer still sends")
			}
			if info := p.nodes[1].Conns(); len(info) > 0 && info[0].Socket != nil {
				t.Logf("node 1 still shows %+v", info[0].Socket)
			}
		})
	}
}

// withPath returns two endpoints of a new fabric and the two ends of their path.
func withPath(t *testing.T) (p *pathed, a, b attach.NodeEndpoint, c [2]net.Conn) {
	t.Helper()
	p = newPathed(t, nil)
	a, b = p.pair(0, 1)
	sockets, errs := p.ask(a, b)
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
	return p, a, b, conns(t, sockets)
}

// TestACloseDeliversWhatThePathHas: the bytes and the end arrive, although this end has
// unread bytes.
func TestACloseDeliversWhatThePathHas(t *testing.T) {
	_, a, b, c := withPath(t)
	if _, err := c[1].Write(make([]byte, 10_000)); err != nil { // for an application that does not read
		t.Fatal(err)
	}
	sent := make([]byte, 200_000)
	go func() {
		if _, err := c[0].Write(sent); err != nil {
			t.Error(err)
		}
		c[0].Close()
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	}()
	c[1].SetReadDeadline(time.Now().Add(20 * time.Second))
	got, err := io.ReadAll(c[1])
	if err != nil || len(got) != len(sent) {
		t.Errorf("%d bytes, %v; want %d and the end", len(got), err, len(sent))
	}
	b.Close()
}

// TestTheNodeSendsTheRestOfAPath: bytes for which the socket had no room arrive behind the
// others, although their application has gone, and a close waits for no reader.
func TestTheNodeSendsTheRestOfAPath(t *testing.T) {
	_, a, b, c := withPath(t)
	sent := fillSocket(t, c[0])
	rest := bytes.Repeat([]byte{7}, path.RestMost)
	if err := a.PathRest(rest); err != nil {
		t.Fatal(err)
	}
	c[0].Close()
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(c[1])
	if err != nil || len(got) != sent+len(rest) || !bytes.Equal(got[sent:], rest) {
		t.Errorf("%d bytes, %v; want %d, the rest, and the end", len(got), err, sent+len(rest))
	}
	b.Close()
}

// TestARestOfAHostileApplication: one that keeps its descriptor, and makes it block, holds up
// neither the node nor the end of the path at the removal of the peer, and the peer sees no
// end in order.
func TestARestOfAHostileApplication(t *testing.T) {
	p, a, b, c := withPath(t)
	sent := fillSocket(t, c[0])
	if err := a.PathRest(make([]byte, path.RestMost)); err != nil {
		t.Fatal(err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	raw, err := c[0].(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) { err = unix.SetNonblock(int(fd), false) }); err != nil {
		t.Fatal(err)
	}
	p.nodes[0].NodeLost(p.peers[1].Incarnation, "banned")
	if n, err := c[0].Write([]byte("after")); err == nil {
		t.Errorf("the application has sent %d bytes after the removal", n)
	}
	got, err := io.ReadAll(c[1])
	if err == nil || len(got) >= sent+path.RestMost {
		t.Errorf("%d bytes, %v; want fewer than %d and a reset", len(got), err, sent+path.RestMost)
	}
	b.Close()
}

// fillSocket writes zeros until c's socket has no room for more.
func fillSocket(t *testing.T, c net.Conn) (sent int) {
	t.Helper()
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for n := 1; n > 0; sent += max(n, 0) {
		if err := raw.Control(func(fd uintptr) { n, _ = unix.Write(int(fd), make([]byte, 4<<10)) }); err != nil {
			t.Fatal(err)
		}
	}
	return sent
}

// TestARestIsBounded: an application has its node keep so much and no more, and none without
// a path. A rest that is refused is given up whole.
func TestARestIsBounded(t *testing.T) {
	p := newPathed(t, nil)
	a, b := p.pair(0, 1)
	near := a
	if err := near.PathRest([]byte{1}); !errors.Is(err, status.Invalid) {
		t.Errorf("without a path: %v", err)
	}
	sockets, errs := p.ask(a, b)
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
	c := conns(t, sockets)
	if err := near.PathRest(make([]byte, path.RestMost)); err != nil {
		t.Fatal(err)
	}
	if err := near.PathRest([]byte{1}); !errors.Is(err, status.Invalid) {
		t.Errorf("over the bound: %v", err)
	}
	if err := near.PathRest(make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	if err := near.PathRest(nil); !errors.Is(err, status.Invalid) {
		t.Errorf("given up: %v", err)
	}
	a.Close()
	if got, err := io.ReadAll(c[1]); err != nil || len(got) != 0 {
		t.Errorf("%d bytes of a rest that was refused, %v", len(got), err)
	}
}

// TestWithoutAPath: each reason is reported to both, the connection goes on, and no socket
// is left.
func TestWithoutAPath(t *testing.T) {
	for name, tt := range map[string]struct {
		show func(p *pathed, far *net.TCPConn)
		set  func(n *engine.PathNetwork)
		want string
	}{
		"the token is another one": {show: func(p *pathed, far *net.TCPConn) {
			if _, err := path.ReadGreeting(far); err != nil {
				p.t.Error(err)
			}
			p.nodes[1].AcceptPath(far, strings.NewReader("P\x01"+strings.Repeat("x", 16)))
		}, want: "data port"},
		"the greeting is none": {show: func(p *pathed, far *net.TCPConn) {
			p.nodes[1].AcceptPath(far, strings.NewReader("P\x02"+strings.Repeat("x", 16)))
		}, want: "data port"},
		"the data port is closed": {set: func(n *engine.PathNetwork) {
			n.Dial = func(context.Context, string) (*net.TCPConn, error) { return nil, syscall.ECONNREFUSED }
		}, want: "data port"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPathed(t, tt.show)
			if tt.set != nil {
				tt.set(&p.net)
			}
			a, b := p.pair(0, 1)
			_, errs := p.ask(a, b)
			for i, err := range errs {
				if !errors.Is(err, status.Again) || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("end %d: %v, want Again because of the %s", i, err, tt.want)
				}
			}
			if _, err := a.Send(t.Context(), []byte("x")); err != nil {
				t.Error(err)
			}
			if n, err := b.Recv(t.Context(), make([]byte, 1)); n != 1 || err != nil {
				t.Errorf("the connection does not go on: %d, %v", n, err)
			}
		})
	}
}

// TestAPathThatThePeerDoesNotWant: an application that does not ask leaves the other one
// on the link, and is notified that it asks.
func TestAPathThatThePeerDoesNotWant(t *testing.T) {
	p := newPathed(t, nil)
	a, b := p.pair(0, 1)
	reported := make(chan struct{})
	b.OnPath(func() { close(reported) })
	_, err := a.Path(t.Context(), path.Hash{}, func() {})
	if !errors.Is(err, status.Again) || !strings.Contains(err.Error(), "does not join") {
		t.Errorf("%v", err)
	}
	<-reported
	if _, err := b.Path(t.Context(), path.Hash{}, func() {}); !errors.Is(err, status.Again) {
		t.Errorf("too late: %v", err)
	}
}

// TestAPathIsTriedAgain: a path that has failed for a passing reason works later, and one
// that can never work is not tried.
func TestAPathIsTriedAgain(t *testing.T) {
	p := newPathed(t, nil)
	dial := p.net.Dial
	p.net.Dial = func(context.Context, string) (*net.TCPConn, error) { return nil, syscall.EMFILE }
	a, b := p.pair(0, 1)
	if _, errs := p.ask(a, b); !errors.Is(errs[0], status.Again) || !errors.Is(errs[1], status.Again) {
		t.Fatalf("without descriptors: %v", errs)
	}
	if _, errs := p.ask(a, b); !errors.Is(errs[0], status.Again) || !errors.Is(errs[1], status.Again) {
		t.Fatalf("at once: %v", errs)
	}
	p.net.Dial = dial
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(700 * time.Millisecond) {
		sockets, errs := p.ask(a, b)
		if errors.Join(errs[:]...) == nil {
			conns(t, sockets)
			break
		}
		if time.Now().After(end) {
			t.Fatal(errs)
		}
	}
	a, b = p.pair(0, 1)
	p.net.Plaintext = true // at both nodes; the frame of one says otherwise
	ep := a
	ep.OnPath(func() { p.net.Plaintext = false; go b.Path(t.Context(), path.Hash{}, func() {}) })
	b.OnPath(func() { p.net.Plaintext = false; go b.Path(t.Context(), path.Hash{}, func() {}) })
	if _, err := ep.Path(t.Context(), path.Hash{}, func() {}); !errors.Is(err, status.NotSupp) {
		t.Errorf("plaintext at one node only: %v", err)
	}
	time.Sleep(700 * time.Millisecond)
	if _, err := ep.Path(t.Context(), path.Hash{}, func() {}); !errors.Is(err, status.NotSupp) {
		t.Errorf("and again: %v", err)
	}
}

// TestTheBoundOfPaths: beyond it connections stay on the link and say so, until a path has
// ended.
func TestTheBoundOfPaths(t *testing.T) {
	p := newPathed(t, nil)
	p.net.Max = 1
	a, b := p.pair(0, 1)
	sockets, errs := p.ask(a, b)
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
	c := conns(t, sockets)
	a2, b2 := p.pair(0, 1)
	for range 2 { // also an attempt that was refused gives its place back
		if _, errs := p.ask(a2, b2); !errors.Is(errs[0], status.Again) || !strings.Contains(errors.Join(errs[:]...).Error(), "max-paths") {
			t.Fatalf("over the bound: %v", errs)
		}
		time.Sleep(600 * time.Millisecond)
	}
	if _, err := a2.Send(t.Context(), []byte("x")); err != nil {
		t.Error(err)
	}
	a.Close()
	b.Close()
	c[0].Close()
	c[1].Close()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(700 * time.Millisecond) {
		sockets, errs := p.ask(a2, b2)
		if errors.Join(errs[:]...) == nil {
			conns(t, sockets)
			return
		}
		if time.Now().After(end) {
			t.Fatal(errs)
		}
	}
}

// swallow makes the socket of c lose all that comes for it, as a hole in the network does.
func swallow(t *testing.T, c net.Conn) { leastTTL(t, c, 255) }

// leastTTL makes the socket of c lose what comes for it with a lower TTL, which is 64 here: the
// socket of a path takes no filter.
func leastTTL(t *testing.T, c net.Conn, ttl int) {
	t.Helper()
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	cerr := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MINTTL, ttl) })
	if err := errors.Join(cerr, err); err != nil {
		t.Fatal("no least TTL of sockets here: ", err)
	}
}

// TestASilentPathIsALoss: a hole that swallows only the path ends its connection at both
// ends, with the cause.
func TestASilentPathIsALoss(t *testing.T) {
	for name, holes := range map[string][]int{"both ways": {0, 1}, "one way": {1}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPathed(t, nil)
			a, b := p.pair(0, 1)
			sockets, errs := p.ask(a, b)
			if err := errors.Join(errs[:]...); err != nil {
				t.Fatal(err)
			}
			c := conns(t, sockets)
			for _, i := range holes {
				swallow(t, c[i])
			}
			for i, ep := range []attach.NodeEndpoint{a, b} {
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				n, err := ep.Recv(ctx, make([]byte, 1))
				cancel()
				if n != 0 || !errors.Is(err, status.Reset) || errors.Is(err, io.EOF) {
					t.Errorf("end %d receives %d, %v", i, n, err)
				}
				c[i].SetReadDeadline(time.Now().Add(10 * time.Second))
				if n, err := c[i].Read(make([]byte, 1)); n != 0 || errors.Is(err, syscall.EAGAIN) {
					t.Errorf("end %d's socket: %d, %v", i, n, err)
				}
				if cause := ep.Cause(); !strings.HasPrefix(cause, "path silent ") {
					t.Errorf("end %d knows the cause %q", i, cause)
				}
			}
			if l := p.nodes[0].Conns(); len(l) != 1 {
				t.Errorf("%d connections are left of the pair", len(l))
			}
		})
	}
}

// TestALossyPathIsNotSilent: of an idle one that loses what comes in a fifth of all moments
// something comes.
func TestALossyPathIsNotSilent(t *testing.T) {
	t.Parallel()
	p := newPathed(t, nil)
	a, b := p.pair(0, 1)
	sockets, errs := p.ask(a, b)
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
	c, r := conns(t, sockets), rand.New(rand.NewPCG(seed(t), 1))
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(12 * time.Second); time.Now().Before(end); <-tick.C {
		for _, c := range c {
			leastTTL(t, c, 255*(r.IntN(5)/4))
		}
	}
	for i, ep := range []attach.NodeEndpoint{a, b} {
		if ev := ep.Ready(); ev&attach.PollHup != 0 {
			t.Errorf("end %d: the connection has ended: %s", i, ep.Cause())
		}
	}
}

// TestAPeerThatDoesNotReadIsNotSilent: its kernel answers.
func TestAPeerThatDoesNotReadIsNotSilent(t *testing.T) {
	t.Parallel()
	p := newPathed(t, nil)
	a, b := p.pair(0, 1)
	sockets, errs := p.ask(a, b)
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
	c := conns(t, sockets)
	for _, c := range c { // each is full, and neither is read
		c.SetWriteDeadline(time.Now().Add(time.Second))
		for err := error(nil); err == nil; {
			_, err = c.Write(make([]byte, 1<<20))
		}
	}
	time.Sleep(9 * time.Second)
	for i, ep := range []attach.NodeEndpoint{a, b} {
		if ev := ep.Ready(); ev&attach.PollHup != 0 {
			t.Errorf("end %d: the connection has ended: %s", i, ep.Cause())
		}
	}
}

// TestADialEndsWithItsPath: the socket of a path that is given up before the peer's port has
// answered is closed at once. It counts no more, so that many would be held beside the bound.
func TestADialEndsWithItsPath(t *testing.T) {
	for name, ask := range map[string]func(ctx context.Context, a attach.NodeEndpoint) error{
		"messages": func(ctx context.Context, a attach.NodeEndpoint) error {
			_, err := a.Path(ctx, path.Hash{1}, func() {})
			return err
		},
		"RMA": func(ctx context.Context, a attach.NodeEndpoint) error {
			_, err := a.RMAPath(ctx, path.Hash{1}, func() {})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			dialed := make(chan *net.TCPConn, 1)
			p := newPathed(t, func(_ *pathed, far *net.TCPConn) { dialed <- far })
			a, b := p.pair(0, 1)
			b.OnPath(func() { go b.Path(t.Context(), path.Hash{2}, func() {}) })
			ctx, cancel := context.WithCancel(t.Context())
			asked := make(chan error, 1)
			go func() { asked <- ask(ctx, a) }()
			far := <-dialed
			defer far.Close()
			cancel()
			if err := <-asked; err == nil {
				t.Error("there is a path")
			}
			far.SetReadDeadline(time.Now().Add(500 * time.Millisecond)) // half of the dial's time
			if _, err := io.Copy(io.Discard, far); err != nil {
				t.Errorf("the socket goes on: %v", err)
			}
		})
	}
}

// TestATokenOpensOnePathOnce: a host that has seen one opens nothing with it.
func TestATokenOpensOnePathOnce(t *testing.T) {
	var greeting []byte
	p := newPathed(t, func(p *pathed, far *net.TCPConn) {
		greeting = make([]byte, path.GreetingLen)
		if _, err := io.ReadFull(far, greeting); err != nil {
			p.t.Error(err)
		}
		p.nodes[1].AcceptPath(far, strings.NewReader(string(greeting)))
	})
	a, b := p.pair(0, 1)
	sockets, errs := p.ask(a, b)
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
	conns(t, sockets)
	near, far := tcpPair(t)
	p.nodes[1].AcceptPath(far, strings.NewReader(string(greeting)))
	near.SetReadDeadline(time.Now().Add(10 * time.Second))
	if n, err := near.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("a token that was used: %d bytes, %v", n, err)
	}
	near.Close()
}
