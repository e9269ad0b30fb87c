package client

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/fence"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/rma"
)

// writer attaches, connects to the port that its argument names before the
// socket's path, and writes to the peer's first window until its end.
func writer(arg string) error {
	var port addr.Port
	var path string
	if _, err := fmt.Sscanf(arg, "%d %s", &port, &path); err != nil {
		return err
	}
	ctx := context.Background()
	c, err := Dial(ctx, path)
	if err != nil {
		return err
	}
	e, err := c.Open()
	if err == nil {
		_, err = e.Connect(ctx, addr.Addr{Node: 3, Port: port})
	}
	if err != nil {
		return err
	}
	p := make([]byte, 64<<10)
	for i, said := 0, false; ; i++ {
		for k := range p {
			p[k] = byte(i)
		}
		err := e.VWriteTo(p, rma.FirstOffset, 0)
		if status.Of(err) == status.NoAddress {
			continue // there is no window yet
		}
		if err != nil {
			return err
		}
		if !said {
			fmt.Println("writing", 1)
			said = true
		}
	}
}

// TestAKilledWriterLeavesNothing kills applications in the middle of copies into
// this process's memory.
func TestAKilledWriterLeavesNothing(t *testing.T) {
	s := serve(t, nil)
	s.node.allowDirect()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	c := s.dial(t)
	l := must(c.Open())(t)
	port := must(l.Bind(0))(t)
	if err := l.Listen(8); err != nil {
		t.Fatal(err)
	}
	mem := must(c.Alloc(64 << 10))(t)
	if _, err := mem.(*sessionMemory).name(); err != nil { // the node has mapped it
		t.Fatal(err)
	}
	fds, goroutines, memory := usage(t)
	r := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
	for range 8 {
		k := start(t, s, fmt.Sprintf("ATTACH_TEST_WRITER=%d %s", port, s.path))
		e, _, err := l.Accept(ctx)
		if err != nil {
			t.Fatal(err)
		}
		must(e.Register(mem.Bytes(), rma.FirstOffset, readWrite, rma.MapFixed))(t)
		k.number(t, "writing")
		time.Sleep(time.Duration(r.IntN(2000)) * time.Microsecond)
		k.kill()
		_, err = e.Recv(ctx, make([]byte, 1))
		check(t, "Recv after the death", err, status.Reset)
		check(t, "Close", e.Close(), status.OK)
	}
	eventually(t, "everything is as before", func() bool {
		f, g, m := usage(t)
		return f <= fds && g <= goroutines && m <= memory
	})
}

// TestWritersOutliveTheirPeer kills applications while this process writes to their memory: no
// write faults, and they end with ECONNRESET.
func TestWritersOutliveTheirPeer(t *testing.T) {
	s := serve(t, nil)
	s.node.allowDirect()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	for range 5 {
		k := start(t, s)
		port := addr.Port(k.number(t, "port"))
		c := s.dial(t)
		e := must(c.Open())(t)
		if _, err := e.Connect(ctx, addr.Addr{Node: 3, Port: port}); err != nil {
			t.Fatal(err)
		}
		k.number(t, "window")
		off := k.number(t, "window")
		var wrote atomic.Int64
		var end error
		var wg sync.WaitGroup
		wg.Go(func() {
			for p := make([]byte, 32<<10); end == nil && ctx.Err() == nil; {
				if end = e.VWriteTo(p, off, 0); end == nil {
					wrote.Add(1)
				}
			}
		})
		eventually(t, "some writes are done", func() bool { return wrote.Load() > 100 })
		k.kill()
		wg.Wait()
		check(t, "the last write", end, status.Reset)
		c.Close()
	}
}

// TestFencesReportADeath kills applications during fences towards them: these end with ECONNRESET,
// including those of earlier marks.
func TestFencesReportADeath(t *testing.T) {
	s := serve(t, nil)
	s.node.allowDirect()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	for range 3 {
		k := start(t, s)
		port := addr.Port(k.number(t, "port"))
		c := s.dial(t)
		e := must(c.Open())(t)
		if _, err := e.Connect(ctx, addr.Addr{Node: 3, Port: port}); err != nil {
			t.Fatal(err)
		}
		k.number(t, "window")
		off := k.number(t, "window")
		check(t, "a write", e.VWriteTo([]byte{1}, off, 0), status.OK)
		early, err := e.FenceMark(fence.InitSelf)
		check(t, "FenceMark", err, status.OK)
		signal := fence.Signal{By: fence.InitSelf, Where: fence.SignalRemote, RemoteOffset: off}
		calls := map[string]func() error{
			"FenceMark":   func() error { _, err := e.FenceMark(fence.InitSelf); return err },
			"FenceWait":   func() error { return e.FenceWait(ctx, early) },
			"FenceSignal": func() error { return e.FenceSignal(signal) },
			"VPutSignal":  func() error { return e.VPutSignal([]byte{2}, rma.Put{Offset: off + 64, Word: off}) },
		}
		var ended sync.WaitGroup
		var done atomic.Int64
		for name, call := range calls {
			ended.Go(func() {
				var err error
				for err == nil && ctx.Err() == nil {
					err = call()
					done.Add(1)
				}
				check(t, name, err, status.Reset)
			})
		}
		eventually(t, "some fences are done", func() bool { return done.Load() > 1000 })
		k.kill()
		ended.Wait()
		c.Close()
	}
}

// TestDirectUseOfAStoppedApplication: a stopped process does not block accesses of others to its
// memory.
func TestDirectUseOfAStoppedApplication(t *testing.T) {
	s := serve(t, nil)
	s.node.allowDirect()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	k := start(t, s)
	port := addr.Port(k.number(t, "port"))
	e := must(s.dial(t).Open())(t)
	if _, err := e.Connect(ctx, addr.Addr{Node: 3, Port: port}); err != nil {
		t.Fatal(err)
	}
	k.number(t, "window")
	off := k.number(t, "window")
	if err := k.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		check(t, "VWriteTo", e.VWriteTo([]byte("while it sleeps"), off+4096, 0), status.OK)
	}
	got := make([]byte, 15)
	check(t, "VReadFrom", e.VReadFrom(got, off+4096, 0), status.OK)
	if string(got) != "while it sleeps" || known(e) != 1 {
		t.Errorf("window has %q, %d windows are mapped", got, known(e))
	}
}
