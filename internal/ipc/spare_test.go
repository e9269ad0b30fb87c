package ipc

import (
	"errors"
	"testing"

	"github.com/fabricd/fabricd/internal/status"
)

// TestPathsLeaveDescriptorsToConnections: paths take no more than half of a limit, of the
// user's and of all applications, whatever holds the rest, and connections take all.
func TestPathsLeaveDescriptorsToConnections(t *testing.T) {
	total := newTotal(100)
	user := newAccount("a user", Limits{Descriptors: 20}, total)
	session := newSessionAccount(SessionLimits(), user)
	for range 10 {
		if err := session.chargeSpare(heldFiles, 1); err != nil {
			t.Fatal(err)
		}
	}
	if err := session.chargeSpare(heldFiles, 1); !errors.Is(err, status.NoMemory) {
		t.Errorf("the eleventh of 20: %v, want %v", err, status.NoMemory)
	}
	if err := session.charge(heldFiles, 10); err != nil {
		t.Errorf("connections get the other half: %v", err)
	}
	if err := session.charge(heldFiles, 1); !errors.Is(err, status.NoMemory) {
		t.Errorf("one more than 20: %v, want %v", err, status.NoMemory)
	}
	other := newAccount("another user", Limits{Descriptors: 200}, total)
	if err := other.charge(heldFiles, 30); err != nil {
		t.Fatal(err)
	}
	if err := other.chargeSpare(heldFiles, 1); !errors.Is(err, status.NoMemory) {
		t.Errorf("a path when half of all is held: %v, want %v", err, status.NoMemory)
	}
	session.refund(heldFiles, 20)
	other.refund(heldFiles, 30)
	if !total.idle() {
		t.Error("a refusal has kept something")
	}
}
