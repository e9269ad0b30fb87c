package quic

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fabricd/fabricd/internal/test/bubble"
	"github.com/fabricd/fabricd/internal/test/netsim"
	"github.com/fabricd/fabricd/internal/test/testca"
	"github.com/fabricd/fabricd/internal/test/transporttest"
	"github.com/fabricd/fabricd/internal/transport"
)

const delay = 5 * time.Millisecond

// restarted returns a session from A to a B that has since crashed and come
// back at the same address with the same reset key.
func restarted(t *testing.T) (transport.Session, transport.SendStream) {
	t.Helper()
	ca := testca.New()
	cfgB := member(ca, idB)
	cfgB.StatelessResetKey = &[32]byte{1, 2, 3}
	sim := netsim.New(1)
	sim.SetDefaultRules(netsim.Rules{Delay: delay})
	a := start(t, sim, addrA, member(ca, idA))
	b := start(t, sim, addrB, cfgB)
	sa, _ := transporttest.Connect(t, a, b)
	stream, err := sa.OpenStream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	stream.Write([]byte("settle"))
	time.Sleep(100 * time.Millisecond) // acknowledgements of the handshake
	sim.Crash("10.0.0.2")
	b.Close()
	start(t, sim, addrB, cfgB)
	return sa, stream
}

func TestHeartbeatToARestartedPeerResets(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		sa, _ := restarted(t)
		began := time.Now()
		if err := sa.SendDatagram(make([]byte, 64)); err != nil {
			t.Fatal(err)
		}
		<-sa.Done()
		var got *transport.CloseError
		if !errors.As(sa.Err(), &got) || !got.Reset {
			t.Errorf("session ended with %v, want a reset", sa.Err())
		}
		if d := time.Since(began); d > 2*delay+time.Millisecond {
			t.Errorf("reset seen after %v, want a round trip of %v", d, 2*delay)
		}
	})
}

func TestTinyPacketsToARestartedPeerTimeOut(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		sa, stream := restarted(t)
		began := time.Now()
		stream.Write([]byte("x")) // as small on the wire as a keep-alive
		<-sa.Done()
		var got *transport.CloseError
		if !errors.As(sa.Err(), &got) || !got.Timeout {
			t.Errorf("session ended with %v, want a timeout: why heartbeats are datagrams of 64 bytes", sa.Err())
		}
		if d := time.Since(began); d < 4*time.Second {
			t.Errorf("timeout after %v, want the idle timeout", d)
		}
	})
}

func TestSilentPeerTimesOut(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		sim := netsim.New(1)
		a, b := simulated(t, sim)
		sa, sb := transporttest.Connect(t, a, b)
		sim.Partition([]string{"10.0.0.1"}, []string{"10.0.0.2"})
		began := time.Now()
		sa.SendDatagram(make([]byte, 64))
		for _, s := range []transport.Session{sa, sb} {
			<-s.Done()
			var got *transport.CloseError
			if !errors.As(s.Err(), &got) || *got != (transport.CloseError{Timeout: true}) {
				t.Errorf("session ended with %v, want a timeout", s.Err())
			}
		}
		if d := time.Since(began); d > 6*time.Second {
			t.Errorf("silence noticed after %v, want about 5s", d)
		}
	})
}

func TestProviderCloseDuringHandshakesEnds(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		sim := netsim.New(1)
		sim.SetDefaultRules(netsim.Rules{Delay: delay})
		a, b := simulated(t, sim)
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				if _, err := a.Dial(t.Context(), addrB); err == nil {
					return // it was fast enough
				}
			})
		}
		time.Sleep(delay + delay/2)
		began := time.Now()
		b.Close()
		a.Close()
		if d := time.Since(began); d > time.Second {
			t.Errorf("close took %v", d)
		}
		all.Wait()
	})
}

func TestBytesAreExactOverABadNetwork(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		sim := netsim.New(5)
		sim.SetDefaultRules(netsim.Rules{
			Delay: time.Millisecond, Jitter: time.Millisecond,
			Loss: 0.05, Duplicate: 0.05, Reorder: 0.05,
		})
		a, b := simulated(t, sim)
		sa, sb := transporttest.Connect(t, a, b)
		var all sync.WaitGroup
		for i := range 4 {
			all.Go(func() {
				s, err := sa.OpenStream(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				defer s.Close()
				if _, err := s.Write(noise(byte(i), 1<<20)); err != nil {
					t.Error(err)
				}
			})
		}
		for range 4 {
			r, err := sb.AcceptStream(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(r)
			if err != nil || len(got) == 0 || !bytes.Equal(got, noise(got[0], 1<<20)) {
				t.Errorf("%d bytes arrived, %v; want exactly what was sent", len(got), err)
			}
		}
		all.Wait()
		if k := sim.Counters(); k.Lost == 0 || k.Duplicated == 0 || k.Reordered == 0 {
			t.Errorf("the network was good: %+v", k)
		}
	})
}

// noise returns n bytes of a seeded stream; the first is seed.
func noise(seed byte, n int) []byte {
	p := make([]byte, n)
	rand.NewChaCha8([32]byte{seed}).Read(p)
	p[0] = seed
	return p
}

