package server

import (
	"errors"
	"testing"

	"github.com/fabricd/fabricd/internal/status"
)

func TestEpochsHaveABound(t *testing.T) {
	p := epochs{account: newAccount("a session", SessionLimits(), nil)}
	defer p.close()
	for i := range uint32(epochSlots) {
		if slot, err := p.take(); slot != i || err != nil {
			t.Fatalf("slot %d is %d, %v", i, slot, err)
		}
	}
	if _, err := p.take(); !errors.Is(err, status.NoMemory) {
		t.Errorf("one more: %v", err)
	}
	was := p.epoch(7)
	p.give(7)
	if slot, err := p.take(); slot != 7 || err != nil || p.epoch(7) == was {
		t.Errorf("a slot that was given back is %d, %v, with epoch %d, want 7 with another one than %d", slot, err, p.epoch(7), was)
	}
	p.close()
	p.bump(7)
	if p.epoch(7) != 0 {
		t.Error("closed epochs have an epoch")
	}
}
