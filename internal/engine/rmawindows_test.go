package engine_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/fabricd/fabricd/internal/engine"
	"github.com/fabricd/fabricd/internal/path"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/rma"
)

// TestAWriteEndsWithItsWindow: of a write that is half there when its window is withdrawn
// nothing goes into the window that is registered at the same offset then, and its
// initiator is notified.
func TestAWriteEndsWithItsWindow(t *testing.T) {
	const size = 256 << 10
	f := newFarMemory(t, 0, size)
	f.last++
	head := path.RMARequest{Kind: path.RMAWrite, Number: f.last, Offset: uint64(f.off), Length: size}
	half := bytes.Repeat([]byte{1}, size/2)
	if _, err := f.Write(t.Context(), append(head.AppendTo(nil), half...)); err != nil {
		t.Fatal(err)
	}
	if err := f.b.Unregister(f.off, size); err != nil {
		t.Fatal(err)
	}
	fresh := alloc(t, size)
	if _, err := register(f.b, fresh, f.off, rma.ProtRead|rma.ProtWrite, rma.MapFixed); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(t.Context(), half); err != nil {
		t.Fatal(err)
	}
	if code := f.refusal(1, 1); code != status.NoAddress {
		t.Errorf("the write: %v", code)
	}
	if !bytes.Equal(fresh, make([]byte, size)) {
		t.Error("half of it is in the window that came later")
	}
}

// TestASignalGoesWhereItsWriteWent: a put whose windows are withdrawn between its two parts
// stores no word into one that is registered there then.
func TestASignalGoesWhereItsWriteWent(t *testing.T) {
	f := newFarMemory(t, 0, rma.PageSize)
	if err := f.send(path.RMARequest{Kind: path.RMAWrite, Offset: uint64(f.off), Length: 8}, make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	if err := f.b.Unregister(f.off, rma.PageSize); err != nil {
		t.Fatal(err)
	}
	fresh := alloc(t, rma.PageSize)
	if _, err := register(f.b, fresh, f.off, rma.ProtRead|rma.ProtWrite, rma.MapFixed); err != nil {
		t.Fatal(err)
	}
	r := path.RMARequest{Kind: path.RMASignal, Flags: path.RMABehind, Offset: uint64(f.off) + 64, Length: 7}
	if err := f.send(r, nil); err != nil {
		t.Fatal(err)
	}
	if code := f.refusal(1, 2); code != status.NoAddress {
		t.Errorf("the signal: %v", code)
	}
	if !bytes.Equal(fresh, make([]byte, rma.PageSize)) {
		t.Error("the word is in the window that came later")
	}
}

// TestAWindowThatIsBeingWithdrawnIsNotFound: once the epoch has changed for a withdrawal
// the window is not found any more, or the application would think that it holds.
func TestAWindowThatIsBeingWithdrawnIsNotFound(t *testing.T) {
	f := newFarMemory(t, 0, rma.PageSize)
	found := make(chan error, 1)
	_, err := f.a.OnInvalidation(func() {
		_, err := f.a.FarWindow(f.off)
		found <- err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.b.Unregister(f.off, rma.PageSize); err != nil {
		t.Fatal(err)
	}
	if err := <-found; err == nil {
		t.Error("it is found")
	}
	if _, err := f.a.FarWindow(f.off); !errors.Is(err, status.NoAddress) {
		t.Errorf("behind the withdrawal: %v", err)
	}
}

// TestEachRefusalIsReported, also of one that many others have followed.
func TestEachRefusalIsReported(t *testing.T) {
	f := newFarMemory(t, 0, rma.PageSize)
	for range 100 {
		if err := f.send(path.RMARequest{Kind: path.RMAWrite, Offset: uint64(f.off) + 8*rma.PageSize, Length: 8}, make([]byte, 8)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range uint64(100) {
		if code := f.refusal(i+1, 1); code != status.NoAddress {
			t.Fatalf("of request %d: %v", i+1, code)
		}
	}
	if code := f.refusal(101, 100); code != status.OK {
		t.Errorf("of what was not refused: %v", code)
	}
}

// TestFencesReportClosedWindows: a write that comes too late for them was not wrong, so
// that its call has returned.
func TestFencesReportClosedWindows(t *testing.T) {
	f := newFarMemory(t, 0, rma.PageSize)
	engine.CloseWindows(f.b)
	if err := f.send(path.RMARequest{Kind: path.RMAWrite, Offset: uint64(f.off), Length: 8}, make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	if err := f.send(path.RMARequest{Kind: path.RMANop, Flags: path.RMAWantAnswer}, nil); err != nil {
		t.Fatal(err)
	}
	a, _, err := f.answer()
	if err != nil || a.Bad != 1 || status.Code(a.BadCode) != status.Reset {
		t.Errorf("the fence: %+v, %v", a, err)
	}
}
