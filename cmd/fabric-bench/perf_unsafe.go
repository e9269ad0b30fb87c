//go:build linux

package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unsafe"
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

// entryTracepoint returns the number of the tracepoint at which every system
// call begins.
func entryTracepoint() (uint64, error) {
	var last error
	for _, dir := range []string{"/sys/kernel/tracing", "/sys/kernel/debug/tracing"} {
		text, err := os.ReadFile(dir + "/events/raw_syscalls/sys_enter/id")
		if err == nil {
			return strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
		}
		if last == nil {
			last = err
		}
	}
	return 0, last
}
