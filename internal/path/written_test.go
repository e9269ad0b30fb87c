package path

import (
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
)

// TestWhatIsWrittenIsCounted: at every moment the count is between the bytes written
// when it began and when it had ended, at both sides of a socket.
func TestWhatIsWrittenIsCounted(t *testing.T) {
	for name, dialer := range map[string]bool{"dialer": true, "acceptor": false} {
		t.Run(name, func(t *testing.T) {
			fa, fb := sockets(t)
			a, b := connOf(t, fa), connOf(t, fb)
			if !dialer {
				a, b = b, a
			}
			if _, err := a.Write(make([]byte, GreetingLen)); err != nil {
				t.Fatal(err)
			}
			held, err := Use(a)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := CountWritten(held, 5); err == nil {
				t.Error("a kernel that does not count is believed")
			}
			w, err := CountWritten(held, uint64(GreetingLen))
			if err != nil {
				t.Fatal(err)
			}
			var begun, ended atomic.Uint64
			done := make(chan struct{})
			go func() {
				defer close(done)
				defer a.CloseWrite()
				p := make([]byte, 100_000)
				for i := range 3000 {
					n := uint64(1 + i*7919%len(p))
					begun.Add(n)
					if _, err := a.Write(p[:n]); err != nil {
						t.Error(err)
						return
					}
					ended.Add(n)
				}
			}()
			var read sync.WaitGroup
			read.Go(func() { io.Copy(io.Discard, b) })
			for looking := true; looking; {
				select {
				case <-done:
					looking = false
				default:
				}
				low := ended.Load()
				n, err := w.Bytes()
				high := begun.Load()
				if err != nil || n < low || n > high+1 { // the FIN is acknowledged as a byte
					t.Errorf("counted %d, %v; written between %d and %d", n, err, low, high)
					break
				}
			}
			a.Close()
			read.Wait()
			<-done
		})
	}
}

func connOf(t *testing.T, f *os.File) *net.TCPConn {
	t.Helper()
	c, err := tcpOf(f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}
