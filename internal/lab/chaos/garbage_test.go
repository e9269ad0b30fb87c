package chaos

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// TestPiecesOfGarbage: they fit, they are never empty, and the same seed makes the
// same ones.
func TestPiecesOfGarbage(t *testing.T) {
	for _, network := range []string{"udp", "tcp", "unix", "unixpacket"} {
		r, again := rand.New(rand.NewPCG(1, 2)), rand.New(rand.NewPCG(1, 2))
		heads := make(map[byte]bool)
		for range 2000 {
			p := piece(r, network, 1400)
			if len(p) < 1 || len(p) > 1400 {
				t.Fatalf("%s: a piece of %d bytes, want 1 to 1400", network, len(p))
			}
			if !bytes.Equal(p, piece(again, network, 1400)) {
				t.Fatalf("%s: the same seed makes another piece", network)
			}
			heads[p[0]] = true
		}
		if len(heads) < 100 {
			t.Errorf("%s: only %d different first bytes", network, len(heads))
		}
	}
}
