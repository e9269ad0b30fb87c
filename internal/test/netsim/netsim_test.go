package netsim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/nettest"

	"github.com/fabricd/fabricd/internal/test/bubble"
)

const (
	hostA = "10.0.0.1"
	hostB = "10.0.0.2"
)

// streams returns the dialing and the accepting end of a stream from A to B.
func streams(t *testing.T, n *Network) (a, b net.Conn) {
	t.Helper()
	l, err := n.Listen(hostB + ":0")
	if err != nil {
		t.Fatal(err)
	}
	if a, err = n.Dial(t.Context(), hostA, l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if b, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	return a, b
}

// sockets returns a packet socket on A and one on B.
func sockets(t *testing.T, n *Network) (a, b *PacketConn) {
	t.Helper()
	a, err := n.ListenPacket(hostA + ":7000")
	if err != nil {
		t.Fatal(err)
	}
	b, err = n.ListenPacket(hostB + ":7000")
	if err != nil {
		t.Fatal(err)
	}
	return a, b
}

func TestStreamKeepsTheRulesOfNetConn(t *testing.T) {
	nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
		n := New(1)
		l, err := n.Listen(hostB + ":7000")
		if err != nil {
			return nil, nil, nil, err
		}
		if c1, err = n.Dial(context.Background(), hostA, hostB+":7000"); err != nil {
			return nil, nil, nil, err
		}
		c2, err = l.Accept()
		return c1, c2, func() { n.Close() }, err
	})
}

func TestStreamIsDelayedAndInOrder(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := New(7)
		defer n.Close()
		n.SetDefaultRules(Rules{Delay: 10 * time.Millisecond, Jitter: 30 * time.Millisecond, Loss: 0.05})
		a, b := streams(t, n)
		start := time.Now()
		go func() {
			for i := range 1000 {
				fmt.Fprintf(a, "%04d", i)
			}
			a.Close()
		}()
		got, err := io.ReadAll(b)
		if err != nil || len(got) != 4000 {
			t.Fatalf("read %d bytes and %v, want 4000 and EOF", len(got), err)
		}
		for i := range 1000 {
			if want := fmt.Sprintf("%04d", i); string(got[4*i:4*i+4]) != want {
				t.Fatalf("segment %d is %q, want %q", i, got[4*i:4*i+4], want)
			}
		}
		if d := time.Since(start); d < 10*time.Millisecond {
			t.Errorf("all arrived after %v, before the link's delay", d)
		}
	})
}

func TestHalfClose(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := New(1)
		defer n.Close()
		a, b := streams(t, n)
		a.Write([]byte("question"))
		if err := a.(*Conn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if q, err := io.ReadAll(b); string(q) != "question" || err != nil {
			t.Fatalf("read %q, %v", q, err)
		}
		b.Write([]byte("answer"))
		b.Close()
		if q, err := io.ReadAll(a); string(q) != "answer" || err != nil {
			t.Fatalf("read %q, %v", q, err)
		}
		if _, err := a.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
			t.Errorf("write after CloseWrite: %v, want EPIPE", err)
		}
	})
}

func TestWriteWaitsWhenTheReaderDoesNot(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := New(1)
		defer n.Close()
		a, b := streams(t, n)
		a.SetWriteDeadline(time.Now().Add(time.Second))
		got, err := a.Write(make([]byte, streamBuffer+1))
		if got != streamBuffer || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("wrote %d, %v; want %d and a deadline", got, err, streamBuffer)
		}
		a.SetWriteDeadline(time.Time{})
		done := make(chan error, 1)
		go func() { _, err := a.Write([]byte("x")); done <- err }()
		synctest.Wait()
		if _, err := io.ReadFull(b, make([]byte, 10)); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Errorf("write after room was made: %v", err)
		}
	})
}

func TestDialIsRefusedWhereNobodyListens(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := New(1)
		defer n.Close()
		n.SetDefaultRules(Rules{Delay: 5 * time.Millisecond})
		start := time.Now()
		_, err := n.Dial(t.Context(), hostA, hostB+":1")
		if !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("dial: %v, want ECONNREFUSED", err)
		}
		if d := time.Since(start); d != 10*time.Millisecond {
			t.Errorf("refused after %v, want a round trip", d)
		}
	})
}

