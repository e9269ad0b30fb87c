package attach_test

import (
	"errors"
	"fmt"
	"io"
	"syscall"
	"testing"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/status"
)

func TestPeerClosedIsResetAndEOF(t *testing.T) {
	err := fmt.Errorf("recv: %w", attach.ErrPeerClosed)
	for _, want := range []error{status.Reset, syscall.ECONNRESET, io.EOF} {
		if !errors.Is(err, want) {
			t.Errorf("ErrPeerClosed is not %v", want)
		}
	}
	if got := status.Of(attach.ErrPeerClosed); got != status.Reset {
		t.Errorf("status.Of(ErrPeerClosed) = %v, want %v", got, status.Reset)
	}
	if errors.Is(status.Reset, io.EOF) {
		t.Error("a plain reset must not be io.EOF")
	}
}
