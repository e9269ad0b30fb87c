package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// Sizes beyond what every test takes move as they are, and their bytes are checked:
// the first is the largest that is one block of a pattern. The race detector, which
// takes long with so much memory, sees them with a block of a sixteenth.
func TestLargeSizesMoveAndAreChecked(t *testing.T) {
	sizes := []string{"64M", "65MiB"}
	if raceEnabled {
		defer func(old int64) { commonSize = old }(commonSize)
		commonSize = 4 << 20
		sizes = []string{"4M", "5MiB"}
	}
	for _, provider := range []string{providerMem, providerTCPPlain} {
		t.Run(provider, func(t *testing.T) {
			temporaries(t)
			d := document(t, "run", "rma_write_lat", "rma_read_lat", "rma_write_bw", "rma_read_bw", "msg_bw", "--provider", provider,
				"--size", strings.Join(sizes, ","), "--iters", "2", "--warmup", "0", "--reps", "1", "--validate")
			ours := 0
			for _, r := range d.Results {
				if r.Errors != 0 || r.Iters != 2 || !r.Median.measured() {
					t.Errorf("%s of %s over %s: %d errors in %d operations, %v", r.Test, sizeName(r.Size), r.Provider, r.Errors, r.Iters, r.Median)
				}
				if r.Provider == provider {
					ours++
				}
			}
			if want := 5 * len(sizes); ours != want {
				t.Errorf("%d rows, want the %d of five tests and each size", ours, want)
			}
		})
	}
}

func TestLongPatternsRepeatTheirBlock(t *testing.T) {
	block := int(commonSize)
	size := block + 1000
	p := newPattern(3, size)
	if len(p.bytes) > block+patternTurns {
		t.Errorf("%d bytes are kept of a pattern of %d", len(p.bytes), size)
	}
	mem := p.message(5)
	if !bytes.Equal(mem[:block], newPattern(3, block).message(5)) || !bytes.Equal(mem[block:], mem[:1000]) {
		t.Error("it is not its block and the beginning of it")
	}
	if !p.is(mem, 5) || p.is(mem, 6) || p.is(mem[1:], 5) || p.wrong(mem, 1) != 1 {
		t.Error("it is not told from others")
	}
	mem[size-1] ^= 1
	if p.is(mem, 5) {
		t.Error("a bit at its end may be wrong")
	}
	if next := p.next(mem, 0); &next[0] != &mem[0] || p.wrong(mem, 1) != 0 {
		t.Error("the next message is not in the memory of the last")
	}
}

// What does not fit into memory is refused with a reason, at either end, before it is
// allocated.
func TestLargeSizesNeedMemory(t *testing.T) {
	temporaries(t)
	old := memoryFile
	defer func() { memoryFile = old }()
	memoryFile = filepath.Join(t.TempDir(), "meminfo")
	if err := os.WriteFile(memoryFile, []byte("MemTotal: 9999999 kB\nMemAvailable: 1048576 kB\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	code, _, errs := runBench(t, "run", "rma_write_bw", "--provider", "mem", "--size", "1GiB", "--reps", "1", "--quiet")
	if code != exitFail || !strings.Contains(errs, "cannot allocate memory: a payload of 1024M needs 3200M here, and 1024M are available") {
		t.Errorf("exit code %d: %s", code, errs)
	}
	r := &responder{rw: &bytes.Buffer{}}
	for _, c := range []command{{Op: opSink, Size: maxSize, Count: 1}, {Op: opWindow, Size: 1 << 20, Count: 1 << 10}} {
		if err := r.obey(c); !errors.Is(err, syscall.ENOMEM) {
			t.Errorf("%+v: %v, want ENOMEM", c, err)
		}
	}
	if err := affordAt(commonSize, 1<<10); err != nil {
		t.Errorf("of a size that every test takes: %v", err)
	}
	memoryFile = filepath.Join(t.TempDir(), "nothing")
	if err := affordAt(maxSize, 3); err != nil {
		t.Errorf("where the kernel says nothing: %v", err)
	}
}

func TestLargeSizesHaveFewerOperations(t *testing.T) {
	for size, want := range map[int64]int64{64: 10_000, commonSize: 100, 2 * commonSize: 50, maxSize: 6} {
		if iters, _ := (budget{warmup: -1}).plan(size); iters != want {
			t.Errorf("of %s %d operations, want %d", sizeName(size), iters, want)
		}
	}
	if iters, _ := (budget{iters: 2, warmup: -1}).plan(maxSize); iters != 2 {
		t.Errorf("%d operations, want those that were asked for", iters)
	}
	if got := underWay(maxSize); got != 4 {
		t.Errorf("%d of 1G are under way, want 4", got)
	}
	if !slices.Contains(largeTests(), "rma_write_bw") || slices.Contains(largeTests(), "vrma_write_bw") {
		t.Errorf("%q", largeTests())
	}
}
