package ipc

import "testing"

// TestLargeBuffersAreFew: who wants a large buffer when none is left has a small one,
// and all are given back.
func TestLargeBuffersAreFew(t *testing.T) {
	var all []pumpBuffer
	for range bulkMost {
		all = append(all, takeBuffer(true))
	}
	if one := takeBuffer(true); len(one.bytes()) != pumpSize {
		t.Errorf("with all in use there is one of %d bytes", len(one.bytes()))
	} else {
		one.put()
	}
	for _, b := range all {
		if len(b.bytes()) != bulkSize {
			t.Errorf("a large buffer has %d bytes", len(b.bytes()))
		}
		b.put()
	}
	if len(bulkTokens) != 0 {
		t.Errorf("%d tokens are out", len(bulkTokens))
	}
}
