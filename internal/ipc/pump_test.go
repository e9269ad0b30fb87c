package ipc

import "testing"

// TestLargeBuffersAreFew: who wants a large buffer when none is left has a small one,
// and all are given back. A thrifty pump has none.
func TestLargeBuffersAreFew(t *testing.T) {
	var all []pumpBuffer
	for range bulkMost {
		all = append(all, takeBuffer(false, true))
	}
	if one := takeBuffer(false, true); len(one.bytes()) != pumpSize {
		t.Errorf("with all in use there is one of %d bytes", len(one.bytes()))
	} else {
		one.put()
	}
	thrifty := takeBuffer(true, true)
	if len(thrifty.bytes()) != thriftySize {
		t.Errorf("a thrifty pump has a buffer of %d bytes", len(thrifty.bytes()))
	}
	thrifty.put()
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
