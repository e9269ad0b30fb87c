package fabric_test

import (
	"errors"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fabricd/fabricd/fabric"
	"github.com/fabricd/fabricd/fabric/fabrictest"
)

// TestEveryAPIModeRegistersTheSameMemory: memory that an attached application cannot share,
// an embedded one may not register either, so that a program behaves the same in both.
func TestEveryAPIModeRegistersTheSameMemory(t *testing.T) {
	const page = fabric.PageSize
	c := fabrictest.NewCluster(t, 2)
	other, err := c.Node(1).Alloc(2 * page)
	if err != nil {
		t.Fatal(err)
	}
	own, err := unix.Mmap(-1, 0, 2*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(own) })
	for name, mode := range apiModes {
		t.Run(name, func(t *testing.T) {
			n := mode(t, c, 0)
			mem, err := n.Alloc(4 * page)
			if err != nil {
				t.Fatal(err)
			}
			closed, err := n.Alloc(page)
			if err != nil {
				t.Fatal(err)
			}
			gone := closed.Bytes()
			if err := closed.Close(); err != nil {
				t.Fatal(err)
			}
			at, from := joined(t, n, n)
			unbound, err := n.Open()
			if err != nil {
				t.Fatal(err)
			}
			ended, err := n.Open()
			if err != nil {
				t.Fatal(err)
			}
			ended.Close()
			for _, tt := range []struct {
				name string
				ep   *fabric.Endpoint
				p    []byte
				want error
			}{
				{"all of it", at, mem.Bytes(), nil},
				{"a part", from, mem.Bytes()[page : 3*page], nil},
				{"given up", at, gone, syscall.EFAULT},
				{"of another node", at, other.Bytes(), syscall.EFAULT},
				{"the application's own", at, own, syscall.EFAULT},
				{"its own, of an accepted end", from, own, syscall.EFAULT},
				{"its own, before a connection", unbound, own, syscall.ENOTCONN},
				{"its own, after Close", ended, own, syscall.EBADF},
				{"its own, not whole pages", at, own[:page+1], syscall.EINVAL},
				{"its own, not aligned", at, own[8 : page+8], syscall.EINVAL},
				{"none", at, nil, syscall.EINVAL},
			} {
				if _, err := tt.ep.Register(tt.p, 0, rw, 0); !errors.Is(err, tt.want) {
					t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
				}
			}
			if _, err := at.Register(own, 0, rw, 0x40); !errors.Is(err, syscall.EFAULT) {
				t.Errorf("its own, with an unknown flag: %v", err)
			}
		})
	}
}
