package server

import (
	"errors"
	"testing"

	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/internal/status"
)

// TestNothingIsCopiedToAnApplicationThatIsNotified: bytes that a VREADFROM has fetched when the windows
// are closed stay in the node.
func TestNothingIsCopiedToAnApplicationThatIsNotified(t *testing.T) {
	region, err := shm.Create("test", 4096)
	if err != nil {
		t.Fatal(err)
	}
	defer region.Release()
	s := &session{}
	if err := s.copyToApp(region, []byte("first"), 0); err != nil {
		t.Fatal(err)
	}
	s.copies.over = true
	if err := s.copyToApp(region, []byte("later"), 0); !errors.Is(err, status.Reset) {
		t.Errorf("a copy after the end: %v", err)
	}
	got := make([]byte, 5)
	if err := region.ReadAt(got, 0); err != nil || string(got) != "first" {
		t.Errorf("the application's memory is %q, %v", got, err)
	}
}
