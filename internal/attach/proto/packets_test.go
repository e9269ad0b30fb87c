package proto

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/test/bubble"
)

// packetPairs are the ways in which two ends of a session meet.
var packetPairs = map[string]func(t *testing.T) (a, b attach.Packets){
	"in this process": func(*testing.T) (a, b attach.Packets) { return Pair() },
	"over a socket": func(t *testing.T) (a, b attach.Packets) {
		fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		var ends [2]attach.Packets
		for i, fd := range fds {
			c, err := shm.Conn(os.NewFile(uintptr(fd), "packets"))
			if err != nil {
				t.Fatal(err)
			}
			ends[i] = Socket(c)
		}
		return ends[0], ends[1]
	},
}

// TestPackets sees both ways keep what [attach.Packets] says.
func TestPackets(t *testing.T) {
	for name, pair := range packetPairs {
		for what, test := range map[string]func(t *testing.T, a, b attach.Packets){
			"packets and descriptors arrive in order": packetsInOrder,
			"a full way is Again, then goes on":       packetsFull,
			"a long packet is refused":                packetTooLong,
			"the end comes behind the last packet":    packetsEnd,
		} {
			t.Run(name+", "+what, func(t *testing.T) {
				a, b := pair(t)
				defer a.Close()
				defer b.Close()
				test(t, a, b)
			})
		}
	}
}

func packetsInOrder(t *testing.T, a, b attach.Packets) {
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	for i, send := range []func([]byte, *os.File) error{a.Send, a.TrySend} {
		if err := errors.Join(send([]byte{byte(i)}, nil), send([]byte("with"), f)); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil { // what was sent has descriptors of its own
		t.Fatal(err)
	}
	p := make([]byte, 16)
	for i := range 2 {
		if n, got, err := b.Recv(p); err != nil || got != nil || !bytes.Equal(p[:n], []byte{byte(i)}) {
			t.Fatalf("packet %d is %q with %v: %v", i, p[:n], got, err)
		}
		n, got, err := b.Recv(p)
		if err != nil || got == nil || string(p[:n]) != "with" {
			t.Fatalf("packet %d is %q with %v: %v", i, p[:n], got, err)
		}
		if _, err := got.WriteString("x"); err != nil {
			t.Error(err)
		}
		got.Close()
	}
}

func packetsFull(t *testing.T, a, b attach.Packets) {
	sent, p := 0, make([]byte, MaxFrame)
	for ; sent < 1<<16; sent++ {
		if err := a.TrySend(p[:1+sent%8], nil); errors.Is(err, status.Again) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan error, 1)
	go func() { done <- a.Send(p[:9], nil) }()
	for i := range sent {
		if n, _, err := b.Recv(p); err != nil || n != 1+i%8 {
			t.Fatalf("packet %d of %d has %d bytes: %v", i, sent, n, err)
		}
	}
	if n, _, err := b.Recv(p); err != nil || n != 9 {
		t.Errorf("the packet that waited has %d bytes: %v", n, err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func packetTooLong(t *testing.T, a, b attach.Packets) {
	if err := a.Send(make([]byte, 9), os.Stdin); err != nil {
		t.Fatal(err)
	}
	if _, f, err := b.Recv(make([]byte, 8)); f != nil || status.Of(err) != status.Protocol {
		t.Errorf("9 bytes for 8: %v, %v; want a protocol error", f, err)
	}
}

func packetsEnd(t *testing.T, a, b attach.Packets) {
	if err := a.Send([]byte("last"), nil); err != nil {
		t.Fatal(err)
	}
	a.Close()
	p := make([]byte, 8)
	if n, _, err := b.Recv(p); err != nil || string(p[:n]) != "last" {
		t.Errorf("the last packet is %q: %v", p[:n], err)
	}
	if _, _, err := b.Recv(p); err != io.EOF {
		t.Errorf("behind it comes %v, want io.EOF", err)
	}
	if err := b.Send(p, nil); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("send to an end that was closed: %v, want EPIPE", err)
	}
	if _, _, err := a.Recv(p); !errors.Is(err, net.ErrClosed) {
		t.Errorf("receive at the end that was closed: %v, want net.ErrClosed", err)
	}
	if err := a.TrySend(p, nil); !errors.Is(err, net.ErrClosed) {
		t.Errorf("send at the end that was closed: %v, want net.ErrClosed", err)
	}
}

// TestCloseEndsWaitingCalls closes either end while a call waits at it or at the other.
func TestCloseEndsWaitingCalls(t *testing.T) {
	for name, end := range map[string]func(a, b attach.Packets) error{
		"own":   func(a, _ attach.Packets) error { return a.Close() },
		"other": func(_, b attach.Packets) error { return b.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				a, b := Pair()
				defer a.Close()
				defer b.Close()
				for range queued {
					if err := a.Send([]byte{1}, nil); err != nil {
						t.Fatal(err)
					}
				}
				done := make(chan error, 2)
				go func() { done <- a.Send([]byte{2}, nil) }()
				go func() { _, _, err := a.Recv(make([]byte, 8)); done <- err }()
				synctest.Wait()
				if len(done) > 0 {
					t.Fatalf("a call did not wait: %v", <-done)
				}
				end(a, b)
				synctest.Wait()
				for range 2 {
					select {
					case err := <-done:
						if !errors.Is(err, net.ErrClosed) && !errors.Is(err, syscall.EPIPE) && err != io.EOF {
							t.Errorf("a call ends with %v", err)
						}
					default:
						t.Fatal("a call still waits")
					}
				}
			})
		})
	}
}
