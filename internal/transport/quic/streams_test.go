package quic

import (
	"runtime"
	"testing"

	"github.com/fabricd/fabricd/internal/test/netsim"
	"github.com/fabricd/fabricd/internal/test/testca"
	"github.com/fabricd/fabricd/internal/test/transporttest"
	"github.com/fabricd/fabricd/internal/transport"
)

// streamCost is the documented cost of a stream to its receiver before the first byte, in bytes.
const streamCost = 1 << 10

// TestAPacketOpensStreamsForWhatIsDocumented lets a peer name the last of its streams at once: those
// before it exist then too, at the cost documented in config.go.
func TestAPacketOpensStreamsForWhatIsDocumented(t *testing.T) {
	const many = 8192
	network := netsim.New(1)
	defer network.Close()
	ca := testca.New()
	receiver := member(ca, idB)
	receiver.MaxStreams = many
	a := start(t, network, addrA, member(ca, idA))
	sa, sb := transporttest.Connect(t, a, start(t, network, addrB, receiver))
	var last transport.SendStream
	for range many - 1 { // the confirmation of the handshake may still be one of them
		stream, err := sa.OpenStream(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		last = stream
	}
	before := heap()
	if _, err := last.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := sb.AcceptStream(t.Context()); err != nil { // the first, once all exist
		t.Fatal(err)
	}
	each := (heap() - before) / (many - 1)
	t.Logf("%d bytes for each of %d streams", each, many-1)
	if each > streamCost {
		t.Errorf("a stream costs %d bytes, config.go says at most %d", each, streamCost)
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
