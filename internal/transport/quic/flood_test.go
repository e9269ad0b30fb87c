package quic

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	quicgo "github.com/quic-go/quic-go"
	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/internal/test/bubble"
	"github.com/fabricd/fabricd/internal/test/netsim"
	"github.com/fabricd/fabricd/internal/test/testca"
	"github.com/fabricd/fabricd/internal/test/transporttest"
)

// initialPacket looks like the first packet of a handshake until it is decrypted: a server makes
// state for it, or asks for a proof of the address.
func initialPacket(random *rand.Rand) []byte {
	p := []byte{0xc3, 0, 0, 0, 1, 8} // long header, Initial, version 1
	p = binary.BigEndian.AppendUint64(p, random.Uint64())
	p = append(p, 8)
	p = binary.BigEndian.AppendUint64(p, random.Uint64())
	p = append(p, 0) // no token
	const rest = 1200 - 25
	p = binary.BigEndian.AppendUint16(p, 0x4000|rest)
	return append(p, make([]byte, rest)...)
}

// memory returns the process's memory for objects and stacks, in bytes.
func memory() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}

// TestAFloodOfInitialsCostsNoMemory: a dialer that does not prove its address gets no state
// beyond a few handshakes.
func TestAFloodOfInitialsCostsNoMemory(t *testing.T) {
	ca := testca.New()
	log := &logBuffer{}
	cfg := member(ca, idB)
	cfg.Log = zerolog.New(log)
	a, b := listen(t, member(ca, idA)), listen(t, cfg)
	defer a.Close()
	defer b.Close()
	flood, err := net.Dial("udp", b.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer flood.Close()
	random := rand.New(rand.NewPCG(1, 2))
	before, most, pending := memory(), int64(0), 0
	for i := range 20000 {
		if _, err := flood.Write(initialPacket(random)); err != nil {
			t.Fatal(err)
		}
		places, _ := b.incoming.Taken()
		pending = max(pending, places)
		if i%2000 == 1000 {
			most = max(most, memory())
		}
		if i == 10000 {
			transporttest.Connect(t, a, b)
		}
	}
	if pending > retryAbove+1 { // and the honest one
		t.Errorf("%d handshakes were under way, want at most %d", pending, retryAbove+1)
	}
	if grown := most - before; grown > 12<<20 {
		t.Errorf("memory grew by %d KiB", grown>>10)
	} else {
		t.Logf("memory grew by %d KiB", grown>>10)
	}
	if n := strings.Count(log.String(), "\n"); n > 30 {
		t.Errorf("%d lines were logged", n)
	}
}

// A halfway is the socket of a client that proves its address and then sends nothing more: it
// receives nothing but Retry.
type halfway struct{ net.PacketConn }

func (c halfway) ReadFrom(p []byte) (int, net.Addr, error) {
	for {
		n, from, err := c.PacketConn.ReadFrom(p)
		if err != nil || n > 0 && p[0]&0xf0 == 0xf0 {
			return n, from, err
		}
	}
}

// stall opens handshakes from so many ports of an address, which last until ctx ends.
func stall(ctx context.Context, t *testing.T, network *netsim.Network, cfg Config, from string, count int) {
	t.Helper()
	tlsConfig, err := cfg.tls(nil).ClientConfig()
	if err != nil {
		t.Fatal(err)
	}
	to, err := resolve(ctx, addrB)
	if err != nil {
		t.Fatal(err)
	}
	for i := range count {
		socket, err := network.ListenPacket(fmt.Sprintf("%s:%d", from, 2000+i))
		if err != nil {
			t.Fatal(err)
		}
		client := &quicgo.Transport{Conn: halfway{socket}}
		go func() { // ends with ctx
			if conn, err := client.Dial(ctx, to, tlsConfig, cfg.quicConfig()); err == nil {
				t.Errorf("a client that sees nothing has a connection: %v", conn.RemoteAddr())
			}
			client.Close()
			socket.Close()
		}()
	}
}

// TestStrangersShareTheHandshakes: neither one address nor one network, nor many of them, block
// peers that hold fewer, or known ones.
func TestStrangersShareTheHandshakes(t *testing.T) {
	for name, c := range map[string]struct {
		from  func(i int) string // stalls 16 handshakes
		count int
		known bool
		taken int // slots
	}{
		"one address":   {func(int) string { return "10.9.9.1" }, 1, false, 8},
		"one network":   {func(i int) string { return fmt.Sprintf("10.9.9.%d", i) }, 8, false, 12},
		"many networks": {func(i int) string { return fmt.Sprintf("10.9.%d.1", i) }, 8, true, 18},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				ca := testca.New()
				network := netsim.New(1)
				network.SetDefaultRules(netsim.Rules{Delay: time.Millisecond})
				cfg := member(ca, idB)
				cfg.MaxHandshakes, cfg.HandshakeTimeout = 32, time.Minute
				cfg.Known = func(a netip.Addr) bool { return c.known && a.String() == "10.0.0.1" }
				b := start(t, network, addrB, cfg)
				a := start(t, network, addrA, member(ca, idA))
				ctx, cancel := context.WithCancel(t.Context())
				bad := member(ca, idA)
				bad, err := bad.withDefaultsForTest()
				if err != nil {
					t.Fatal(err)
				}
				for i := range c.count {
					stall(ctx, t, network, bad, c.from(i), 16)
				}
				time.Sleep(100 * time.Millisecond)
				if _, n := b.incoming.Taken(); n == 0 || n > c.taken {
					t.Errorf("%d slots are taken, want at most %d", n, c.taken)
				}
				began := time.Now()
				transporttest.Connect(t, a, b)
				if d := time.Since(began); d > time.Second {
					t.Errorf("an honest peer was let in after %v", d)
				}
				if n, _ := b.incoming.Taken(); n > 32 {
					t.Errorf("%d handshakes are under way", n)
				}
				cancel()
				synctest.Wait()
				a.Close()
				b.Close()
			})
		})
	}
}

// TestAPeersReasonIsPrintable: it ends up in logs and terminals.
func TestAPeersReasonIsPrintable(t *testing.T) {
	err := closeError(&quicgo.ApplicationError{Remote: true, ErrorMessage: "\x1b[2J\r\nroot# \xff"})
	if got := err.Error(); !strings.HasSuffix(got, `\x1b[2J\r\nroot# \xff`) {
		t.Errorf("the session ended with %q", got)
	}
}
