package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/internal/gateway/spec"
	"github.com/fabricd/fabricd/internal/sockfile"
)

// TestOverUnixSockets: both ends of a chain may be.
func TestOverUnixSockets(t *testing.T) {
	w := newWorld(t)
	target, at := serve(t, "unix", echoAll), filepath.Join(t.TempDir(), "f")
	left, err := net.ListenUnix("unix", &net.UnixAddr{Name: at, Net: "unix"}) // as a process leaves it that is killed
	if err != nil {
		t.Fatal(err)
	}
	left.SetUnlinkOnClose(false)
	left.Close()
	w.run(1, spec.Expose, "2050="+target)
	w.run(0, spec.Forward, at+"=1:2050")
	c := dial(t, at)
	io.WriteString(c, "hello")
	c.CloseWrite()
	if got, err := io.ReadAll(c); string(got) != "hello" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
}

// TestASocketFileIsMadeWithItsMode, and leaves those alone to which its name leads.
func TestASocketFileIsMadeWithItsMode(t *testing.T) {
	dir := t.TempDir()
	at, other := filepath.Join(dir, "s"), filepath.Join(dir, "other")
	l, err := listenAt(t.Context(), at)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(at)
	if err != nil || info.Mode() != fs.ModeSocket|0o666 {
		t.Errorf("made %v, %v", info.Mode(), err)
	}
	if l, err := listenAt(t.Context(), at); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("what is served is replaced: %v, %v", l, err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
	held, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Flock(int(held.Fd()), syscall.LOCK_EX); err != nil { // as another fabricd that replaces it
		t.Fatal(err)
	}
	if l, err := listenAt(t.Context(), at); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("two replace it at a time: %v, %v", l, err)
	}
	held.Close()
	if err := os.Rename(at, other); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(other, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(other, at); err != nil {
		t.Fatal(err)
	}
	if l, err := listenAt(t.Context(), at); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a link to a socket is replaced: %v, %v", l, err)
	}
	if info, err := os.Lstat(other); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("what it leads to: %v, %v", info.Mode(), err)
	}
	if err := sockfile.SetRights(at, 0o666, -1); err == nil {
		t.Error("a link to a socket has its mode changed")
	}
}

// freeAddress returns an address of loopback that refuses.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// TestARefusingTargetIsAResetAndOneLine at either side, which names the other one and the
// cause. The client's side learns no address of the server's.
func TestARefusingTargetIsAResetAndOneLine(t *testing.T) {
	w := newWorld(t)
	var log bytes.Buffer
	w.at[0] = New(w.at[0].attach, zerolog.New(&log))
	t.Cleanup(w.at[0].Close)
	free := freeAddress(t)
	_, exposed, _ := w.run(1, spec.Expose, "2050="+free)
	at, forwarded, stop := w.run(0, spec.Forward, "127.0.0.1:0=1:2050 wait 0s")
	if err := dialReset(t, at); err != nil {
		t.Error(err)
	}
	const want = "->1:2050: connection refused"
	if ev := await(t, forwarded, spec.Refused); !strings.Contains(ev.Detail, want) || strings.Contains(ev.Detail, "127.0.0.1") {
		t.Errorf("%+v", ev)
	}
	if s := w.at[0].List()[0]; !strings.Contains(s.Failure, want) || s.Refused != 1 {
		t.Errorf("%+v", s)
	}
	stop()
	if text := log.String(); strings.Count(text, want) != 1 || !strings.Contains(text, `"level":"warn","op":"gateway","gateway":"forward 127.0.0.1:0=1:2050 wait 0s"`) {
		t.Errorf("the log:\n%s", text)
	}
	if ev := await(t, exposed, spec.Refused); !strings.Contains(ev.Detail, "target dial tcp "+free+": connect: connection refused") || strings.Contains(ev.Detail, "\n") {
		t.Errorf("%+v", ev)
	}
	if s := w.at[1].List()[0]; s.Refused != 1 || s.Total != 1 || s.Open != 0 {
		t.Errorf("%+v", s)
	}
}

// TestAnAbortBeforeTheFirstByteIsAResetAndOneLine: an application without held requests notifies
// so that its target refuses.
func TestAnAbortBeforeTheFirstByteIsAResetAndOneLine(t *testing.T) {
	w := newWorld(t)
	var log bytes.Buffer
	w.at[0] = New(w.at[0].attach, zerolog.New(&log))
	t.Cleanup(w.at[0].Close)
	l, err := w.cluster.App(1, true).Listen(2050)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		c, err := l.AcceptConn(t.Context())
		if err == nil {
			err = c.Abort("target: connection refused")
		}
		if err != nil {
			t.Error(err)
		}
	}()
	at, forwarded, stop := w.run(0, spec.Forward, "127.0.0.1:0=1:2050")
	if err := dialReset(t, at); err != nil {
		t.Error(err)
	}
	const want = "node-1: the peer's application gave it up: target: connection refused"
	if ev := await(t, forwarded, spec.Closed); ev.Detail != "reset: "+want {
		t.Errorf("%+v", ev)
	}
	if s := w.at[0].List()[0]; s.Failure != want || s.Reset != 1 {
		t.Errorf("%+v", s)
	}
	stop()
	if text := log.String(); strings.Count(text, want) != 1 || !strings.Contains(text, `"level":"warn"`) {
		t.Errorf("the log:\n%s", text)
	}
}

