package shm

import (
	"bytes"
	"errors"
	"math"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fabricd/fabricd/internal/status"
)

func create(t testing.TB, n int64) *Region {
	t.Helper()
	r, err := Create("test", n)
	if err != nil {
		t.Fatalf("Create(%d): %v", n, err)
	}
	t.Cleanup(r.Release)
	return r
}

func TestCreatedMemoryIsZeroedPopulatedAndAccepted(t *testing.T) {
	r := create(t, PageSize+1)
	if got, want := r.Len(), 2*PageSize; got != want {
		t.Errorf("Len = %d, want %d: whole pages", got, want)
	}
	if !bytes.Equal(r.Bytes(), make([]byte, r.Len())) {
		t.Error("memory is not zeroed")
	}
	if err := Check(r.File(), r.Len(), r.Len()); err != nil {
		t.Errorf("Check refuses our own memory: %v", err)
	}
	st, err := r.File().Stat()
	if err != nil || st.Mode().Perm() != 0o444 {
		t.Errorf("mode = %v, %v, want 0444: others may open it for reading only", st.Mode(), err)
	}
}

func TestCreatedMemoryKeepsItsSize(t *testing.T) {
	r := create(t, PageSize)
	fd := int(r.File().Fd())
	for _, size := range []int64{0, 2 * PageSize} {
		if err := unix.Ftruncate(fd, size); !errors.Is(err, unix.EPERM) {
			t.Errorf("ftruncate to %d = %v, want EPERM: sealed", size, err)
		}
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_WRITE); !errors.Is(err, unix.EBUSY) {
		t.Errorf("adding a seal = %v, want EBUSY: it is mapped", err)
	}
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	if err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("descriptor flags = %#x, %v, want FD_CLOEXEC", flags, err)
	}
}

func TestCreateRefusesSizes(t *testing.T) {
	for _, n := range []int64{0, -1, math.MinInt64, math.MaxInt64, MaxSize + 1} {
		if _, err := Create("test", n); !errors.Is(err, status.Invalid) {
			t.Errorf("Create(%d) = %v, want %v", n, err, status.Invalid)
		}
	}
}

// Creating too much memory for real would end with the OOM killer, so the
// decision is tested apart, and Create only if the decision is a refusal.
func TestMemoryThatIsMissingIsAnError(t *testing.T) {
	for _, c := range []struct {
		size, available int64
		want            status.Code
	}{
		{PageSize, 1 << 30, status.OK},
		{1<<30 - 1<<26, 1 << 30, status.OK},
		{1 << 30, 1 << 30, status.NoMemory},
		{PageSize, 0, status.NoMemory},
		{MaxSize, math.MaxInt64, status.OK},
	} {
		if err := fits(c.size, c.available, "here"); status.Of(err) != c.want {
			t.Errorf("fits(%d, %d) = %v, want code %q", c.size, c.available, err, c.want)
		}
	}
	if err := fitsHere(MaxSize); !errors.Is(err, status.NoMemory) {
		t.Fatalf("64 TiB fit here: %v, want %v", err, status.NoMemory)
	}
	if _, err := Create("test", MaxSize); !errors.Is(err, status.NoMemory) {
		t.Errorf("Create(64 TiB) = %v, want %v", err, status.NoMemory)
	}
}

func TestParseMeminfo(t *testing.T) {
	for text, want := range map[string]int64{
		"MemTotal: 9 kB\nMemAvailable:   2048 kB\n": 2048 << 10,
		"MemTotal: 9 kB\n":                          -1,
		"MemAvailable: many kB\n":                   -1,
		"MemAvailable: -4 kB\n":                     -1,
		"MemAvailable: 9223372036854775807 kB\n":    -1,
	} {
		got, ok := parseMeminfo(strings.NewReader(text), "MemAvailable:")
		if !ok {
			got = -1
		}
		if got != want {
			t.Errorf("parseMeminfo(%q) = %d, want %d", text, got, want)
		}
	}
}

// open makes a descriptor a File that the test closes.
func open(t *testing.T, fd int, err error) *os.File {
	t.Helper()
	if err != nil {
		t.Fatalf("hostile descriptor: %v", err)
	}
	f := os.NewFile(uintptr(fd), "hostile")
	t.Cleanup(func() { f.Close() })
	return f
}

// memory makes a memfd of size bytes, allocates blocks bytes and adds seals.
func memory(t *testing.T, flags int, size, allocated int64, seals int) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("hostile", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|flags)
	f := open(t, fd, err)
	if err := unix.Ftruncate(fd, size); err != nil {
		t.Fatalf("ftruncate: %v", err)
	}
	if allocated > 0 {
		if err := unix.Fallocate(fd, 0, 0, allocated); err != nil {
			t.Fatalf("fallocate: %v", err)
		}
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		t.Fatalf("seal: %v", err)
	}
	return f
}

