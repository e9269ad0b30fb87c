package engine_test

import (
	"context"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/transport/stream"
)

// A streamNet is a chaosNet of TCP over streams in memory.
type streamNet struct {
	packetNet
	plaintext bool
}

// newStreamNet returns a function that makes one.
func newStreamNet(plaintext bool) func(*testing.T, uint64) chaosNet {
	return func(t *testing.T, s uint64) chaosNet { return streamNet{newPacketNet(t, s).(packetNet), plaintext} }
}

func (n streamNet) provider(i int) (transport.Provider, error) {
	l, err := n.Listen(packetHost(i) + ":7000")
	if err != nil {
		return nil, err
	}
	return stream.New(stream.Config{Config: n.quicker.member(i), Listener: l, Plaintext: n.plaintext,
		Dial: func(ctx context.Context, to string) (net.Conn, error) { return n.Dial(ctx, packetHost(i), to) }})
}

// kill ends a process, and its machine resets the streams, or the machine itself.
func (n streamNet) kill(i int, rng *rand.Rand) {
	if rng.IntN(2) == 0 {
		for j := range chaosNodes {
			n.cut(i, j)
		}
	}
	n.Crash(packetHost(i))
}

// TestRandomProgramsOverTCP runs chaoses over streams, which stall where packets
// are lost.
func TestRandomProgramsOverTCP(t *testing.T) {
	for name, plaintext := range map[string]bool{"tls": false, "plaintext": true} {
		t.Run(name, func(t *testing.T) { runChaos(t, newStreamNet(plaintext), 2, 1500*time.Millisecond) })
	}
}
