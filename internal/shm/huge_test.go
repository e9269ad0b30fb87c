package shm

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fabricd/fabricd/internal/status"
)

// hugeBytes returns how many bytes of the mapping at mem are mapped by huge pages, as
// the kernel reports.
func hugeBytes(t *testing.T, mem []byte) int64 {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	begin := fmt.Sprintf("%x-", address(mem))
	_, rest, found := strings.Cut(string(maps), "\n"+begin)
	if !found {
		t.Fatalf("no mapping begins at %s", begin)
	}
	m := regexp.MustCompile(`(?m)^ShmemPmdMapped:\s+(\d+) kB`).FindStringSubmatch(rest)
	if m == nil {
		t.Fatal("smaps has no ShmemPmdMapped")
	}
	kb, _ := strconv.ParseInt(m[1], 10, 64)
	return kb << 10
}

// hugeMemory returns fresh memory in huge pages, or nil where the kernel has none;
// then it checks the error.
func hugeMemory(t *testing.T, n int64) *Region {
	t.Helper()
	r := create(t, n)
	if _, err := HugeRequire.Apply(r); err != nil {
		if !errors.Is(err, status.NoMemory) && !errors.Is(err, status.NotSupp) || !strings.Contains(err.Error(), "huge pages are required: ") {
			t.Errorf("refused with %v, want NoMemory or NotSupp and what is required", err)
		}
		t.Logf("no huge pages here: %v", err)
		return nil
	}
	return r
}

// Memory in huge pages keeps its bytes, is sealed and accepted by every process that
// maps it, and is huge for that process too.
func TestHugePagesAreOrdinaryMemory(t *testing.T) {
	huge := HugePageSize()
	r := hugeMemory(t, 2*huge+PageSize)
	if r == nil {
		return
	}
	if got := hugeBytes(t, r.Bytes()); got != 2*huge {
		t.Errorf("%d bytes are in huge pages, want %d", got, 2*huge)
	}
	if err := Check(r.File(), r.Len(), r.Len()); err != nil {
		t.Errorf("Check = %v, want it accepted as any other memory", err)
	}
	copy(r.Bytes()[huge-2:], "over the edge")
	for off, want := range map[int64]string{0: "over the edge", PageSize: "over the edge"} {
		fd, err := unix.Dup(int(r.File().Fd()))
		if err != nil {
			t.Fatal(err)
		}
		m, err := Map(os.NewFile(uintptr(fd), "dup"), off, r.Len()-off, true)
		if err != nil {
			t.Fatal(err)
		}
		if got := string(m.Bytes()[huge-2-off:][:len(want)]); got != want {
			t.Errorf("mapped from %d: %q, want %q", off, got, want)
		}
		if got, want := hugeBytes(t, m.Bytes()), (2*huge-off)&^(huge-1); off > 0 && got > want || off == 0 && got == 0 {
			t.Errorf("mapped from %d: %d bytes in huge pages, want at most %d and some", off, got, want)
		}
		m.Release()
	}
}

func TestSmallMemoryHasSmallPages(t *testing.T) {
	for _, h := range []HugePages{HugeOff, HugeTry, HugeRequire} {
		small, err := h.Apply(create(t, PageSize))
		if HugePageSize() == 0 && h != HugeOff {
			if small == "" && err == nil {
				t.Errorf("%v without huge pages: want it reported", h)
			}
			continue
		}
		if small != "" || err != nil {
			t.Errorf("%v of one page: %q, %v; want it left alone", h, small, err)
		}
	}
}

func TestHugePagesThatThereAreNotAreExplained(t *testing.T) {
	for _, c := range []struct {
		from error
		code status.Code
		says string
	}{
		{unix.EINVAL, status.NotSupp, "shmem_enabled"},
		{unix.ENOMEM, status.NoMemory, "/proc/sys/vm/compact_memory"},
		{unix.EAGAIN, status.NoMemory, "too few free ones"},
		{unix.EBUSY, status.NoMemory, "this process is at"},
		{unix.EPERM, status.NoMemory, "make huge pages of"},
	} {
		err := hugeError(c.from, 4<<20, 2<<20)
		if !errors.Is(err, c.code) || !errors.Is(err, c.from) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v: %v, want code %q and %q", c.from, err, c.code, c.says)
		}
	}
}

// Memory that the kernel makes no huge pages of is as good with try, and refused
// with require.
func TestHugePagesThatCannotBe(t *testing.T) {
	r := create(t, 4<<20)
	_ = unix.Madvise(r.mem, unix.MADV_NOHUGEPAGE) // fails only where there are none anyway
	if small, err := HugeTry.Apply(r); !strings.HasPrefix(small, "small pages: this kernel ") || err != nil {
		t.Errorf("try: %q, %v; want small pages and the reason", small, err)
	}
	if small, err := HugeRequire.Apply(r); small != "" || !errors.Is(err, status.NotSupp) {
		t.Errorf("require: %q, %v; want it refused", small, err)
	}
	if small, err := HugeOff.Apply(r); small != "" || err != nil {
		t.Errorf("off: %q, %v", small, err)
	}
}

func TestHugePagesAreParsed(t *testing.T) {
	for _, h := range []HugePages{HugeOff, HugeTry, HugeRequire} {
		if got, ok := ParseHugePages(h.String()); got != h || !ok || !strings.Contains(HugeAllowed, h.String()) {
			t.Errorf("%v comes back as %v, %v", h, got, ok)
		}
	}
	for _, text := range []string{"", "on", "OFF", "try "} {
		if _, ok := ParseHugePages(text); ok {
			t.Errorf("%q is taken", text)
		}
	}
	if HugePages(3).Valid() {
		t.Error("there is a fourth")
	}
}
