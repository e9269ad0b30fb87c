//go:build amd64 || arm64

package quic

import (
	"bytes"
	"encoding/binary"
	"net"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/ipv4"
)

// together sends p as packets of size bytes each, in one call.
func together(t *testing.T, from *net.UDPConn, to net.Addr, p []byte, size int) {
	t.Helper()
	const udpSegment = 103
	oob := make([]byte, syscall.CmsgSpace(2))
	binary.NativeEndian.PutUint64(oob, uint64(syscall.CmsgLen(2)))
	binary.NativeEndian.PutUint32(oob[8:], syscall.IPPROTO_UDP)
	binary.NativeEndian.PutUint32(oob[12:], udpSegment)
	binary.NativeEndian.PutUint16(oob[16:], uint16(size))
	if _, _, err := from.WriteMsgUDP(p, oob, to.(*net.UDPAddr)); err != nil {
		t.Fatal(err)
	}
}

func loopback(t *testing.T) *net.UDPConn {
	t.Helper()
	c, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// TestPacketsThatTheKernelPutTogether come out as they were sent: each by itself,
// with its sender, also from two senders in turns and with a shorter last one.
func TestPacketsThatTheKernelPutTogether(t *testing.T) {
	in := loopback(t)
	c, ok := ReceiveOffload(in).(*groConn)
	if !ok {
		t.Fatal("this kernel has no UDP_GRO")
	}
	a, b := loopback(t), loopback(t)
	together(t, a, in.LocalAddr(), bytes.Repeat([]byte("a"), 20*1000+10), 1000)
	together(t, b, in.LocalAddr(), bytes.Repeat([]byte("b"), 3*1400), 1400)
	if _, err := a.WriteTo([]byte("single"), in.LocalAddr()); err != nil {
		t.Fatal(err)
	}
	in.SetReadDeadline(time.Now().Add(10 * time.Second))
	ms := make([]ipv4.Message, 8)
	reads, got := 0, map[int][]string{}
	for total := 0; total < 21+3+1; reads++ {
		for i := range ms {
			ms[i].Buffers, ms[i].OOB = [][]byte{make([]byte, 1452)}, make([]byte, 128)
		}
		n, err := c.ReadBatch(ms, 0)
		if err != nil || n == 0 {
			t.Fatalf("%d packets, %v", n, err)
		}
		total += n
		for _, m := range ms[:n] {
			port := m.Addr.(*net.UDPAddr).Port
			got[port] = append(got[port], string(m.Buffers[0][:m.N]))
		}
	}
	fromA, fromB := got[a.LocalAddr().(*net.UDPAddr).Port], got[b.LocalAddr().(*net.UDPAddr).Port]
	if len(fromA) != 22 || len(fromA[0]) != 1000 || len(fromA[20]) != 10 || fromA[21] != "single" {
		t.Errorf("%d packets of the first sender, the first %d and the last %d long", len(fromA), len(fromA[0]), len(fromA[len(fromA)-1]))
	}
	if len(fromB) != 3 || len(fromB[2]) != 1400 {
		t.Errorf("%d packets of the second sender", len(fromB))
	}
	t.Logf("25 packets in %d reads", reads)
}

func FuzzSegmentSize(f *testing.F) {
	f.Add([]byte{20, 0, 0, 0, 0, 0, 0, 0, 17, 0, 0, 0, 104, 0, 0, 0, 0xe8, 3, 0, 0, 0, 0, 0, 0}, 5000)
	f.Fuzz(func(t *testing.T, oob []byte, n int) {
		if n < 0 || n > largestRead {
			return
		}
		if size := segmentSize(oob, n); size > n || size <= 0 && n > 0 {
			t.Errorf("packets of %d bytes in %d", size, n)
		}
	})
}
