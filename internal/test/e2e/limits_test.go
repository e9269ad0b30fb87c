package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric"
)

// TestFabricdOutOfDescriptors lets applications use up the few descriptors that a
// fabricd leaves to a user: it refuses with a reason, keeps its connections and some descriptors
// for its peers and operators, does not spin, and recovers.
func TestFabricdOutOfDescriptors(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	host := l.host()
	poor := l.member(host, "poor")
	poor.prefix = []string{"/bin/sh", "-c", `ulimit -n 96; exec "$@"`, "sh"}
	poor.start()
	l.agree(host, poor)
	watch := host.watch()
	there := l.pair(host, poor)
	there.pace(t, 10)
	before, err := descriptors(poor.pid())
	if err != nil {
		t.Fatal(err)
	}

	var apps []*fabric.Node
	for len(apps) < 64 {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		began := time.Now()
		app, err := fabric.Attach(ctx, poor.socket())
		cancel()
		if err != nil {
			t.Logf("application %d, after %v: %v", len(apps)+1, time.Since(began).Round(time.Millisecond), err)
			if op, ok := errors.AsType[*fabric.OpError](err); !ok || op.Errno() == 0 || op.Errno() == syscall.EPROTO {
				t.Errorf("attach without a descriptor: %v, want an *OpError that says why", err)
			}
			break
		}
		apps = append(apps, app)
	}
	if len(apps) == 64 {
		t.Error("64 applications attached to a fabricd with 96 descriptors")
	}
	l.exhaust(apps)

	poor.logs("may have 12 descriptors")
	if strings.Contains(poor.said(), "too many open files") {
		t.Errorf("applications took the node's own descriptors:\n%s", poor.said())
	}
	if _, err := l.fabricd("status", "--admin", poor.adminSocket()); err != nil {
		t.Error(err)
	}
	// It stands there with nothing left, for a while.
	used := cpu(t, poor.pid())
	began := time.Now()
	time.Sleep(700 * time.Millisecond)
	share := float64(cpu(t, poor.pid())-used) / float64(time.Since(began))
	t.Logf("out of descriptors with %d applications; %.0f%% of a processor", len(apps), 100*share)
	if share > 0.3 {
		t.Errorf("it uses %.0f%% of a processor while it has no descriptor", 100*share)
	}
	there.pace(t, 50)

	for _, app := range apps {
		app.Close()
	}
	l.pair(host, poor).pace(t, 10)
	l.pair(poor, host).pace(t, 10)
	watch.saw("")
	eventually(t, stepLimit, "it has its descriptors again", func() error {
		now, err := descriptors(poor.pid())
		if err == nil && now["memfd"] > before["memfd"] {
			err = fmt.Errorf("%v, before %v", now, before)
		}
		return err
	})
}

// exhaust opens connections within one node until that fails, and checks how.
func (l *lab) exhaust(apps []*fabric.Node) {
	t := l.t
	t.Helper()
	if len(apps) == 0 {
		t.Fatal("not one application could attach")
	}
	listener, err := apps[0].Listen(0)
	if err != nil {
		t.Fatal(err)
	}
	for range 64 {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		dialed := make(chan error, 1)
		go func() { // one answer
			_, err := apps[0].DialAddr(ctx, listener.Addr().(fabric.Addr))
			dialed <- err
		}()
		_, err := listener.AcceptConn(ctx)
		if derr := <-dialed; derr != nil {
			err = derr
		}
		cancel()
		if err == nil {
			continue
		}
		t.Logf("connection: %v", err)
		if op, ok := errors.AsType[*fabric.OpError](err); !ok || op.Errno() == 0 || op.Errno() == syscall.EPROTO {
			t.Errorf("connection without a descriptor: %v, want an *OpError that says why", err)
		}
		return
	}
	t.Error("64 connections in a fabricd with 96 descriptors")
}
