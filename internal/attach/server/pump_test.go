package server

import "testing"

// TestLargeBuffersAreFew: a pump that wants a large buffer when none is left gets a small one, and
// all are returned. A pump whose connection buffers less gets none.
func TestLargeBuffersAreFew(t *testing.T) {
	var all []pumpBuffer
	for range bulkMost {
		all = append(all, takeBuffer(bulkSize, true))
	}
	if one := takeBuffer(bulkSize, true); len(one.bytes()) != pumpSize {
		t.Errorf("with all in use there is one of %d bytes", len(one.bytes()))
	} else {
		one.put()
	}
	thrifty := takeBuffer(thriftySize, true)
	if len(thrifty.bytes()) != thriftySize {
		t.Errorf("a thrifty pump has a buffer of %d bytes", len(thrifty.bytes()))
	}
	thrifty.put()
	<-bulkTokens // there would be one
	modest := takeBuffer(pumpSize, true)
	if len(modest.bytes()) != pumpSize {
		t.Errorf("a connection of %d bytes has a buffer of %d", pumpSize, len(modest.bytes()))
	}
	modest.put()
	bulkTokens <- struct{}{}
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