func TestCutStallsStreamsAndHangsDials(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := New(1)
		defer n.Close()
		a, b := streams(t, n)
		n.Partition([]string{hostA}, []string{hostB})
		a.Write([]byte("late"))
		a.Close()
		b.SetReadDeadline(time.Now().Add(time.Hour))
		if _, err := b.Read(make([]byte, 4)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("read over a cut link: %v, want only the deadline", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := n.Dial(ctx, hostA, b.LocalAddr().String()); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("dial over a cut link: %v, want only the context", err)
		}
		b.SetReadDeadline(time.Time{})
		time.AfterFunc(time.Second, n.Heal)
		if got, err := io.ReadAll(b); string(got) != "late" || err != nil {
			t.Errorf("after Heal read %q, %v", got, err)
		}
	})
}

func TestCrashResetsPeersAfterTheDelay(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := New(1)
		defer n.Close()
		n.SetDefaultRules(Rules{Delay: 20 * time.Millisecond})
		a, b := streams(t, n)
		pa, pb := sockets(t, n)
		start := time.Now()
		n.Crash(hostB)
		if _, err := a.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("peer's read: %v, want ECONNRESET", err)
		}
		if d := time.Since(start); d != 20*time.Millisecond {
			t.Errorf("reset seen after %v, want the link's delay", d)
		}
		if _, err := a.Write([]byte("x")); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("peer's write: %v, want ECONNRESET", err)
		}
		if _, err := b.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("read on the crashed host: %v, want ErrClosed", err)
		}
		if _, _, err := pb.ReadFrom(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("packet read on the crashed host: %v, want ErrClosed", err)
		}
		if _, err := pa.WriteTo([]byte("x"), pb.LocalAddr()); err != nil {
			t.Errorf("packet to a crashed host: %v, want silence", err)
		}
		if got := n.Counters().NoReceiver; got != 1 {
			t.Errorf("%d packets without receiver, want 1", got)
		}
		if _, err := n.ListenPacket(pb.LocalAddr().String()); err != nil {
			t.Errorf("restarted host: %v", err)
		}
	})
}

func TestCloseWithUnreadDataResets(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := New(1)
		defer n.Close()
		a, b := streams(t, n)
		a.Write([]byte("unread"))
		b.Close()
		if _, err := a.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("read: %v, want ECONNRESET", err)
		}
	})
}

// collect reads packets from c until none has come for an hour.
func collect(t *testing.T, c *PacketConn) []string {
	t.Helper()
	var got []string
	buf := make([]byte, 100)
	for {
		c.SetReadDeadline(time.Now().Add(time.Hour))
		k, _, err := c.ReadFrom(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return got
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, string(buf[:k]))
	}
}

// sendAndCollect sends count numbered packets, one per millisecond.
func sendAndCollect(t *testing.T, n *Network, count int) []string {
	t.Helper()
	a, b := sockets(t, n)
	for i := range count {
		if _, err := a.WriteTo(fmt.Appendf(nil, "%05d", i), b.LocalAddr()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
	return collect(t, b)
}

func inversions(s []string) (k int) {
	for i := 1; i < len(s); i++ {
		if s[i] < s[i-1] {
			k++
		}
	}
	return k
}

func TestPacketsWithoutRulesArriveInOrder(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := New(1)
		defer n.Close()
		n.SetDefaultRules(Rules{Delay: 50 * time.Millisecond})
		got := sendAndCollect(t, n, 500)
		if len(got) != 500 || inversions(got) != 0 {
			t.Errorf("%d packets with %d inversions, want 500 in order", len(got), inversions(got))
		}
	})
}

