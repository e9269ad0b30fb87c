package daemon

import (
	"bytes"
	"context"
	"testing"
	"testing/synctest"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/test/bubble"
)

// TestLinksShowTheLeaseOfTheirIncarnation: what the engine shows in its HELLOs is what the
// host has signed for the incarnation that it has now.
func TestLinksShowTheLeaseOfTheirIncarnation(t *testing.T) {
	host, node := testHost(t)
	a := startTest(t, node("a"))
	sees(t, host, a.live.get().engine.Self().Incarnation.Node)
	var shown [2][]byte
	for i, d := range []*Daemon{host, a} {
		self := d.live.get().engine.Self()
		if shown[i] = self.Lease(); len(shown[i]) == 0 || !bytes.Contains(shown[i], self.UUID[:]) {
			t.Errorf("%s shows a lease of %d bytes, want one with its UUID", d.cfg.Name, len(shown[i]))
		}
	}
	if bytes.Equal(shown[0], shown[1]) {
		t.Error("both show the same lease")
	}
	ctx, cancel := context.WithTimeout(t.Context(), testLimit)
	defer cancel()
	if _, err := a.live.get().engine.Ping(ctx, addr.Host); err != nil {
		t.Error(err)
	}
}

func TestLeasesWaitForMembership(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		l := newLeases(ctx)
		got := make(chan []byte, 1)
		go func() { got <- l.own() }()
		synctest.Wait()
		if len(got) > 0 {
			t.Error("it did not wait")
		}
		cancel()
		if lease := <-got; lease != nil {
			t.Errorf("after the end it shows %x", lease)
		}
	})
}