func TestCheckRefusesHostileDescriptors(t *testing.T) {
	const page, all = 4096, seals
	if page != PageSize {
		t.Logf("the kernel's page is %d bytes", PageSize)
	}
	want := 4 * PageSize
	mem := func(flags int, size, allocated int64, seals int) func(*testing.T) *os.File {
		return func(t *testing.T) *os.File { return memory(t, flags, size, allocated, seals) }
	}
	path := func(name string, flags int) func(*testing.T) *os.File {
		return func(t *testing.T) *os.File {
			fd, err := unix.Open(name, flags|unix.O_CLOEXEC, 0)
			return open(t, fd, err)
		}
	}
	hostile := map[string]struct {
		file func(*testing.T) *os.File
		want status.Code
	}{
		"pipe": {func(t *testing.T) *os.File {
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { r.Close(); w.Close() })
			return r
		}, status.Fault},
		"socket": {func(t *testing.T) *os.File {
			c, f, err := Pair()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close(); f.Close() })
			return f
		}, status.Fault},
		"regular file": {func(t *testing.T) *os.File {
			f, err := os.CreateTemp(t.TempDir(), "hostile")
			if err == nil {
				err = f.Truncate(want)
			}
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { f.Close() })
			return f
		}, status.Fault},
		"file on tmpfs":   {path("/dev/shm", unix.O_TMPFILE|unix.O_RDWR), status.Fault},
		"directory":       {path("/", unix.O_DIRECTORY), status.Fault},
		"/dev/zero":       {path("/dev/zero", unix.O_RDWR), status.Fault},
		"path only":       {path("/dev/zero", unix.O_PATH), status.Fault},
		"unsealed":        {mem(0, want, want, 0), status.Fault},
		"without SHRINK":  {mem(0, want, want, unix.F_SEAL_GROW|unix.F_SEAL_SEAL), status.Fault},
		"without GROW":    {mem(0, want, want, unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL), status.Fault},
		"size 0":          {mem(0, 0, 0, all), status.Fault},
		"not whole pages": {mem(0, want-1, want-1, all), status.Fault},
		"sparse":          {mem(0, want, 0, all), status.Fault},
		"half populated":  {mem(0, want, want/2, all), status.Fault},
		"smaller":         {mem(0, want-PageSize, want-PageSize, all), status.Fault},
		"larger":          {mem(0, want+PageSize, want+PageSize, all), status.Fault},
		"over the limit":  {mem(0, want+4*PageSize, want+4*PageSize, all), status.NoMemory},
		"closed": {func(t *testing.T) *os.File {
			f := memory(t, 0, want, want, all)
			f.Close()
			return f
		}, status.Fault},
	}
	for name, c := range hostile {
		t.Run(name, func(t *testing.T) {
			err := Check(c.file(t), want, want+2*PageSize)
			if got := status.Of(err); got != c.want && (name != "closed" || err == nil) {
				t.Errorf("Check = %v, want code %q", err, c.want)
			}
		})
	}
	if err := Check(memory(t, 0, want, want, all), want, want); err != nil {
		t.Errorf("Check of good memory at its limit: %v", err)
	}
}

// A hugetlb memfd can be made and sealed with an empty pool; touching it is a
// SIGBUS. Only its file system reveals it.
func TestCheckRefusesHugePages(t *testing.T) {
	const huge = 2 << 20
	fd, err := unix.MemfdCreate("hostile", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_HUGETLB)
	if err != nil {
		t.Logf("this kernel makes no hugetlb memfds (%v): there is nothing to refuse", err)
		return
	}
	f := open(t, fd, nil)
	if err := unix.Ftruncate(fd, huge); err != nil {
		t.Fatalf("ftruncate: %v", err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		t.Fatalf("seal: %v", err)
	}
	if err := Check(f, huge, huge); !errors.Is(err, status.Fault) {
		t.Errorf("Check(hugetlb) = %v, want %v", err, status.Fault)
	}
}

func TestCheckSizeAtTheEdges(t *testing.T) {
	for _, c := range []struct {
		size, blocks, want, limit int64
		code                      status.Code
	}{
		{PageSize, PageSize / 512, PageSize, PageSize, status.OK},
		{PageSize, PageSize, PageSize, PageSize, status.OK},
		{PageSize, PageSize/512 - 1, PageSize, PageSize, status.Fault},
		{-PageSize, 1 << 40, -PageSize, PageSize, status.Fault},
		{math.MinInt64, 0, math.MinInt64, math.MaxInt64, status.Fault},
		{MaxSize + PageSize, math.MaxInt64, MaxSize + PageSize, math.MaxInt64, status.NoMemory},
	} {
		if err := checkSize(c.size, c.blocks, c.want, c.limit); status.Of(err) != c.code {
			t.Errorf("checkSize(%d, %d, %d, %d) = %v, want code %q", c.size, c.blocks, c.want, c.limit, err, c.code)
		}
	}
}

func TestReadOnlyDescriptorCannotBeMappedForWriting(t *testing.T) {
	r := create(t, PageSize)
	r.Bytes()[7] = 42
	ro, err := ReadOnly(r.File())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Map(ro, 0, PageSize, true); !errors.Is(err, syscall.EACCES) || !errors.Is(err, status.Access) {
		t.Errorf("mapping for writing = %v, want EACCES", err)
	}
	m, err := Map(ro, 0, PageSize, false)
	if err != nil {
		t.Fatalf("mapping for reading: %v", err)
	}
	defer m.Release()
	if m.Bytes()[7] != 42 {
		t.Error("the mapping shows other memory")
	}
}
