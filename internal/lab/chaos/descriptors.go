package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// starve bounds the descriptors of a node's daemon so that so many more than it has can
// be opened. The node's act is held.
func starve(s *node, free int) (effect, error) {
	d, _, err := s.daemon.running()
	if err != nil {
		return nil, err
	}
	limit, err := firstBeyond(d.pid(), free)
	if err != nil {
		return nil, err
	}
	var before unix.Rlimit
	err = unix.Prlimit(d.pid(), unix.RLIMIT_NOFILE, nil, &before)
	if err == nil {
		err = unix.Prlimit(d.pid(), unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: min(limit, before.Cur), Max: before.Max}, nil)
	}
	if err != nil {
		return nil, fmt.Errorf("bound the descriptors of process %d: %w", d.pid(), err)
	}
	return undoBy(func(context.Context) (uint64, string, error) {
		err := unix.Prlimit(d.pid(), unix.RLIMIT_NOFILE, &before, nil)
		if errors.Is(err, unix.ESRCH) {
			err = nil // it has ended
		}
		return 1, fmt.Sprintf("descriptors from %d on could not be opened", limit), err
	}), nil
}

// firstBeyond returns the lowest number of a descriptor below which a process has free
// numbers left for so many.
func firstBeyond(pid, free int) (uint64, error) {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return 0, err
	}
	var open []int
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			return 0, err
		}
		open = append(open, fd)
	}
	for fd := 0; ; fd++ {
		if slices.Contains(open, fd) {
			continue
		}
		if free == 0 {
			return uint64(fd), nil
		}
		free--
	}
}
