package quic

import (
	"runtime"
	"testing"

	"github.com/fabricd/fabricd/internal/test/netsim"
	"github.com/fabricd/fabricd/internal/test/transporttest"
	"github.com/fabricd/fabricd/internal/transport"
)

// laneCost is the documented cost of a lane to its receiver before the first byte, in bytes.
const laneCost = 1 << 10

// TestAPacketOpensLanesForWhatIsDocumented lets a peer name the last of its lanes at once: those
// before it exist then too, at the cost documented in config.go.
func TestAPacketOpensLanesForWhatIsDocumented(t *testing.T) {
	const many = 8192
	network := netsim.New(1)
	defer network.Close()
	ca := transporttest.NewAuthority(t)
	receiver := member(ca, idB)
	receiver.MaxLanes = many
	a := start(t, network, addrA, member(ca, idA))
	sa, sb := transporttest.Connect(t, a, start(t, network, addrB, receiver))
	var last transport.SendLane
	for range many - 1 { // the confirmation of the handshake may still be one of them
		lane, err := sa.OpenLane(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		last = lane
	}
	before := heap()
	if _, err := last.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := sb.AcceptLane(t.Context()); err != nil { // the first, once all exist
		t.Fatal(err)
	}
	each := (heap() - before) / (many - 1)
	t.Logf("%d bytes for each of %d lanes", each, many-1)
	if each > laneCost {
		t.Errorf("a lane costs %d bytes, config.go says at most %d", each, laneCost)
	}
	runtime.KeepAlive(last)
}

// heap returns the bytes in use after a collection.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
