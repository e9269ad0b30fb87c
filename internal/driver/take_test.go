package driver_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"sync"
	"testing"

	"github.com/fabricd/fabricd/internal/driver"
	"github.com/fabricd/fabricd/internal/ipc"
	"github.com/fabricd/fabricd/rma"
)

// overTCP returns the ends of a connection between two nodes over sockets, whose
// small frames whoever reads them applies, and a window of size bytes at each.
func overTCP(t *testing.T, provider string, size int) (here, there ipc.Endpoint, mine, theirs []byte, loff, roff int64) {
	t.Helper()
	pa, pb := benchProviders[provider](t)
	here, there = benchPair(t, pa, pb)
	n := driver.Start(driver.Config{})
	t.Cleanup(func() { n.Close() })
	mem, err := n.NewSession(ipc.Credentials{}).Alloc(2 * size)
	if err != nil {
		t.Fatal(err)
	}
	mine, theirs = mem.Bytes()[:size], mem.Bytes()[size:]
	if loff, err = here.Register(mine, 0, rma.ProtRead|rma.ProtWrite, 0); err != nil {
		t.Fatal(err)
	}
	if roff, err = there.Register(theirs, 0, rma.ProtRead|rma.ProtWrite, 0); err != nil {
		t.Fatal(err)
	}
	return here, there, mine, theirs, loff, roff
}

// Operations of every size and kind come in their order, whoever applies them:
// small ones who reads them, longer ones and those behind them the lane's reader.
func TestOrderOfOperationsOverSockets(t *testing.T) {
	for _, provider := range []string{"tcp", "tcp-plain", "tcp-low"} {
		t.Run(provider, func(t *testing.T) {
			const size = 256 << 10
			here, _, mine, theirs, loff, roff := overTCP(t, provider, size)
			sizes := []int64{8, 20_000, 1, 100_000, 16_000, 64, 16_360, 200_000, 3}
			for round := range 100 {
				for i, n := range sizes {
					at := int64(i*7) + int64(round%5)
					for k := range mine[:n] {
						mine[k] = byte(round + i + k)
					}
					flags := rma.Flags(0)
					if i%4 == 3 {
						flags = rma.Ordered
					}
					if err := here.WriteTo(loff, n, roff+at, flags); err != nil {
						t.Fatal(err)
					}
					if i%2 == 0 { // it overwrites what came before
						if err := here.WriteTo(loff, 1, roff+at, 0); err != nil {
							t.Fatal(err)
						}
					}
					old, err := here.Atomic(context.Background(), rma.Atomic{Op: rma.AtomicAdd, Width: 8, Offset: roff + size - 8, Operand: 1})
					if want := uint64(round*len(sizes) + i); err != nil || old != want {
						t.Fatalf("atomic %d of round %d: %d, %v", i, round, old, err)
					}
					// Answers come in order: the write has been applied.
					if !bytes.Equal(theirs[at:at+n], mine[:n]) {
						t.Fatalf("write %d of round %d, %d bytes, is not there", i, round, n)
					}
				}
			}
			if got := binary.NativeEndian.Uint64(theirs[size-8:]); got != uint64(100*len(sizes)) {
				t.Errorf("%d atomics", got)
			}
		})
	}
}

