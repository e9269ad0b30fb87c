package fabric

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/status"
)

func TestOpErrorSaysWhatWhoAndWhy(t *testing.T) {
	local, remote := Addr{Node: 1, Port: 1088}, Addr{Node: 2, Port: 2050}
	for _, tt := range []struct {
		err  *OpError
		want string
	}{
		{&OpError{"open", Addr{Node: 1}, Addr{}, status.NoMemory}, "open node 1: out of memory or over quota"},
		{&OpError{"send", local, remote, status.Reset}, "send 1:1088->2:2050: connection reset by peer"},
		{&OpError{"connect", local, remote, status.Refused}, "connect 1:1088->2:2050: connection refused (nothing listens there, its backlog is full, no accept came in time, the target of an expose refused, or a rule there refuses this caller)"},
		{&OpError{"connect", Addr{Node: 1}, remote, status.NoDevice}, "connect node 1->2:2050: no such node, or it is not reachable (node 2 is no member now, or this node cannot reach it, or it the target that it exposes: see fabricd ping 2)"},
		{&OpError{"connect", local, Addr{Node: 2}, status.Invalid}, "connect 1:1088->2:0: invalid argument (port 0 is nobody's)"},
		{&OpError{"bind", Addr{Node: 1}, Addr{}, status.Invalid}, "bind node 1: invalid argument (the port is taken on this node)"},
		{&OpError{"bind", local, Addr{}, status.Invalid}, "bind 1:1088: invalid argument (the endpoint is bound already)"},
		{&OpError{"bind", Addr{Node: 1}, Addr{}, status.Access}, "bind node 1: permission denied (ports below 1024 need privilege on this node)"},
		{&OpError{"writeto", local, remote, status.NoAddress}, "writeto 1:1088->2:2050: offset range not registered (the range must lie in registered windows without a gap)"},
	} {
		if got := tt.err.Error(); got != tt.want {
			t.Errorf("got  %s\nwant %s", got, tt.want)
		}
	}
}

// TestErrorsSayWhatIsTheMatter where the same code has several reasons.
func TestErrorsSayWhatIsTheMatter(t *testing.T) {
	local, remote := Addr{Node: 1, Port: 1088}, Addr{Node: 2, Port: 2050}
	for _, tt := range []struct {
		err     *OpError
		has, no string
	}{
		{&OpError{"mmap", local, remote, status.NoAddress}, "inside one registered window", "gap"},
		{&OpError{"mmap", local, remote, status.Access}, "does not allow", ""},
		{&OpError{"connect", local, remote, status.NoDevice}, "or this node cannot reach it", "no node 2"},
		{&OpError{"connect", local, remote, fmt.Errorf("node 2 does not answer: %w", status.NoDevice)}, "node 2 does not answer", "is no member"},
	} {
		if text := tt.err.Error(); !strings.Contains(text, tt.has) || tt.no != "" && strings.Contains(text, tt.no) {
			t.Errorf("%q: want %q in it, and not %q", text, tt.has, tt.no)
		}
	}
}

func TestOpErrorAnswersToStandardNames(t *testing.T) {
	done, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancel := context.WithTimeout(t.Context(), -1)
	defer cancel()
	passed := newLimit()
	passed.expire()

	for _, tt := range []struct {
		name    string
		err     error
		is      []error
		isNot   []error
		errno   syscall.Errno
		timeout bool
	}{
		{"reset", status.Reset, []error{syscall.ECONNRESET}, []error{io.EOF, net.ErrClosed}, syscall.ECONNRESET, false},
		{"peer closed", attach.ErrPeerClosed, []error{syscall.ECONNRESET, io.EOF}, []error{net.ErrClosed}, syscall.ECONNRESET, false},
		{"closed", status.BadFD, []error{net.ErrClosed, syscall.EBADF}, []error{io.EOF}, syscall.EBADF, false},
		{"nothing to do", status.Again, []error{syscall.EAGAIN}, []error{syscall.ECONNRESET}, syscall.EAGAIN, true},
		{"text around a code", fmt.Errorf("node 3 crashed: %w", status.Reset), []error{syscall.ECONNRESET}, nil, syscall.ECONNRESET, false},
		{"canceled", contextError(done, status.Canceled), []error{context.Canceled}, []error{os.ErrDeadlineExceeded}, syscall.ECANCELED, false},
		{"context deadline", contextError(late, status.TimedOut), []error{context.DeadlineExceeded, os.ErrDeadlineExceeded}, []error{context.Canceled}, syscall.ETIMEDOUT, true},
		{"conn deadline", contextError(passed, status.Canceled), []error{os.ErrDeadlineExceeded}, []error{context.Canceled}, syscall.ETIMEDOUT, true},
		{"own failure of a canceled call", contextError(done, status.Refused), []error{syscall.ECONNREFUSED}, []error{context.Canceled}, syscall.ECONNREFUSED, false},
		{"time-out without a context", contextError(t.Context(), status.TimedOut), []error{syscall.ETIMEDOUT}, []error{context.DeadlineExceeded}, syscall.ETIMEDOUT, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := &OpError{Op: "recv", Err: tt.err}
			for _, want := range tt.is {
				if !errors.Is(e, want) {
					t.Errorf("%v is not %v", e, want)
				}
			}
			for _, other := range tt.isNot {
				if errors.Is(e, other) {
					t.Errorf("%v is %v", e, other)
				}
			}
			if e.Errno() != tt.errno {
				t.Errorf("Errno() = %v, want %v", e.Errno(), tt.errno)
			}
			if e.Timeout() != tt.timeout {
				t.Errorf("Timeout() = %v, want %v", e.Timeout(), tt.timeout)
			}
			if text := e.Error(); strings.Contains(text, "%!") {
				t.Errorf("bad text %q", text)
			}
		})
	}
}

var _ net.Error = (*OpError)(nil)
