package membership

import (
	"context"
	"testing"
	"time"

	"github.com/fabricd/fabricd/membership/gossip"
)

// TestManyRotationsUnderTraffic has the nodes renew a hundred certificates and
// ten keys of the gossip, while connections stay open and busy.
func TestManyRotationsUnderTraffic(t *testing.T) {
	const certificates, keys = 100, 10
	inWorld(t, func(t *testing.T, w *world) {
		short := func(c *Config) { c.Detection, c.CertificateValidity = gossip.Calm, time.Minute }
		w.host(short)
		w.join(2, short)
		w.join(3, short)
		w.within(10*time.Second, "all see all", func() bool { return mesh(w.all) })
		time.Sleep(5 * time.Second)
		began := time.Now()
		stop := w.traffic()
		serials, version := make(map[string]bool), uint32(0)
		for version < keys+1 || len(serials) < certificates+len(w.all) {
			if time.Since(began) > time.Hour {
				t.Errorf("after an hour: %d certificates, key %d", len(serials), version)
				break
			}
			for _, n := range w.all {
				serials[n.a.cfg.Trust.Credentials().Chain[0].SerialNumber.String()] = true
			}
			if version < keys+1 {
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				v, err := w.node(1).a.RotateGossipKey(ctx)
				cancel()
				if err != nil || v != max(version, 1)+1 {
					t.Fatalf("rotation of the key after version %d: %d, %v", version, v, err)
				}
				version = v
			}
			time.Sleep(5 * time.Second)
		}
		t.Logf("%d certificates and key %d after %v", len(serials), version, time.Since(began))
		if trips := stop(); trips < 300 {
			t.Errorf("%d round trips, want traffic all the time", trips)
		}
		w.wantUndisturbed(began)
	})
}
