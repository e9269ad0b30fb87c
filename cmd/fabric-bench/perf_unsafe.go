//go:build linux

package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A callCounter counts the system calls of this process: the kernel's own
// tracepoint at their entry, counted for every thread and for those that these
// start. Nothing else that the kernel offers counts all of them: /proc/self/io
// has only read and write, not the calls of sockets, polls and futexes.
type callCounter struct{ events []int }

// What perf_event_open(2) takes. The attributes are the kernel's first layout,
// 64 bytes.
const (
	perfTracepoint = 2
	perfInherit    = 1 << 1
	perfCloseExec  = 1 << 3
)

type perfAttributes struct {
	kind, size     uint32
	config         uint64
	samplePeriod   uint64
	sampleKind     uint64
	readFormat     uint64
	flags          uint64
	wakeup, bpKind uint32
	config1        uint64
}

// newCallCounter starts to count, beside this process others too.
func newCallCounter(pids ...int) (*callCounter, error) {
	pids = append([]int{os.Getpid()}, pids...)
	id, err := entryTracepoint()
	if err != nil {
		return nil, err
	}
	const attempts = 10
	for range attempts {
		c := &callCounter{}
		before, err := threads(pids)
		if err != nil {
			return nil, err
		}
		if err := c.open(id, before); err != nil {
			c.close()
			return nil, err
		}
		after, err := threads(pids)
		if err == nil && slices.Equal(before, after) {
			return c, nil
		}
		c.close() // a thread that has started meanwhile may count twice or not at all
	}
	return nil, fmt.Errorf("the threads of this process do not keep still")
}

func (c *callCounter) open(id uint64, tids []int) error {
	attr := perfAttributes{kind: perfTracepoint, config: id, flags: perfInherit}
	attr.size = uint32(unsafe.Sizeof(attr))
	for _, tid := range tids {
		anyCPU, noGroup := -1, -1
		fd, _, errno := syscall.Syscall6(syscall.SYS_PERF_EVENT_OPEN, uintptr(unsafe.Pointer(&attr)),
			uintptr(tid), uintptr(anyCPU), uintptr(noGroup), perfCloseExec, 0)
		if errno != 0 {
			return fmt.Errorf("perf_event_open: %w", errno)
		}
		c.events = append(c.events, int(fd))
	}
	return nil
}

// count returns the calls so far. Reading costs one for each thread.
func (c *callCounter) count() (n int64, err error) {
	var b [8]byte
	for _, fd := range c.events {
		if _, err := syscall.Read(fd, b[:]); err != nil {
			return 0, fmt.Errorf("read a perf event: %w", err)
		}
		n += int64(binary.NativeEndian.Uint64(b[:]))
	}
	return n, nil
}

func (c *callCounter) close() {
	for _, fd := range c.events {
		syscall.Close(fd)
	}
	c.events = nil
}

// entryTracepoint returns the number of the tracepoint at which every system call
// begins. Where tracefs is not mounted, root looks into a mount of its own.
func entryTracepoint() (uint64, error) {
	under := func(dir string) func(string) ([]byte, error) {
		return func(name string) ([]byte, error) { return os.ReadFile(dir + name) }
	}
	var first error
	for _, read := range []func(name string) ([]byte, error){under("/sys/kernel/tracing/"), under("/sys/kernel/debug/tracing/"), readTracefs} {
		text, err := read("events/raw_syscalls/sys_enter/id")
		if err == nil {
			return strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
		}
		if first == nil {
			first = err
		}
	}
	return 0, first
}

// readTracefs reads a file of a tracefs that is mounted nowhere: it is gone with its
// descriptor.
func readTracefs(name string) ([]byte, error) {
	fs, err := unix.Fsopen("tracefs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("fsopen tracefs: %w", err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return nil, fmt.Errorf("fsconfig tracefs: %w", err)
	}
	root, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_RDONLY)
	if err != nil {
		return nil, fmt.Errorf("fsmount tracefs: %w", err)
	}
	defer unix.Close(root)
	fd, err := unix.Openat(root, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s of tracefs: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	return io.ReadAll(f)
}
