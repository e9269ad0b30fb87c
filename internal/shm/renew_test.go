package shm

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fabricd/fabricd/internal/status"
)

// other maps the memory behind r once more, as another process does.
func other(t *testing.T, r *Region, writable bool) *Region {
	t.Helper()
	f, err := Duplicate(r.File())
	if err != nil {
		t.Fatal(err)
	}
	o, err := Map(f, 0, r.Len(), writable)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(o.Release)
	return o
}

func TestRenewedMemoryIsSharedWithNobody(t *testing.T) {
	for _, size := range []int64{1, 3 * PageSize, max(HugePageSize(), PageSize) + PageSize} {
		r, err := Create("test", size)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Release()
		had := other(t, r, true)
		for i := range r.Bytes() {
			r.Bytes()[i] = byte(i / 3)
		}
		at, want := &r.Bytes()[0], bytes.Clone(r.Bytes())
		if err := r.Renew("test"); err != nil {
			t.Fatal(err)
		}
		if &r.Bytes()[0] != at || !bytes.Equal(r.Bytes(), want) {
			t.Errorf("%d bytes: the memory is at another place, or has other bytes", size)
		}
		had.Bytes()[0], r.Bytes()[1] = 0xA1, 0xA2
		if r.Bytes()[0] != want[0] || had.Bytes()[1] != want[1] {
			t.Errorf("%d bytes: the old memory and the new one are the same", size)
		}
		if next := other(t, r, true); !bytes.Equal(next.Bytes(), r.Bytes()) {
			t.Errorf("%d bytes: the descriptor is not that of the new memory", size)
		}
		if err := Check(r.File(), r.Len(), r.Len()); err != nil {
			t.Errorf("%d bytes: the new memory: %v", size, err)
		}
	}
}

// TestSealedWriting: a mapping made before stays writable. No other one can be made,
// through any descriptor of the same user.
func TestSealedWriting(t *testing.T) {
	r, err := Create("test", PageSize)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Release()
	before := other(t, r, true)
	for range 2 {
		if err := SealWriting(r.File()); err != nil {
			t.Fatal(err)
		}
	}
	r.Bytes()[0], before.Bytes()[1] = 1, 2
	ro, err := ReadOnly(r.File())
	if err != nil {
		t.Fatal(err)
	}
	defer ro.Close()
	path := fmt.Sprintf("/proc/self/fd/%d", ro.Fd())
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	rw, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer rw.Close()
	if _, err := rw.Write([]byte{9}); !errors.Is(err, unix.EPERM) {
		t.Errorf("write: %v, want EPERM", err)
	}
	if _, err := Map(rw, 0, PageSize, true); !errors.Is(err, unix.EPERM) {
		t.Errorf("a writable mapping: %v, want EPERM", err)
	}
	read, err := unix.Mmap(int(rw.Fd()), 0, int(PageSize), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(read)
	if err := unix.Mprotect(read, unix.PROT_READ|unix.PROT_WRITE); !errors.Is(err, unix.EACCES) {
		t.Errorf("mprotect: %v, want EACCES", err)
	}
	if read[0] != 1 || read[1] != 2 {
		t.Errorf("the memory has % x", read[:2])
	}
}

func TestSealsEnd(t *testing.T) {
	r, err := Create("test", PageSize)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Release()
	for range 2 {
		if err := SealSeals(r.File()); err != nil {
			t.Fatal(err)
		}
	}
	if err := SealWriting(r.File()); !errors.Is(err, status.NotSupp) {
		t.Errorf("another seal: %v, want %v", err, status.NotSupp)
	}
	other(t, r, true).Bytes()[0] = 1 // nothing keeps the peer from writing
}