func TestTheWireShowsNothing(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		sim := netsim.New(1)
		var mu sync.Mutex // guards wire
		var wire bytes.Buffer
		sim.Capture(func(_, _ string, p []byte) {
			mu.Lock()
			defer mu.Unlock()
			wire.Write(p)
		})
		ca := testca.New()
		var sni atomic.Value
		cfgB := member(ca, idB)
		inner := cfgB.ServerTLS
		cfgB.ServerTLS = func() *tls.Config {
			c := inner()
			c.GetCertificate = func(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
				sni.Store(h.ServerName)
				return &inner().Certificates[0], nil
			}
			c.Certificates = nil
			return c
		}
		a := start(t, sim, addrA, member(ca, idA))
		b := start(t, sim, addrB, cfgB)
		sa, sb := transporttest.Connect(t, a, b)
		secret := []byte("a payload that must not be seen")
		stream, _ := sa.OpenStream(t.Context())
		stream.Write(secret)
		r, err := sb.AcceptStream(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(r, make([]byte, len(secret))); err != nil {
			t.Fatal(err)
		}
		sa.SendDatagram(secret)
		if _, err := sb.ReceiveDatagram(t.Context()); err != nil {
			t.Fatal(err)
		}
		sa.Close(transport.CodeLeaving, "a reason that must not be seen")
		<-sb.Done()

		mu.Lock()
		defer mu.Unlock()
		if wire.Len() < 2000 {
			t.Fatalf("captured %d bytes only", wire.Len())
		}
		for what, p := range map[string][]byte{
			"payload": secret, "reason": []byte("must not be seen"),
			"certificate name": []byte("node-name"), "authority": []byte("authority-name"),
			"UUID as text": []byte(idA.Node.String()), "URI": []byte("fabricd://"),
			"UUID as bytes": idB.Node[:],
		} {
			if bytes.Contains(wire.Bytes(), p) {
				t.Errorf("the wire shows the %s", what)
			}
		}
		if name, _ := sni.Load().(string); name != "" {
			t.Errorf("the ClientHello, which anyone can decrypt, names %q", name)
		}
	})
}

// A session's count of sent bytes equals the bytes on the wire, lost and resent packets included.
func TestTrafficIsWhatTheWireSees(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		sim := netsim.New(3)
		sim.SetDefaultRules(netsim.Rules{Delay: time.Millisecond, Loss: 0.05})
		var seen [2]atomic.Uint64 // from a, from b
		sim.Capture(func(from, _ string, p []byte) {
			if from == addrA {
				seen[0].Add(uint64(len(p)))
			} else {
				seen[1].Add(uint64(len(p)))
			}
		})
		a, b := simulated(t, sim)
		sa, sb := transporttest.Connect(t, a, b)
		stream, err := sa.OpenStream(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Write(noise(1, 1<<20)); err != nil {
			t.Fatal(err)
		}
		if err := stream.Close(); err != nil {
			t.Fatal(err)
		}
		r, err := sb.AcceptStream(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, r); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		traffic := sa.Traffic()
		sent, received := traffic.Sent, traffic.Received
		if sent != seen[0].Load() || sent < 1<<20 {
			t.Errorf("sent %d bytes, the wire saw %d", sent, seen[0].Load())
		}
		if back := seen[1].Load(); received == 0 || received > back {
			t.Errorf("received %d bytes of %d", received, back)
		}
	})
}

func TestPausedAcceptKeepsStreams(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		a, b := simulated(t, netsim.New(1))
		sa, err := a.Dial(t.Context(), addrB)
		if err != nil {
			t.Fatal(err)
		}
		stream, err := sa.OpenStream(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		stream.Write([]byte("early"))
		stream.Close()
		sa.SendDatagram([]byte("early too"))
		time.Sleep(time.Second)
		sb, err := b.Accept(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		r, err := sb.AcceptStream(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(r); string(got) != "early" || err != nil {
			t.Errorf("read %q, %v", got, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if got, err := sb.ReceiveDatagram(ctx); string(got) != "early too" {
			t.Errorf("received %q, %v", got, err)
		}
	})
}

func TestBufferWarningNamesTheRemedy(t *testing.T) {
	c, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetReadBuffer(64 << 10); err != nil {
		t.Fatal(err)
	}
	if got := BufferWarning(c); !bytes.Contains([]byte(got), []byte("net.core.rmem_max")) {
		t.Errorf("warning for a small buffer is %q", got)
	}
	GrowBuffers(c)
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	recv, send, err := socketBuffers(raw)
	if err != nil {
		t.Fatal(err)
	}
	// The kernel grants twice the requested size, up to its limit.
	if want := min(wantedBuffer, 2*kernelLimit(t, "rmem_max")); recv < want {
		t.Errorf("%d bytes to receive, want %d at least", recv, want)
	}
	if want := min(wantedBuffer, 2*kernelLimit(t, "wmem_max")); send < want {
		t.Errorf("%d bytes to send, want %d at least", send, want)
	}
	if got := BufferWarning(c); (got == "") != (min(recv, send) >= wantedBuffer) {
		t.Errorf("buffers of %d and %d bytes, warning %q", recv, send, got)
	}
}

// kernelLimit reads a limit of the network stack.
func kernelLimit(t *testing.T, name string) int {
	t.Helper()
	text, err := os.ReadFile("/proc/sys/net/core/" + name)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	return n
}
