package status_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/fabricd/fabricd/internal/status"
)

// numbers are the codes on the wire and in the attach protocol, promised to
// peers already deployed: add, never edit.
var numbers = []struct {
	number uint16
	code   status.Code
	errno  syscall.Errno
}{
	{0, status.OK, 0},
	{1, status.Invalid, syscall.EINVAL},
	{2, status.Access, syscall.EACCES},
	{3, status.InUse, syscall.EADDRINUSE},
	{4, status.Again, syscall.EAGAIN},
	{5, status.Refused, syscall.ECONNREFUSED},
	{6, status.Reset, syscall.ECONNRESET},
	{7, status.NotConn, syscall.ENOTCONN},
	{8, status.IsConn, syscall.EISCONN},
	{9, status.InProgress, syscall.EINPROGRESS},
	{10, status.NoDevice, syscall.ENODEV},
	{11, status.NoAddress, syscall.ENXIO},
	{12, status.NoSpace, syscall.ENOSPC},
	{13, status.NoMemory, syscall.ENOMEM},
	{14, status.NotSupp, syscall.EOPNOTSUPP},
	{15, status.Intr, syscall.EINTR},
	{16, status.BadFD, syscall.EBADF},
	{17, status.Fault, syscall.EFAULT},
	{18, status.NoBufs, syscall.ENOBUFS},
	{19, status.Protocol, syscall.EPROTO},
	{20, status.TimedOut, syscall.ETIMEDOUT},
	{21, status.Version, syscall.EPROTONOSUPPORT},
	{22, status.Canceled, syscall.ECANCELED},
	{23, status.Busy, syscall.ECONNREFUSED},
}

func TestNumbersAreStable(t *testing.T) {
	for _, n := range numbers {
		if uint16(n.code) != n.number || n.code.Errno() != n.errno {
			t.Errorf("%v is number %d and %v, promised are %d and %v",
				n.code, uint16(n.code), n.code.Errno(), n.number, n.errno)
		}
	}
	// The first number that has no text is the first that is free.
	free := status.Code(len(numbers))
	if got := free.Error(); got != fmt.Sprintf("status %d", len(numbers)) {
		t.Errorf("number %d is %q: add it to this test", len(numbers), got)
	}
}

func TestEveryCodeHasItsOwnText(t *testing.T) {
	seen := map[string]status.Code{}
	for _, n := range numbers {
		text := n.code.Error()
		if other, twice := seen[text]; twice || text == "" {
			t.Errorf("codes %d and %d both say %q", n.code, other, text)
		}
		seen[text] = n.code
	}
}

// Busy is a refusal too, that of a full backlog: the two have one errno, which
// without a code is Refused.
func TestEveryCodeAnswersToItsErrnoOnly(t *testing.T) {
	for _, c := range numbers {
		wrapped := fmt.Errorf("send to 3:2050: %w", c.code)
		if !errors.Is(wrapped, c.code) || status.Of(wrapped) != c.code {
			t.Errorf("%v is lost by wrapping: Of = %v", c.code, status.Of(wrapped))
		}
		for _, other := range numbers {
			want := plain(c.code) == plain(other.code) && c.code != status.OK
			if got := errors.Is(wrapped, other.errno); got != want {
				t.Errorf("errors.Is(%v, %v) = %v, want %v", c.code, other.errno, got, want)
			}
		}
		if c.code != status.OK && status.Of(c.errno) != plain(c.code) {
			t.Errorf("Of(%v) = %v, want %v", c.errno, status.Of(c.errno), plain(c.code))
		}
	}
}

// plain returns the code that an errno alone stands for.
func plain(c status.Code) status.Code {
	if c == status.Busy {
		return status.Refused
	}
	return c
}

func TestStandardNames(t *testing.T) {
	for target, want := range map[error]status.Code{
		net.ErrClosed:            status.BadFD,
		os.ErrPermission:         status.Access,
		fs.ErrPermission:         status.Access,
		os.ErrDeadlineExceeded:   status.TimedOut,
		context.Canceled:         status.Canceled,
		context.DeadlineExceeded: 0, // Of maps it; a code does not claim to be it
		io.EOF:                   0,
	} {
		for _, n := range numbers[1:] {
			if got := errors.Is(n.code, target); got != (n.code == want) {
				t.Errorf("errors.Is(%v, %v) = %v", n.code, target, got)
			}
		}
	}
}

func TestOf(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want status.Code
	}{
		{nil, status.OK},
		{status.Reset, status.Reset},
		{fmt.Errorf("accept: %w", status.Again), status.Again},
		{syscall.ENXIO, status.NoAddress},
		{&os.PathError{Op: "open", Err: syscall.EACCES}, status.Access},
		{&os.SyscallError{Syscall: "mmap", Err: syscall.ENOMEM}, status.NoMemory},
		{context.Canceled, status.Canceled},
		{context.DeadlineExceeded, status.TimedOut},
		{os.ErrDeadlineExceeded, status.TimedOut},
		{net.ErrClosed, status.BadFD},
		{fmt.Errorf("read: %w", net.ErrClosed), status.BadFD},
		{errors.Join(io.EOF, status.NoDevice), status.NoDevice},
		{fmt.Errorf("%w: %w", syscall.EINVAL, status.Version), status.Version}, // a code beats an errno
		{errors.New("something else"), status.Protocol},
		{syscall.EXDEV, status.Protocol}, // an errno that no code has
		{status.Code(999), status.Code(999)},
	} {
		if got := status.Of(tt.err); got != tt.want {
			t.Errorf("Of(%v) = %v, want %v", tt.err, got, tt.want)
		}
	}
}

func TestCodeOfANewerPeer(t *testing.T) {
	c := status.Code(999)
	if c.Error() != "status 999" || c.Errno() != syscall.EIO || !errors.Is(c, syscall.EIO) {
		t.Errorf("code 999 is %q and %v", c.Error(), c.Errno())
	}
	for _, n := range numbers {
		if errors.Is(c, n.code) || n.errno != 0 && errors.Is(c, n.errno) {
			t.Errorf("code 999 passes for %v", n.code)
		}
	}
	if got := status.Code(65535).Error(); got != "status 65535" {
		t.Errorf("the highest code is %q", got)
	}
}

func TestTimeout(t *testing.T) {
	for _, n := range numbers {
		want := n.code == status.TimedOut || n.code == status.Again
		if n.code.Timeout() != want {
			t.Errorf("%v.Timeout() = %v, want %v", n.code, !want, want)
		}
	}
}