func TestRulesActAsOftenAsTheySay(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const count = 4000
		n := New(42)
		defer n.Close()
		n.SetRules(hostA, hostB, Rules{Loss: 0.2, Duplicate: 0.1, Reorder: 0.1})
		got := sendAndCollect(t, n, count)
		k := n.Counters()
		near := func(what string, got, want uint64) {
			if got < want*8/10 || got > want*12/10 {
				t.Errorf("%d packets %s, want about %d", got, what, want)
			}
		}
		near("lost", k.Lost, count/5)
		near("duplicated", k.Duplicated, (count-k.Lost)/10)
		near("reordered", k.Reordered, (count-k.Lost)/10)
		if want := int(count - k.Lost + k.Duplicated); len(got) != want {
			t.Errorf("%d packets arrived, want sent - lost + duplicated = %d", len(got), want)
		}
		if inversions(got) == 0 {
			t.Error("nothing was reordered")
		}
	})
}

// TestOneBitOfAPacketIsChanged: of as many packets as the rule says, and nothing else.
func TestOneBitOfAPacketIsChanged(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const count = 4000
		n := New(42)
		defer n.Close()
		n.SetRules(hostA, hostB, Rules{Corrupt: 0.25})
		a, b := sockets(t, n)
		sent, got, changed := []byte("sixteen bytes ..."), make([]byte, 64), 0
		for range count {
			if _, err := a.WriteTo(sent, b.LocalAddr()); err != nil {
				t.Fatal(err)
			}
			k, _, err := b.ReadFrom(got)
			if err != nil || k != len(sent) {
				t.Fatalf("%d bytes, %v", k, err)
			}
			flipped := 0
			for i := range k {
				flipped += bits.OnesCount8(got[i] ^ sent[i])
			}
			if flipped > 1 {
				t.Fatalf("%d bits of a packet are changed", flipped)
			}
			changed += flipped
		}
		if k := n.Counters().Corrupted; int(k) != changed || k < count/5 || k > count*3/10 {
			t.Errorf("%d packets are changed, %d counted, want about %d", changed, k, count/4)
		}
	})
}

func TestTheSeedDecides(t *testing.T) {
	run := func(seed uint64) (got string) {
		bubble.Test(t, func(t *testing.T) {
			n := New(seed)
			defer n.Close()
			n.SetDefaultRules(Rules{Jitter: 5 * time.Millisecond, Loss: 0.3, Duplicate: 0.1, Reorder: 0.2})
			got = fmt.Sprint(sendAndCollect(t, n, 200))
		})
		return got
	}
	first, again := run(1), run(1)
	if first != again {
		t.Error("two runs of one seed differ")
	}
	if first == run(2) {
		t.Error("two seeds give the same run")
	}
}

func TestPartitionDropsAndHealRestores(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := New(1)
		defer n.Close()
		a, b := sockets(t, n)
		n.Partition([]string{hostA}, []string{hostB})
		a.WriteTo([]byte("lost"), b.LocalAddr())
		n.Heal()
		n.SetRules(hostB, hostA, Rules{Cut: true})
		a.WriteTo([]byte("one way"), b.LocalAddr())
		b.WriteTo([]byte("lost"), a.LocalAddr())
		if got := collect(t, b); len(got) != 1 || got[0] != "one way" {
			t.Errorf("B got %q, want what was sent after Heal", got)
		}
		if got := collect(t, a); len(got) != 0 {
			t.Errorf("A got %q over a cut direction", got)
		}
		if k := n.Counters(); k.Cut != 2 {
			t.Errorf("%d packets counted as cut, want 2", k.Cut)
		}
	})
}

func TestCaptureSeesPacketsAndStreams(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := New(1)
		defer n.Close()
		var seen []string
		n.Capture(func(from, to string, data []byte) { seen = append(seen, from+" "+to+" "+string(data)) })
		pa, pb := sockets(t, n)
		pa.WriteTo([]byte("packet"), pb.LocalAddr())
		a, b := streams(t, n)
		a.Write([]byte("stream"))
		want := []string{
			hostA + ":7000 " + hostB + ":7000 packet",
			a.LocalAddr().String() + " " + b.LocalAddr().String() + " stream",
		}
		if fmt.Sprint(seen) != fmt.Sprint(want) {
			t.Errorf("captured %q, want %q", seen, want)
		}
	})
}

func TestAddressInUse(t *testing.T) {
	n := New(1)
	defer n.Close()
	sockets(t, n)
	if _, err := n.ListenPacket(hostA + ":7000"); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("second socket: %v, want EADDRINUSE", err)
	}
}
