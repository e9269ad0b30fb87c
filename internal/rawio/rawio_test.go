package rawio

import (
	"bytes"
	"syscall"
	"testing"
)

func TestReadsAndWritesAreThoseOfTheKernel(t *testing.T) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.SetNonblock(fds[0], true); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{1, most, most + 1} {
		sent, got := bytes.Repeat([]byte{7}, size), make([]byte, 2*most)
		if n, err := Read(fds[0], got[:size]); n != 0 || err != syscall.EAGAIN {
			t.Errorf("read nothing: %d, %v", n, err)
		}
		if n, err := Write(fds[1], sent); n != size || err != nil {
			t.Fatalf("write %d: %d, %v", size, n, err)
		}
		for n := 0; n < size; {
			k, err := Read(fds[0], got[n:size])
			if err != nil {
				t.Fatalf("read %d behind %d: %v", size, n, err)
			}
			n += k
		}
		if !bytes.Equal(got[:size], sent) {
			t.Errorf("%d bytes are others", size)
		}
	}
	syscall.Close(fds[1])
	if n, err := Read(fds[0], make([]byte, 1)); n != 0 || err != nil {
		t.Errorf("read the end: %d, %v", n, err)
	}
	syscall.Close(fds[0])
	for _, size := range []int{0, 1, most + 1} {
		if n, err := Read(fds[0], make([]byte, size)); n != 0 || err != syscall.EBADF {
			t.Errorf("read of what is closed: %d, %v", n, err)
		}
		if n, err := Write(fds[0], make([]byte, size)); n != 0 || err != syscall.EBADF {
			t.Errorf("write to what is closed: %d, %v", n, err)
		}
	}
}