// TestSmallOperationsOverTCPAllocateNothing is without TLS, which allocates for
// every record that it reads (crypto/tls, readFromUntil).
func TestSmallOperationsOverTCPAllocateNothing(t *testing.T) {
	here, _, _, _, loff, roff := overTCP(t, "tcp-plain", 64<<10)
	for name, do := range map[string]func() error{
		"a write of 8 bytes and a fence":  func() error { return firstError(here.WriteTo(loff, 8, roff, 0), fenced(here)) },
		"a write of 16 KiB and a fence":   func() error { return firstError(here.WriteTo(loff, 16<<10, roff, 0), fenced(here)) },
		"a synchronous write of 64 bytes": func() error { return here.WriteTo(loff, 64, roff, rma.Sync) },
		"a synchronous read of 64 bytes":  func() error { return here.ReadFrom(loff, 64, roff, rma.Sync) },
		"a posted atomic and a fence": func() error {
			return firstError(here.PostAtomic(rma.Atomic{Op: rma.AtomicAdd, Width: 8, Offset: roff}), fenced(here))
		},
		"an atomic that returns the word": func() error {
			_, err := here.Atomic(context.Background(), rma.Atomic{Op: rma.AtomicAdd, Width: 8, Offset: roff})
			return err
		},
		"a synchronous write of 64 KiB": func() error { return here.WriteTo(loff, 64<<10, roff, rma.Sync) },
		"a put with a signal and a fence": func() error {
			return firstError(here.PutSignal(loff, 64, rma.Put{Offset: roff, Word: roff + 64}), fenced(here))
		},
	} {
		if got := testing.AllocsPerRun(1000, func() {
			if err := do(); err != nil {
				t.Error(err)
			}
		}); got > 0 && !raceEnabled {
			t.Errorf("%s: %v allocations", name, got)
		}
	}
}

// Messages of every size keep their order while those who wait for them, and for
// operations, read for the session.
func TestOrderOfMessagesOverSockets(t *testing.T) {
	for _, provider := range []string{"tcp", "tcp-plain", "tcp-low"} {
		t.Run(provider, func(t *testing.T) {
			here, there, _, _, _, roff := overTCP(t, provider, 4096)
			const rounds = 300
			sizes := []int{8, 1, 20_000, 64, 100_000, 8, 8, 16_360, 8, 200_000, 3}
			var all sync.WaitGroup
			all.Go(func() { // the echo
				if _, err := io.Copy(endpointIO{there}, io.LimitReader(endpointIO{there}, rounds/int64(len(sizes))*sum(sizes))); err != nil {
					t.Error(err)
				}
			})
			all.Go(func() { // others who wait
				for i := range uint64(rounds) {
					old, err := here.Atomic(context.Background(), rma.Atomic{Op: rma.AtomicAdd, Width: 8, Offset: roff, Operand: 1})
					if err != nil || old != i {
						t.Errorf("atomic %d: %d, %v", i, old, err)
						return
					}
				}
			})
			for round := range rounds / len(sizes) {
				for i, n := range sizes {
					out, back := make([]byte, n), make([]byte, n)
					for k := range out {
						out[k] = byte(round + i + k)
					}
					sent := make(chan error, 1)
					go func() { _, err := endpointIO{here}.Write(out); sent <- err }()
					if _, err := io.ReadFull(endpointIO{here}, back); err != nil {
						t.Fatal(err)
					}
					if err := <-sent; err != nil || !bytes.Equal(out, back) {
						t.Fatalf("message %d of round %d, %d bytes: it came back changed (%v)", i, round, n, err)
					}
				}
			}
			all.Wait()
		})
	}
}

func sum(all []int) (n int64) {
	for _, k := range all {
		n += int64(k)
	}
	return n
}

// TestMessagesOverTCPAllocateNothing is without TLS, as above.
func TestMessagesOverTCPAllocateNothing(t *testing.T) {
	here, there, _, _, _, _ := overTCP(t, "tcp-plain", 4096)
	for _, size := range []int{8, 1000, 16 << 10} {
		const runs = 1000
		var us, them io.ReadWriter = endpointIO{here}, endpointIO{there}
		echoed := make(chan error, 1)
		go func() { // ends with the rounds below
			p := make([]byte, size)
			var err error
			for i := 0; i <= runs && err == nil; i++ {
				if _, err = io.ReadFull(them, p); err == nil {
					_, err = them.Write(p)
				}
			}
			echoed <- err
		}()
		p := make([]byte, size)
		got := testing.AllocsPerRun(runs, func() {
			if _, err := us.Write(p); err != nil {
				t.Error(err)
			}
			if _, err := io.ReadFull(us, p); err != nil {
				t.Error(err)
			}
		})
		if err := <-echoed; err != nil {
			t.Error(err)
		}
		if got > 0 && !raceEnabled {
			t.Errorf("%d bytes: %v allocations there and back", size, got)
		}
	}
}
