package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/fabric/fabrictest"
)

// A pathPlace makes connections across two nodes with paths.
type pathPlace struct {
	*sockets
	t        *testing.T
	listener *fabric.Listener
	near     *fabric.Node
}

func newPathPlace(t *testing.T) *pathPlace {
	p := &pathPlace{sockets: attached(fabrictest.Paths())(t, 0).(*sockets), t: t}
	var err error
	if p.listener, err = p.App(1, true).Listen(0); err != nil {
		t.Fatal(err)
	}
	p.near = p.App(0, true)
	return p
}

func (p *pathPlace) dial() (near, far *fabric.Conn) {
	p.t.Helper()
	accepted := make(chan *fabric.Conn, 1)
	go func() {
		c, err := p.listener.AcceptConn(p.t.Context())
		if err != nil {
			p.t.Error(err)
		}
		accepted <- c
	}()
	near, err := p.near.DialAddr(p.t.Context(), p.listener.Addr().(fabric.Addr))
	if err != nil {
		p.t.Fatal(err)
	}
	return near, <-accepted
}

// TestHalfClosesWhileGoingOver: wherever in the making of the path an end sends no more,
// closes, or aborts, the other one gets all bytes and the right end.
func TestHalfClosesWhileGoingOver(t *testing.T) {
	p := newPathPlace(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	var wg sync.WaitGroup
	for i := range 48 {
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		near, far := p.dial()
		how := i % 3
		n, m := 1+r.IntN(40), 1+r.IntN(40)
		pauses := [2]time.Duration{time.Duration(r.IntN(1500)) * time.Microsecond, time.Duration(r.IntN(1500)) * time.Microsecond}
		wg.Go(func() {
			defer near.Close()
			defer far.Close()
			var both sync.WaitGroup
			both.Go(func() { // which sends no more and reads on
				if err := sendPieces(near, n, pauses[0]); err != nil && how == 0 {
					t.Errorf("%d: near sends: %v", i, err)
				}
				if err := near.CloseWrite(); err != nil && how == 0 {
					t.Errorf("%d: near: %v", i, err)
				}
				near.SetReadDeadline(time.Now().Add(patience))
				got, err := io.ReadAll(near)
				switch {
				case !bytes.HasPrefix(pattern(1000*m, 7), got):
					t.Errorf("%d: near got %d bytes, not those that were sent", i, len(got))
				case how == 2 && (!errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF)):
					t.Errorf("%d: near ends with %v behind an abort", i, err)
				case how != 2 && (err != nil || len(got) != 1000*m):
					t.Errorf("%d: near got %d of %d bytes, then %v", i, len(got), 1000*m, err)
				}
			})
			both.Go(func() {
				if err := sendPieces(far, m, pauses[1]); err != nil {
					t.Errorf("%d: far sends: %v", i, err)
				}
				switch how {
				case 0:
					if err := far.CloseWrite(); err != nil {
						t.Errorf("%d: far: %v", i, err)
					}
					far.SetReadDeadline(time.Now().Add(patience))
					if got, err := io.ReadAll(far); err != nil || !bytes.Equal(got, pattern(1000*n, 7)) {
						t.Errorf("%d: far got %d of %d bytes, then %v", i, len(got), 1000*n, err)
					}
				case 1:
					far.Close()
				case 2:
					far.SetLinger(0)
					far.Close()
				}
			})
			both.Wait()
		})
	}
	wg.Wait()
}

func sendPieces(c *fabric.Conn, n int, pause time.Duration) error {
	all := pattern(1000*n, 7)
	for i := range n {
		if _, err := c.Write(all[1000*i : 1000*(i+1)]); err != nil {
			return err
		}
		if i < 8 {
			time.Sleep(pause)
		}
	}
	return nil
}

// TestAPathIsAskedForAgain: a connection that could not have one gets it later, as long as
// it is used.
func TestAPathIsAskedForAgain(t *testing.T) {
	p := newPathPlace(t)
	p.noPath.Store(3)
	near, far := p.dial()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	if err := p.goOver(ctx, "path", near.Endpoint(), far.Endpoint()); err != nil {
		t.Fatal(err)
	}
	if left := p.noPath.Load(); left >= 0 {
		t.Errorf("%d requests were to fail", left+1)
	}
}

// TestASilentPathEndsWhatWaits: a hole that swallows only the path ends sends and receives
// that wait at it, at both ends, with the cause.
func TestASilentPathEndsWhatWaits(t *testing.T) {
	p := newPathPlace(t)
	near, far := p.dial()
	if err := p.goOver(t.Context(), "path", near.Endpoint(), far.Endpoint()); err != nil {
		t.Fatal(err)
	}
	if n := swallowLoopback(t); n == 0 {
		t.Fatal("no path is there, or its socket takes no least TTL")
	}
	errs := make(chan error, 4)
	for i, c := range []*fabric.Conn{near, far} {
		go func() {
			n, err := c.Read(make([]byte, 1))
			errs <- fmt.Errorf("end %d received %d: %w", i, n, err)
		}()
		go func() {
			for {
				if _, err := c.Write(make([]byte, 1<<20)); err != nil {
					errs <- fmt.Errorf("end %d sent: %w", i, err)
					return
				}
			}
		}()
	}
	for range cap(errs) {
		select {
		case err := <-errs:
			if !errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF) || !strings.Contains(err.Error(), "path silent") {
				t.Errorf("%v, want ECONNRESET because the path was silent", err)
			}
		case <-time.After(patience):
			t.Fatal("a call waits for ever")
		}
	}
}

// swallowLoopback makes all TCP connections of this process lose incoming bytes, and
// returns the number of connections.
func swallowLoopback(t *testing.T) (n int) {
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range fds {
		fd, _ := strconv.Atoi(e.Name())
		if proto, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL); err != nil || proto != syscall.IPPROTO_TCP {
			continue
		}
		if unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MINTTL, 255) == nil { // loopback's packets have 64
			n++
		}
	}
	return n
}

// TestMessagesOnPathsAllocateNothing: a message from one application to the other costs no
// memory except crypto/tls's for the record that it reads, with and without deadlines.
func TestMessagesOnPathsAllocateNothing(t *testing.T) {
	p := newPathPlace(t)
	near, far := p.dial()
	defer near.Close()
	defer far.Close()
	if err := p.goOver(t.Context(), "path", near.Endpoint(), far.Endpoint()); err != nil {
		t.Fatal(err)
	}
	most := 1.0 // of crypto/tls
	if raceEnabled {
		most = 100
	}
	msg, got := make([]byte, 8), make([]byte, 8)
	for name, limit := range map[string]time.Time{"no deadline": {}, "a deadline": time.Now().Add(time.Hour)} {
		for _, c := range []*fabric.Conn{near, far} {
			if err := c.SetDeadline(limit); err != nil {
				t.Fatal(err)
			}
		}
		n := testing.AllocsPerRun(500, func() {
			if _, err := near.Write(msg); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(far, got); err != nil {
				t.Fatal(err)
			}
		})
		if n > most {
			t.Errorf("with %s: %v allocations for a message, of which crypto/tls makes %v", name, n, most)
		}
	}
}
