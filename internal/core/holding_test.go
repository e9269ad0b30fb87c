package core

import (
	"errors"
	"testing"

	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/rma"
)

func TestHoldingFindsRegisteredWindowsOnly(t *testing.T) {
	a, b, _, _ := newConnected(t, Limits{})
	a.window(b, 2*page, 3, rma.ProtRead)
	for _, off := range []int64{2 * page, 2*page + 7, 5*page - 1} {
		w, err := a.conn.Holding(off)
		if err != nil || w.Offset != 2*page || w.Length != 3*page || w.Prot != rma.ProtRead {
			t.Errorf("Holding(%#x) = %+v, %v", off, w, err)
		}
	}
	for _, off := range []int64{page, 2*page - 1, 5 * page, -1, 1<<63 - 1} {
		if _, err := a.conn.Holding(off); !errors.Is(err, status.NoAddress) {
			t.Errorf("Holding(%#x): %v, want %v", off, err, status.NoAddress)
		}
	}
	if _, err := a.conn.Unregister(2*page, 3*page, new(Waiter)); err != nil {
		t.Fatal(err)
	}
	if _, err := a.conn.Holding(2 * page); !errors.Is(err, status.NoAddress) {
		t.Errorf("Holding of a window that is being unregistered: %v, want %v", err, status.NoAddress)
	}
	a.conn.Fail(status.Reset)
	if _, err := a.conn.Holding(0); !errors.Is(err, status.Reset) {
		t.Errorf("Holding after the end: %v, want %v", err, status.Reset)
	}
}
