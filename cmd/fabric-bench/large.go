package main

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
)

// largeTests returns the tests that take sizes beyond commonSize.
func largeTests() (names []string) {
	for _, t := range tests() {
		if t.large {
			names = append(names, t.name)
		}
	}
	return names
}

// checkLarge refuses sizes that not every one of the tests takes.
func checkLarge(picked []*test, sizes []int64) error {
	most := slices.Max(append([]int64{0}, sizes...))
	for _, t := range picked {
		if most > commonSize && !t.large && !t.sizeless && t.fixed == 0 {
			return usagef("--size: %s of %s: it takes sizes up to %s; up to %s takes %s",
				t.name, sizeName(most), sizeName(commonSize), sizeName(maxSize), strings.Join(largeTests(), ", "))
		}
	}
	return nil
}

// largeCopies is how often a payload is in memory, both ends together: what is sent,
// where it arrives, and one of a connection that has just ended.
const largeCopies = 3

// afford refuses a job for which this machine has not enough memory. A peer looks
// after itself.
func afford(j job, s side) error {
	copies := int64(largeCopies)
	if n, ok := s.(*nodes); ok && n.mesh == nil {
		copies--
	}
	return affordAt(j.size, copies*max(j.pairs, 1))
}

// affordAt refuses so many copies of a payload that is larger than commonSize if they
// do not fit.
func affordAt(size, copies int64) error {
	if size <= commonSize {
		return nil
	}
	free, err := availableMemory()
	if err != nil {
		return nil // nobody knows, so that it may be enough
	}
	if need := size*copies + 2*commonSize; need > free {
		return fmt.Errorf("%w: a payload of %s needs %s here, and %s are available", syscall.ENOMEM, sizeName(size), sizeName(need), sizeName(free>>20<<20))
	}
	return nil
}

// memoryFile is where the kernel says how much memory is available.
var memoryFile = "/proc/meminfo"

// availableMemory returns how many bytes can be taken without that others lose
// theirs.
func availableMemory() (int64, error) {
	f, err := os.Open(memoryFile)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var kib int64
		if n, _ := fmt.Sscanf(lines.Text(), "MemAvailable: %d kB", &kib); n == 1 {
			return kib << 10, nil
		}
	}
	return 0, fmt.Errorf("%s: it does not say what is available", memoryFile)
}