// TestReasonsNameNoAddress of this machine.
func TestReasonsNameNoAddress(t *testing.T) {
	dialed := func(network, address string, limit time.Duration) error {
		c, err := net.DialTimeout(network, address, limit)
		if err == nil {
			c.Close()
		}
		return fmt.Errorf("target %w", err)
	}
	for want, err := range map[string]error{
		"target: no such file or directory": dialed("unix", "/no/such/socket", patience),
		"target: no answer in time":         dialed("tcp", "192.0.2.1:1", time.Nanosecond),
		"target: no such host":              fmt.Errorf("target %w", &net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", Name: "inner.example", Server: "192.0.2.1"}}),
		"read: connection reset by peer":    &net.OpError{Op: "read", Err: os.NewSyscallError("read", syscall.ECONNRESET)},
		"the gateway has ended":             errEnded,
	} {
		if got := reason(err); got != want {
			t.Errorf("%v: %q, want %q", err, got, want)
		}
	}
}

// TestWhatCannotStartSaysWhy in one line.
func TestWhatCannotStartSaysWhy(t *testing.T) {
	w := newWorld(t)
	target := serve(t, "tcp", echoAll)
	_, _, _ = w.run(1, spec.Expose, "2050="+target)
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	own, err := w.cluster.App(1, true).Listen(2060)
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	for _, c := range []struct {
		kind       spec.Kind
		line, want string
	}{
		{spec.Expose, "2050=localhost:1", "2050 is taken on this node: by expose 2050=" + target},
		{spec.Expose, "2060=localhost:1", "the port is taken on this node"},
		{spec.Forward, target + "=0:1", "address already in use"},
		{spec.Forward, path + "=0:1", "address already in use"},
		{spec.Forward, target + "=1:2050", "would come back to it"},
		{spec.Forward, target + "=node-1:2050", "would come back to it"},
	} {
		g, err := spec.Parse(c.kind, c.line)
		if err != nil {
			t.Errorf("%s: %v", c.line, err)
			continue
		}
		err = w.at[1].Run(context.Background(), g, func(spec.Event) {})
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s %s: %v; want %q", c.kind, c.line, err, c.want)
		}
	}
	if n := len(w.at[1].List()); n != 1 {
		t.Errorf("%d gateways are left, want 1", n)
	}
}

// TestARingThatAReloadMakesDoesNotRun: a line of the configuration waits, and reports why,
// while a command leads its connections back to it.
func TestARingThatAReloadMakesDoesNotRun(t *testing.T) {
	w := newWorld(t)
	at, _, stop := w.run(1, spec.Forward, "127.0.0.1:0=node-1:2050")
	stop()
	_, _, stop = w.run(1, spec.Forward, at+"=node-1:2050")
	line, err := spec.Parse(spec.Expose, "2050="+at)
	if err != nil {
		t.Fatal(err)
	}
	state := func(want string) spec.Status {
		t.Helper()
		for limit, ticks := time.Now().Add(patience), time.Tick(10*time.Millisecond); ; <-ticks {
			all := w.at[1].List()
			if s := all[len(all)-1]; s.State == want && (s.Detail != "") == (want == spec.Waiting) {
				return s
			} else if time.Now().After(limit) {
				t.Fatalf("%+v", s)
			}
		}
	}
	w.at[1].Set([]spec.Gateway{line})
	if s := state(spec.Waiting); !strings.Contains(s.Detail, "would come back to it") {
		t.Errorf("%+v", s)
	}
	stop()
	state(spec.Listening)
}

// TestARingByANameIsRefused where the name's address shows it: a line of text does not.
func TestARingByANameIsRefused(t *testing.T) {
	w := newWorld(t)
	at, _, stop := w.run(1, spec.Forward, "127.0.0.1:0=node-1:2050")
	stop()
	w.run(1, spec.Forward, at+"=node-1:2050")
	line, err := spec.Parse(spec.Expose, "2050=db.example:1")
	if err != nil {
		t.Fatal(err)
	}
	w.at[1].Set([]spec.Gateway{line}) // runs, since its text shows nothing
	e := exposed{Gateway: line, owner: w.at[1]}
	if err := e.checkResolved("tcp4", at, nil); err == nil || !strings.Contains(err.Error(), "would come back to it") {
		t.Errorf("the address of a forward that leads back: %v", err)
	}
	if err := e.checkResolved("tcp4", freeAddress(t), nil); err != nil {
		t.Errorf("another address: %v", err)
	}
}

// TestEqualRefusalsAreReportedOnce, and all are counted.
func TestEqualRefusalsAreReportedOnce(t *testing.T) {
	w := newWorld(t)
	_, exposed, _ := w.run(1, spec.Expose, "2050="+freeAddress(t))
	at, _, _ := w.run(0, spec.Forward, "127.0.0.1:0=1:2050 wait 0s")
	for range 3 {
		if err := dialReset(t, at); err != nil {
			t.Error(err)
		}
	}
	await(t, exposed, spec.Refused)
	for limit, ticks := time.Now().Add(patience), time.Tick(10*time.Millisecond); w.at[1].List()[0].Refused < 3; <-ticks {
		if time.Now().After(limit) {
			t.Fatalf("%+v", w.at[1].List()[0])
		}
	}
	for len(exposed) > 0 {
		if ev := <-exposed; ev.Event == spec.Refused {
			t.Errorf("reported again: %+v", ev)
		}
	}
}

// TestOnlyThoseAllowedConnect: the rules of a service are the listener's.
func TestOnlyThoseAllowedConnect(t *testing.T) {
	w := newWorld(t)
	at, _, forwarded := w.chain(echoAll, " from node-7 label:x", " wait 0s")
	if err := dialReset(t, at); err != nil {
		t.Error(err)
	}
	if ev := await(t, forwarded, spec.Refused); !strings.Contains(ev.Detail, "refused") {
		t.Errorf("%+v", ev)
	}
}
