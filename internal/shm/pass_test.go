package shm

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fabricd/fabricd/internal/faults/failpoint"
	"github.com/fabricd/fabricd/internal/status"
)

// packets returns two ends of a packet socket.
func packets(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range []**net.UnixConn{&a, &b} {
		if *c, err = Conn(os.NewFile(uintptr(fds[i]), "packets")); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { (*c).Close() })
	}
	return a, b
}

// descriptors counts this process's open descriptors.
func descriptors(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

func TestPassingMemory(t *testing.T) {
	a, b := packets(t)
	r := create(t, PageSize)
	r.Bytes()[0] = 7
	if err := Send(a, []byte("memory"), r.File()); err != nil {
		t.Fatalf("Send: %v", err)
	}
	if err := NewSender(a).TrySend([]byte("more"), nil); err != nil {
		t.Fatalf("TrySend: %v", err)
	}
	buf := make([]byte, 64)
	n, f, err := NewReceiver(b).Recv(buf)
	if err != nil || f == nil || string(buf[:n]) != "memory" {
		t.Fatalf("Recv = %q, %v, %v, want the packet and its descriptor", buf[:n], f, err)
	}
	flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0)
	if err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("received descriptor has flags %#x, %v, want FD_CLOEXEC", flags, err)
	}
	m, err := Map(f, 0, PageSize, true)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Release()
	if m.Bytes()[0] != 7 {
		t.Error("the descriptor is not the memory that was sent")
	}
	if n, f, err := NewReceiver(b).Recv(buf); err != nil || f != nil || string(buf[:n]) != "more" {
		t.Errorf("Recv = %q, %v, %v, want a packet without descriptor", buf[:n], f, err)
	}
	a.Close()
	if _, _, err := NewReceiver(b).Recv(buf); err != io.EOF {
		t.Errorf("Recv after the peer's close = %v, want io.EOF", err)
	}
}

func TestRecvKeepsNoStrayDescriptor(t *testing.T) {
	a, b := packets(t)
	r := create(t, PageSize)
	before := descriptors(t)
	for _, count := range []int{2, 3, 253} {
		fds := make([]int, count)
		for i := range fds {
			fds[i] = int(r.File().Fd())
		}
		if _, _, err := a.WriteMsgUnix([]byte("x"), unix.UnixRights(fds...), nil); err != nil {
			t.Fatalf("send %d descriptors: %v", count, err)
		}
		if _, f, err := NewReceiver(b).Recv(make([]byte, 8)); f != nil || !errors.Is(err, status.Protocol) {
			t.Errorf("Recv of %d descriptors = %v, %v, want %v", count, f, err, status.Protocol)
		}
	}
	if err := Send(a, make([]byte, 100), r.File()); err != nil {
		t.Fatal(err)
	}
	if _, f, err := NewReceiver(b).Recv(make([]byte, 99)); f != nil || !errors.Is(err, status.Protocol) {
		t.Errorf("Recv of a packet that is too long = %v, %v, want %v", f, err, status.Protocol)
	}
	if after := descriptors(t); after != before {
		t.Errorf("%d descriptors are open, want %d as before", after, before)
	}
}

func TestTrySendDoesNotWait(t *testing.T) {
	a, _ := packets(t)
	sent := 0
	for ; sent < 1<<16; sent++ {
		if err := NewSender(a).TrySend(make([]byte, 1024), nil); err != nil {
			if !errors.Is(err, status.Again) {
				t.Fatalf("TrySend to a full socket = %v, want %v", err, status.Again)
			}
			break
		}
	}
	if sent == 0 || sent == 1<<16 {
		t.Errorf("%d packets were taken, want some, and a bound", sent)
	}
}

func TestStreamWithoutWaiting(t *testing.T) {
	c, f, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	d, err := Conn(f)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	want := func(c *net.UnixConn, want Readiness) {
		t.Helper()
		if got, err := Ready(c); got != want || err != nil {
			t.Errorf("Ready = %+v, %v, want %+v", got, err, want)
		}
	}
	buf := make([]byte, 1<<16)
	if n, err := TryRead(c, buf); n != 0 || err != status.Again {
		t.Errorf("TryRead of an empty stream = %d, %v, want %v", n, err, status.Again)
	}
	want(c, Readiness{Out: true})
	sent := 0
	for {
		n, err := TryWrite(c, buf)
		if err != nil {
			if err != status.Again {
				t.Fatalf("TryWrite = %v, want %v", err, status.Again)
			}
			break
		}
		sent += n
	}
	want(c, Readiness{})
	want(d, Readiness{In: true, Out: true})
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	want(d, Readiness{In: true, Out: true, RdHup: true})
	got := 0
	for {
		n, err := TryRead(d, buf)
		if err != nil {
			if err != io.EOF {
				t.Errorf("TryRead after the last byte = %v, want io.EOF", err)
			}
			break
		}
		got += n
	}
	if got != sent {
		t.Errorf("%d bytes arrived, want %d", got, sent)
	}
	want(d, Readiness{Out: true, RdHup: true}) // no In at the end, as SCIF has it
	c.Close()
	want(d, Readiness{Out: true, RdHup: true, Hup: true})
	if _, err := TryWrite(d, buf); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("TryWrite to a closed peer = %v, want EPIPE", err)
	}
}

func TestConnRefusesOtherDescriptors(t *testing.T) {
	before := descriptors(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if _, err := Conn(r); err == nil {
		t.Error("a pipe became a connection")
	}
	w.Close()
	if after := descriptors(t); after != before {
		t.Errorf("%d descriptors are open, want %d: Conn takes its file in any case", after, before)
	}
}

func TestPeerCred(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	ln, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	c, err := net.Dial("unixpacket", path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s, err := ln.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	got, err := PeerCred(s)
	want := Cred{PID: int32(os.Getpid()), UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}
	if err != nil || got != want {
		t.Errorf("PeerCred = %+v, %v, want %+v", got, err, want)
	}
	if !bytes.Equal([]byte(c.RemoteAddr().String()), []byte(path)) {
		t.Errorf("remote address %q, want %q", c.RemoteAddr(), path)
	}
}

func TestADescriptorThatFindsNoRoomIsReportedAndThePacketKept(t *testing.T) {
	a, b := packets(t)
	r := create(t, PageSize)
	buf := make([]byte, 64)
	if err := Send(a, []byte("memory"), r.File()); err != nil {
		t.Fatal(err)
	}
	restore, err := (&failpoint.Process{}).Starve(0)
	if err != nil {
		t.Fatal(err)
	}
	n, f, err := NewReceiver(b).Recv(buf)
	if e := restore(); e != nil {
		t.Fatal(e)
	}
	if !errors.Is(err, ErrDescriptorLost) || !errors.Is(err, status.NoMemory) || f != nil || string(buf[:n]) != "memory" {
		t.Fatalf("Recv = %q, %v, %v, want the packet without its descriptor", buf[:n], f, err)
	}
	if err := Send(a, []byte("again"), r.File()); err != nil {
		t.Fatal(err)
	}
	if n, f, err := NewReceiver(b).Recv(buf); err != nil || f == nil || string(buf[:n]) != "again" {
		t.Fatalf("Recv = %q, %v, %v, want the next packet with its descriptor", buf[:n], f, err)
	} else {
		f.Close()
	}
}
