package main

import (
	"strconv"
	"strings"
	"testing"
)

// connMost is the most that a connection may cost, both ends and the goroutines
// that wait there, in bytes: 66,000 over QUIC and 80,000 over TCP were measured
// once a message had gone both ways, half of that before. Stacks are larger under
// the race detector.
const connMost = 128 << 10

// TestTenThousandConnectionsFitOnOneLink opens them all at once, with the limits
// that a node has by itself; with the race detector a tenth of them.
func TestTenThousandConnectionsFitOnOneLink(t *testing.T) {
	conns := 10_000
	if raceEnabled {
		conns = 1000
	}
	for _, provider := range []string{providerQUIC, providerTCP, providerMem} {
		t.Run(provider, func(t *testing.T) {
			temporaries(t)
			d := document(t, "run", "conn_scale", "--provider", provider, "--conns", strconv.Itoa(conns), "--reps", "1")
			last := d.Results[len(d.Results)-1]
			if last.Conns != int64(conns) || last.Rate <= 0 {
				t.Fatalf("it ends with %d connections: %v", last.Conns, d.Notes)
			}
			if last.ConnBytes > connMost {
				t.Errorf("a connection costs %v bytes, want at most %d", last.ConnBytes, connMost)
			}
			for _, n := range d.Notes {
				if strings.Contains(n, "ends before") {
					t.Error(n)
				}
			}
			t.Logf("%.0f a second, %.0f bytes each", float64(last.Rate), float64(last.ConnBytes))
		})
	}
}
