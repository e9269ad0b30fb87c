package appsmoke

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/fabric/fabrictest"
)

// A pair is two forwarders across a cluster in memory: into node 1, out of node 0.
type pair struct {
	c        *fabrictest.Cluster
	in, out  *forwarder
	entrance string // the TCP address that clients dial

	mu   sync.Mutex // guards down, and that no application attaches to a node that is
	down [2]bool
}

// newPair forwards to the TCP server at an address. It ends with t.
func newPair(t *testing.T, server string) *pair {
	t.Helper()
	c := fabrictest.NewCluster(t, 2)
	p := &pair{c: c}
	at := func(i int, tcp string) *forwarder {
		attach := func(context.Context) (*fabric.Node, error) {
			p.mu.Lock()
			defer p.mu.Unlock()
			if p.down[i] {
				return nil, errors.New("the node is down")
			}
			return c.App(i, true), nil
		}
		return &forwarder{attach: attach, services: []*service{{name: "server", port: 2050, tcp: tcp}}}
	}
	p.in, p.out = at(1, "127.0.0.1:0"), at(0, server)
	listeners, err := listen(p.in.services)
	if err != nil {
		t.Fatal(err)
	}
	p.entrance = listeners[0].Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { p.in.enter(ctx, 0, listeners) })
	running.Go(func() { p.out.leave(ctx) })
	t.Cleanup(running.Wait)
	t.Cleanup(cancel)
	return p
}

func (p *pair) kill(i int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down[i] = true
	p.c.Kill(i)
}

func (p *pair) restart(i int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.c.Restart(i)
	p.down[i] = false
}

// serve runs a TCP server that gives each connection to handle. It ends with t.
func serve(t *testing.T, handle func(net.Conn)) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer c.Close()
				handle(c)
			})
		}
	})
	t.Cleanup(all.Wait)
	t.Cleanup(func() { l.Close() })
	return l.Addr().String()
}

// dial connects through the forwarders. The connection ends with t.
func (p *pair) dial(t *testing.T) (net.Conn, error) {
	t.Helper()
	c, err := net.Dial("tcp", p.entrance)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { c.Close() })
	return c, c.SetDeadline(time.Now().Add(stepLimit))
}

// said is what the servers say first.
const said = "here"

// reached waits until a new connection gets that.
func (p *pair) reached(t *testing.T) net.Conn {
	t.Helper()
	var c net.Conn
	err := await(stepLimit, func() (err error) {
		if c, err = p.dial(t); err == nil {
			_, err = io.ReadFull(c, make([]byte, len(said)))
		}
		return err
	})
	if err != nil {
		t.Fatalf("the server is not reached: %v", err)
	}
	return c
}

func TestForwarderCarriesEveryByteAndTheEnd(t *testing.T) {
	file := fileContents()[:3<<20]
	p := newPair(t, serve(t, func(c net.Conn) {
		_, _ = io.WriteString(c, said)
		got := make([]byte, len(file))
		if _, err := io.ReadFull(c, got); err == nil {
			_, _ = c.Write(got)
		}
	}))
	c := p.reached(t)
	if _, err := c.Write(file); err != nil {
		t.Fatal(err)
	}
	back, err := io.ReadAll(c)
	if err != nil || !bytes.Equal(back, file) {
		t.Errorf("%d of %d bytes came back: %v", len(back), len(file), err)
	}
	err = await(stepLimit, func() error {
		if r := p.in.services[0].read(); r.Open != 0 || r.Ends == 0 || r.Resets != 0 || r.Bytes != int64(len(said)+len(file)) {
			return errors.New("still running")
		}
		return nil
	})
	if err != nil {
		t.Errorf("the meter says %+v", p.in.services[0].read())
	}
}

// TestForwarderTurnsALossIntoAReset loses the node of either side while the server
// sends, and starts it again.
func TestForwarderTurnsALossIntoAReset(t *testing.T) {
	p := newPair(t, serve(t, func(c net.Conn) {
		_, err := io.WriteString(c, said)
		for err == nil {
			_, err = c.Write(make([]byte, copyBuffer))
		}
	}))
	for _, lost := range []int{0, 1} {
		c := p.reached(t)
		p.kill(lost)
		if n, err := io.Copy(io.Discard, c); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("node %d was killed: after %d bytes the client got %v, want ECONNRESET", lost, n, err)
		}
		p.restart(lost)
		p.reached(t).Close()
	}
}

func TestForwarderResetsWhatItCannotCarry(t *testing.T) {
	p := newPair(t, serve(t, func(c net.Conn) { _, _ = io.WriteString(c, said) }))
	p.reached(t).Close()
	p.kill(0)
	c, err := p.dial(t)
	if err == nil {
		_, err = c.Read(make([]byte, 1))
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a connection to a lost node: %v, want ECONNRESET", err)
	}
}

func TestMeterKnowsTheLongestPause(t *testing.T) {
	at := time.Now()
	var r reading
	r.pause(at, at.Add(time.Second))
	r.pause(at.Add(time.Second), at.Add(3*time.Second))
	r.pause(at.Add(3*time.Second), at.Add(4*time.Second))
	if got := r.PauseTo.Sub(r.PauseFrom); got != 2*time.Second || !r.PauseFrom.Equal(at.Add(time.Second)) {
		t.Errorf("a pause of %v from %v, want 2s from the first second", got, r.PauseFrom.Sub(at))
	}
}
