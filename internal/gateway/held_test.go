package gateway

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fabricd/fabricd/internal/gateway/spec"
	"github.com/fabricd/fabricd/internal/status"
)

// TestADialGoesOnToANodeWhoseTargetAnswers.
func TestADialGoesOnToANodeWhoseTargetAnswers(t *testing.T) {
	w := newWorld(t)
	_, exposed, _ := w.run(0, spec.Expose, "db="+freeAddress(t)) // nearest to node 0
	w.run(1, spec.Expose, "db="+serve(t, "tcp", echoAll))
	at, forwarded, _ := w.run(0, spec.Forward, "127.0.0.1:0=db")
	c := dial(t, at)
	io.WriteString(c, "hello")
	c.CloseWrite()
	if got, err := io.ReadAll(c); string(got) != "hello" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	if ev := await(t, forwarded, spec.Opened); ev.Conn.Node != "node-1" {
		t.Errorf("it leads to %s", ev.Conn.Node)
	}
	await(t, exposed, spec.Refused)
}

// TestAForwardWaitsForATarget that is started again.
func TestAForwardWaitsForATarget(t *testing.T) {
	w := newWorld(t)
	free := freeAddress(t)
	_, exposed, _ := w.run(1, spec.Expose, "db="+free)
	at, _, _ := w.run(0, spec.Forward, "127.0.0.1:0=db wait 10m")
	c := dial(t, at)
	await(t, exposed, spec.Refused)
	l, err := net.Listen("tcp", free)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if target, err := l.Accept(); err != nil {
		t.Fatal(err)
	} else {
		io.WriteString(target, "hello")
		target.Close()
	}
	if got, err := io.ReadAll(c); string(got) != "hello" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
}

// TestProxiesAnswerThatTheTargetRefuses, and not with a success before.
func TestProxiesAnswerThatTheTargetRefuses(t *testing.T) {
	w := newWorld(t)
	w.run(1, spec.Expose, "2050="+freeAddress(t))
	socks, _, _ := w.run(0, spec.SOCKS, "0 wait 0s")
	c := dial(t, socks)
	c.Write(append([]byte{5, 1, 0}, socksBytes("1.fabric", 2050)...))
	want := append([]byte{5, 0}, socksAnswer(socksRefused)...)
	if got, err := io.ReadAll(c); !bytes.Equal(got, want) || err != nil {
		t.Errorf("SOCKS answered %v, %v; want %v", got, err, want)
	}
	at, _, _ := w.run(0, spec.HTTPProxy, "0 wait 0s")
	c = dial(t, at)
	fmt.Fprint(c, "CONNECT 1.fabric:2050 HTTP/1.1\r\n\r\n")
	if got, err := io.ReadAll(c); !strings.HasPrefix(string(got), "HTTP/1.1 502 ") || !strings.Contains(string(got), "connection refused") || err != nil {
		t.Errorf("HTTP answered %q, %v", got, err)
	}
}

// TestRefusalsHaveTheirCode, and a proxy the answer for it.
func TestRefusalsHaveTheirCode(t *testing.T) {
	for _, c := range []struct {
		err    error
		code   status.Code
		answer byte
		http   int
	}{
		{nil, status.OK, socksOK, 0},
		{syscall.ECONNREFUSED, status.Refused, socksRefused, http.StatusBadGateway},
		{&net.DNSError{Err: "no such host"}, status.Refused, socksRefused, http.StatusBadGateway},
		{syscall.EHOSTUNREACH, status.NoDevice, socksUnreachable, http.StatusBadGateway},
		{syscall.ETIMEDOUT, status.TimedOut, socksUnreachable, http.StatusGatewayTimeout},
	} {
		if c.err != nil {
			c.err = &net.OpError{Op: "dial", Err: c.err}
		}
		code := refusal(c.err)
		if code != c.code {
			t.Errorf("%v is refused with %v, want %v", c.err, code, c.code)
		}
		if c.err == nil {
			continue
		}
		if answer, http := socksCode(code), httpStatus(code); answer != c.answer || http != c.http {
			t.Errorf("%v is answered with %d and %d, want %d and %d", code, answer, http, c.answer, c.http)
		}
	}
}

// TestACallerThatGivesUpEndsTheDialToTheTarget.
func TestACallerThatGivesUpEndsTheDialToTheTarget(t *testing.T) {
	w := newWorld(t)
	_, exposed, _ := w.run(1, spec.Expose, "2050="+silentAddress(t))
	at, forwarded, _ := w.run(0, spec.Forward, "127.0.0.1:0=1:2050 wait 0s") // gives up after a second
	c := dial(t, at)
	await(t, forwarded, spec.Refused)
	began := time.Now()
	if ev := await(t, exposed, spec.Refused); !strings.Contains(ev.Detail, "canceled") || time.Since(began) > targetTimeout/2 {
		t.Errorf("after %v: %+v", time.Since(began), ev)
	}
	if err := reset(c); err != nil {
		t.Error(err)
	}
	if s := w.at[1].List()[0]; s.Open != 0 || s.Refused != 1 {
		t.Errorf("%+v", s)
	}
}

// silentAddress returns an address of loopback that does not answer: its backlog is full.
func silentAddress(t *testing.T) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	at := fmt.Sprint("127.0.0.1:", name.(*syscall.SockaddrInet4).Port)
	for {
		c, err := net.DialTimeout("tcp", at, 100*time.Millisecond)
		if err != nil {
			return at
		}
		t.Cleanup(func() { c.Close() })
	}
}
