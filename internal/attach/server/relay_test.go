package server

import "testing"

// TestLargeBuffersAreFew: a relay that wants a large buffer when none is left gets a small one, and
// all are returned. A relay whose connection buffers less gets none.
func TestLargeBuffersAreFew(t *testing.T) {
	var all []relayBuffer
	for range bulkMost {
		all = append(all, takeBuffer(bulkSize, true))
	}
	if one := takeBuffer(bulkSize, true); len(*one.bytes) != relaySize {
		t.Errorf("with all in use there is one of %d bytes", len(*one.bytes))
	} else {
		one.put()
	}
	thrifty := takeBuffer(thriftySize, true)
	if len(*thrifty.bytes) != thriftySize {
		t.Errorf("a thrifty relay has a buffer of %d bytes", len(*thrifty.bytes))
	}
	thrifty.put()
	<-bulkTokens // there would be one
	modest := takeBuffer(relaySize, true)
	if len(*modest.bytes) != relaySize {
		t.Errorf("a connection of %d bytes has a buffer of %d", relaySize, len(*modest.bytes))
	}
	modest.put()
	bulkTokens <- struct{}{}
	for _, b := range all {
		if len(*b.bytes) != bulkSize {
			t.Errorf("a large buffer has %d bytes", len(*b.bytes))
		}
		b.put()
	}
	if len(bulkTokens) != 0 {
		t.Errorf("%d tokens are out", len(bulkTokens))
	}
}
