package tcp

import (
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fabricd/fabricd/internal/netsim"
	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/transport/transporttest"
)

// offering runs f with the ends of a lane, over sockets and in memory, with TLS and
// without.
func offering(t *testing.T, f func(t *testing.T, out transport.SendLane, in *recvLane)) {
	for name, plaintext := range map[string]bool{"tls": false, "plaintext": true} {
		change := func(c *Config) { c.Plaintext, c.LaneWindow = plaintext, minWindow }
		run := func(t *testing.T, pa, pb *Provider) {
			sa, sb := transporttest.Connect(t, pa, pb)
			out, in := transporttest.Lane(t, sa, sb)
			f(t, out, in.(*recvLane))
		}
		t.Run(name+" on sockets", func(t *testing.T) {
			pa, pb := onSockets(t, change)
			run(t, pa, pb)
		})
		t.Run(name+" in memory", func(t *testing.T) {
			network := netsim.New(1)
			t.Cleanup(func() { network.Close() })
			pa, pb := simulated(t, network, change)
			run(t, pa, pb)
		})
	}
}

// What is taken is gone, and its credit comes back; the rest ends the Read.
func TestWhatIsOfferedIsTakenOrRead(t *testing.T) {
	offering(t, func(t *testing.T, out transport.SendLane, in *recvLane) {
		const total = 10 * minWindow // of bytes below 200, the last one is 200
		sent := make(chan error, 1)
		go func() { // ends with the writes, or the session
			var err error
			p := make([]byte, 1000)
			for n := 0; n < total && err == nil; n += len(p) {
				_, err = out.Write(p)
			}
			if err == nil {
				_, err = out.Write([]byte{1, 2, 200, 3})
			}
			sent <- errors.Join(err, out.Close())
		}()
		var taken atomic.Int64
		take := func(p []byte) (n int) {
			for n < len(p) && p[n] < 200 {
				n++
			}
			taken.Add(int64(n))
			return n
		}
		// What had come before the Read is not offered: a few bytes are read.
		var got []byte
		p := make([]byte, 4096)
		for {
			n, err := in.ReadOr(p, take)
			got = append(got, p[:n]...)
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := <-sent; err != nil {
			t.Fatal(err)
		}
		want := (total+999)/1000*1000 + 4
		if n := int(taken.Load()) + len(got); n != want || taken.Load() == 0 {
			t.Errorf("%d bytes taken, %d read, want %d in all", taken.Load(), len(got), want)
		}
		if n := len(got); n < 2 || got[n-2] != 200 || got[n-1] != 3 {
			t.Errorf("the read ended with % x", got[max(0, len(got)-4):])
		}
	})
}

// Bytes that have come before those that lie between them and the reader, over another
// connection, are read once these are taken.
func TestWhatLiesBehindWhatIsTakenIsRead(t *testing.T) {
	offering(t, func(t *testing.T, _ transport.SendLane, in *recvLane) {
		read := make(chan string, 1)
		go func() { // ends with the bytes that are not taken
			p := make([]byte, 100)
			n, err := in.ReadOr(p, func(p []byte) int { return len(p) })
			read <- fmt.Sprint(string(p[:n]), err)
		}()
		for !in.waits() {
			time.Sleep(time.Millisecond) // until the Read waits: what came before is not offered
		}
		in.mu.Lock()
		at := in.asm.next
		in.mu.Unlock()
		for _, f := range []struct {
			at    uint64
			bytes string
		}{{at + 5, "behind"}, {at, "taken"}} {
			if _, err := in.deliver(header{kind: typeData, value: f.at, length: uint32(len(f.bytes))}, []byte(f.bytes), nil); err != nil {
				t.Fatal(err)
			}
		}
		select {
		case got := <-read:
			if got != "behind<nil>" {
				t.Errorf("read %q", got)
			}
		case <-time.After(10 * time.Second):
			t.Error("the reader was not told")
		}
	})
}

// The end that has come before the bytes that it follows is seen when these are taken.
func TestTheEndBehindWhatIsTakenIsSeen(t *testing.T) {
	offering(t, func(t *testing.T, _ transport.SendLane, in *recvLane) {
		read := make(chan string, 1)
		go func() { // ends with the end of the lane
			p := make([]byte, 100)
			n, err := in.ReadOr(p, func(p []byte) int { return len(p) })
			read <- fmt.Sprint(n, " ", err)
		}()
		for !in.waits() {
			time.Sleep(time.Millisecond) // until the Read waits: what came before is not offered
		}
		in.mu.Lock()
		at := in.asm.next
		in.mu.Unlock()
		if _, err := in.deliver(header{kind: typeData, flags: flagFin, value: at + 5}, nil, nil); err != nil {
			t.Fatal(err)
		}
		for !in.waits() || in.ready.Load() {
			time.Sleep(time.Millisecond) // until it has looked, and waits again
		}
		if _, err := in.deliver(header{kind: typeData, value: at, length: 5}, []byte("taken"), nil); err != nil {
			t.Fatal(err)
		}
		select {
		case got := <-read:
			if got != "0 EOF" {
				t.Errorf("read %q", got)
			}
		case <-time.After(10 * time.Second):
			t.Error("the reader was not told")
		}
	})
}

// A Read that ends while take runs ends when take has: nothing is applied behind
// the back of who has canceled.
func TestAReadWaitsForWhatIsBeingTaken(t *testing.T) {
	offering(t, func(t *testing.T, out transport.SendLane, in *recvLane) {
		begun, end := make(chan struct{}), make(chan struct{})
		var over atomic.Bool
		done := make(chan error, 1)
		go func() { // ends with the cancel
			_, err := in.ReadOr(make([]byte, 100), func(p []byte) int {
				close(begun)
				<-end
				over.Store(true)
				return len(p)
			})
			if !over.Load() {
				err = errors.New("the Read has ended before take")
			}
			done <- err
		}()
		for !in.waits() {
			time.Sleep(time.Millisecond) // until the Read waits: what came before is not offered
		}
		if _, err := out.Write([]byte("abc")); err != nil {
			t.Fatal(err)
		}
		<-begun
		in.Cancel()
		close(end)
		if err := <-done; !errors.Is(err, transport.ErrLaneCanceled) {
			t.Error(err)
		}
	})
}

func (l *recvLane) waits() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.want != nil
}

// The end of a connection right behind its last bytes, which one read has taken,
// shows at the latest when something is sent.
func TestAnEndBehindTheLastBytes(t *testing.T) {
	for range 20 {
		pa, pb := onSockets(t, func(c *Config) { c.Plaintext = true })
		sa, sb := transporttest.Connect(t, pa, pb)
		if err := sa.SendDatagram([]byte("last")); err != nil {
			t.Fatal(err)
		}
		sa.(*session).rec.Conn.Close()
		late := time.After(10 * time.Second)
		beat := time.NewTicker(time.Millisecond)
		for ended := false; !ended; {
			select {
			case <-beat.C:
				_ = sb.SendDatagram([]byte("beat")) // it fails when the session has ended
			case <-sb.Done():
				ended = true
			case <-late:
				t.Fatal("the end was not seen")
			}
		}
		beat.Stop()
		if end, ok := sb.Err().(*transport.CloseError); !ok || !end.Reset {
			t.Errorf("it ended with %v, want a reset", sb.Err())
		}
		pa.Close()
		pb.Close()
	}
}
