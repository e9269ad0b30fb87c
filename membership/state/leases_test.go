package state

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/test/budget"
	"github.com/fabricd/fabricd/membership/verdict"
)

func newHost(t testing.TB, d string, o Options) *State {
	t.Helper()
	if o.Now == nil {
		o.Now = func() time.Time { return today }
	}
	s, err := Init(d, InitOptions{Options: o, Cluster: clusterA, Name: "host", Secrets: map[SecretName][]byte{
		SecretAuthority: []byte("ca"), SecretCredentials: []byte("cert"), SecretKeyring: []byte("key"), SecretTokens: []byte("[]"),
	}})
	must(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

func reopen(t testing.TB, s *State) *State {
	t.Helper()
	must(t, s.Close())
	s, err := Open(s.Dir(), opts(OS{}))
	must(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

func grant(id addr.NodeID, generation addr.Generation) verdict.Lease {
	return verdict.Lease{
		ID: id, Generation: generation, Epoch: uint64(generation) << 32, UUID: addr.UUID{byte(id), 1},
		State: verdict.LeaseActive, Since: today.Add(time.Duration(generation)), Name: fmt.Sprintf("n%d", id),
	}
}

func TestHostStateSurvivesReopening(t *testing.T) {
	s := newHost(t, t.TempDir(), Options{})
	for want := uint64(1); want <= 2; want++ {
		if term, err := s.NextTerm(); err != nil || term != want || s.Term() != want || s.Leases().Term() != want {
			t.Fatalf("term %d, %v, want %d", term, err, want)
		}
	}
	must(t, s.Leases().Commit(3, grant(1, 1), grant(2, 1)))
	must(t, s.Leases().Put(grant(1, 2)))
	want := []verdict.Lease{grant(1, 2), grant(2, 1)}
	s = reopen(t, s)
	l := s.Leases()
	if !reflect.DeepEqual(l.All(), want) || l.Cursor() != 3 || l.Term() != 2 || l.Floor() != 0 {
		t.Errorf("leases %v, cursor %d, term %d, floor %d", l.All(), l.Cursor(), l.Term(), l.Floor())
	}
	if g, ok := l.Get(1); !ok || g != want[0] {
		t.Errorf("lease 1: %v, %v", g, ok)
	}
	if s.Identity().Role != Host || string(s.Secret(SecretAuthority)) != "ca" {
		t.Errorf("identity %+v", s.Identity())
	}
	must(t, s.AcceptTerm(9)) // another host was seen
	if term, err := s.NextTerm(); err != nil || term != 10 {
		t.Errorf("next term %d, %v, want above the other host's 9", term, err)
	}
}

func TestInitTwiceIsRefused(t *testing.T) {
	d := t.TempDir()
	s := newHost(t, d, Options{})
	id := s.Identity()
	must(t, s.Close())
	_, err := Init(d, InitOptions{Cluster: clusterB})
	wantError(t, "a second init", err, ErrInitialized, d, "--state-dir")
	_, err = Prepare(d, "n", Options{})
	wantError(t, "a node in the host's directory", err, ErrRole, d)
	s, err = Open(d, opts(OS{}))
	must(t, err)
	if s.Identity() != id {
		t.Errorf("identity %+v, want %+v", s.Identity(), id)
	}
	wantError(t, "join as host", s.Join(joinedOf(clusterA)), ErrRole)
	must(t, s.Close())
}

func TestInterruptedInitBeginsAnew(t *testing.T) {
	for fail := 1; ; fail++ {
		d := t.TempDir()
		n := 0
		f := &faultyOS{fail: func(string, string) error {
			if n++; n >= fail {
				return errCrash
			}
			return nil
		}}
		s, err := Init(d, InitOptions{Options: opts(f), Cluster: clusterA})
		if err == nil {
			must(t, s.Close())
			if fail < 20 {
				t.Fatalf("init has only %d operations", fail)
			}
			return
		}
		wantError(t, fmt.Sprintf("failure %d", fail), err, errCrash)
		if _, statErr := os.Stat(filepath.Join(d, fileIdentity)); statErr == nil {
			continue // only the last sync failed: it is initialized
		}
		_, err = Open(d, opts(OS{}))
		wantError(t, fmt.Sprintf("open after failure %d", fail), err, ErrNotInitialized)
		s, err = Init(d, InitOptions{Options: opts(OS{}), Cluster: clusterB})
		must(t, err)
		must(t, s.Close())
	}
}

func TestStateWithoutIdentityIsNotOverwritten(t *testing.T) {
	s := newHost(t, t.TempDir(), Options{})
	must(t, s.Close())
	path := filepath.Join(s.Dir(), fileIdentity)
	must(t, os.Remove(path))
	_, err := Init(s.Dir(), InitOptions{Options: opts(OS{}), Cluster: clusterB})
	wantError(t, "init", err, ErrDamaged, path)
	_, err = Open(s.Dir(), opts(OS{}))
	wantError(t, "open", err, ErrDamaged, path)
	_, err = Prepare(s.Dir(), "n", opts(OS{}))
	wantError(t, "prepare", err, ErrDamaged, path)
}

func TestLeasesRefuse(t *testing.T) {
	l := newHost(t, t.TempDir(), Options{}).Leases()
	must(t, l.Put(grant(1, 5)))
	wantError(t, "an old generation", l.Put(grant(1, 4)), ErrOldGeneration, "from 5 to 4")
	must(t, l.Put(grant(1, 5))) // the same incarnation in another state
	long := grant(2, 1)
	long.Name = strings.Repeat("x", maxName+1)
	stateless := grant(2, 1)
	stateless.State = 0
	for what, bad := range map[string][]verdict.Lease{
		"a reserved ID": {grant(addr.FirstReserved, 1)},
		"generation 0":  {grant(2, 0)},
		"a long name":   {long},
		"no state":      {stateless},
		"one ID twice":  {grant(2, 1), grant(2, 2)},
	} {
		if l.Put(bad...) == nil {
			t.Errorf("%s: accepted", what)
		}
	}
	if len(l.All()) != 1 {
		t.Errorf("leases %v, want only the good one", l.All())
	}
}

// manyLeases makes a table with n grants and returns its directory.
func manyLeases(t testing.TB, n addr.NodeID) *State {
	s := newHost(t, t.TempDir(), Options{})
	_, err := s.NextTerm()
	must(t, err)
	var list []verdict.Lease
	for id := range n {
		list = append(list, grant(id, 1))
	}
	must(t, s.Leases().Commit(n, list...))
	must(t, s.Leases().Commit(n, grant(0, 2), grant(n-1, 2)))
	must(t, s.Close())
	return s
}

// checkLeaseFile reads a lease file as Open does, without rewriting it.
func checkLeaseFile(b, sealFile []byte) (map[addr.NodeID]verdict.Lease, leaseMeta, error) {
	grants, meta, err := parseLeases(b)
	if err != nil {
		return nil, meta, err
	}
	s, err := decodeSealFile(sealFile)
	if err != nil {
		return nil, meta, err
	}
	return grants, meta, meta.matches(s)
}

// A leaseTable is the files of a closed table and their content.
type leaseTable struct {
	file, seal []byte
	grants     map[addr.NodeID]verdict.Lease
	meta       leaseMeta
}

func readLeaseTable(t testing.TB, n addr.NodeID) *leaseTable {
	t.Helper()
	s := manyLeases(t, n)
	var lt leaseTable
	var err error
	lt.file, err = os.ReadFile(filepath.Join(s.Dir(), fileLeases))
	must(t, err)
	lt.seal, err = os.ReadFile(filepath.Join(s.Dir(), fileSealed))
	must(t, err)
	lt.grants, lt.meta, err = checkLeaseFile(lt.file, lt.seal)
	must(t, err)
	if len(lt.grants) != int(n) || lt.grants[0].Generation != 2 {
		t.Fatalf("%d leases, the first %v", len(lt.grants), lt.grants[0])
	}
	return &lt
}

// flip flips one bit of byte i of the file and reports whether that was
// noticed. If it was not, the table must be the same all the same.
func (lt *leaseTable) flip(t *testing.T, i int) bool {
	t.Helper()
	bit := byte(1) << (i % 8)
	lt.file[i] ^= bit
	got, meta, err := checkLeaseFile(lt.file, lt.seal)
	lt.file[i] ^= bit
	if err == nil && (meta != lt.meta || !maps.Equal(got, lt.grants)) {
		t.Fatalf("byte %d xor %#x: not noticed, and the table differs", i, bit)
	}
	if err != nil && !errors.Is(err, ErrDamaged) {
		t.Fatalf("byte %d xor %#x: %v", i, bit, err)
	}
	return err != nil
}

func TestEveryDamageToTheLeaseTableIsNoticed(t *testing.T) {
	lt := readLeaseTable(t, 25)
	noticed := 0
	for i := range lt.file {
		if lt.flip(t, i) {
			noticed++
		}
	}
	t.Logf("%d of %d bytes carry something", noticed, len(lt.file))
	if least := 25 * len(AppendLease(nil, grant(1, 1))); noticed < least {
		t.Errorf("only %d flips noticed, the records alone have %d bytes", noticed, least)
	}
	for n := range lt.file {
		got, _, err := checkLeaseFile(lt.file[:n], lt.seal)
		if err == nil && !maps.Equal(got, lt.grants) {
			t.Fatalf("cut to %d bytes: not noticed, and the table differs", n)
		}
	}
	for i := range lt.seal {
		lt.seal[i] ^= 1
		_, _, err := checkLeaseFile(lt.file, lt.seal)
		lt.seal[i] ^= 1
		if err == nil {
			t.Fatalf("byte %d of the seal flipped: not noticed", i)
		}
		if _, _, err := checkLeaseFile(lt.file, lt.seal[:i]); err == nil {
			t.Fatalf("the seal cut to %d bytes: not noticed", i)
		}
	}
}

// TestDamageToTheLeaseTree flips the heads of all pages of a table that has a
// branch page: there are page numbers, counts and positions.
func TestDamageToTheLeaseTree(t *testing.T) {
	lt := readLeaseTable(t, 70)
	noticed, branches := 0, 0
	for page := 0; page < len(lt.file); page += boltPage {
		if native.Uint16(lt.file[page+8:]) == flagBranch {
			branches++
		}
		for i := range 128 {
			if lt.flip(t, page+i) {
				noticed++
			}
		}
	}
	if branches == 0 || noticed < 100 {
		t.Errorf("%d branch pages, %d flips noticed: the table is too small", branches, noticed)
	}
}

func TestDamagedMetaDoesNotGoBack(t *testing.T) {
	s := manyLeases(t, 25)
	path := filepath.Join(s.Dir(), fileLeases)
	file, err := os.ReadFile(path)
	must(t, err)
	refused := 0
	for page := range 2 {
		bad := bytes.Clone(file)
		bad[page*boltPage+pageHead+50] ^= 1 // the transaction number
		must(t, os.WriteFile(path, bad, 0o600))
		again, err := Open(s.Dir(), opts(OS{}))
		if err == nil {
			if g, _ := again.Leases().Get(0); g.Generation != 2 {
				t.Errorf("meta %d damaged: generation went back to %d", page, g.Generation)
			}
			must(t, again.Close())
			must(t, os.WriteFile(path, file, 0o600))
			continue
		}
		refused++
		wantError(t, "the newer meta damaged", err, ErrDamaged, path, "older", "--rebuild-leases")
	}
	if refused != 1 {
		t.Errorf("%d of 2 damaged metas refused, want the newer one", refused)
	}
}

func TestOldLeaseFileIsRefused(t *testing.T) {
	s := newHost(t, t.TempDir(), Options{})
	path := filepath.Join(s.Dir(), fileLeases)
	must(t, s.Leases().Put(grant(1, 1)))
	old, err := os.ReadFile(path)
	must(t, err)
	must(t, s.Leases().Put(grant(1, 2)))
	must(t, s.Close())
	must(t, os.WriteFile(path, old, 0o600))
	_, err = Open(s.Dir(), opts(OS{}))
	wantError(t, "a file from a backup", err, ErrDamaged, path, "older", "backup")
}

func TestEveryDamageToTheHostsFilesIsRefused(t *testing.T) {
	s := newHost(t, t.TempDir(), Options{})
	must(t, s.Close())
	entries, err := os.ReadDir(s.Dir())
	must(t, err)
	for _, e := range entries {
		path := filepath.Join(s.Dir(), e.Name())
		switch e.Name() {
		case fileLock, fileLeases, fileMembers, string(SecretResetKey):
			continue // no state, tested above, or rebuilt without harm
		}
		b, err := os.ReadFile(path)
		must(t, err)
		for i := range b {
			bad := bytes.Clone(b)
			bad[i] ^= 1
			must(t, os.WriteFile(path, bad, 0o600))
			_, err := Open(s.Dir(), opts(OS{}))
			wantError(t, fmt.Sprintf("%s: byte %d", e.Name(), i), err, ErrDamaged, path)
			must(t, os.WriteFile(path, b[:i], 0o600))
			_, err = Open(s.Dir(), opts(OS{}))
			wantError(t, fmt.Sprintf("%s: cut to %d", e.Name(), i), err, ErrDamaged, path)
		}
		must(t, os.WriteFile(path, b, 0o600))
	}
	reopen(t, s)
}

// at opens the directory of s anew at another time.
func at(t testing.TB, s *State, now time.Time, rebuild bool) *State {
	t.Helper()
	must(t, s.Close())
	s, err := Open(s.Dir(), Options{Now: func() time.Time { return now }, RebuildLeases: rebuild})
	must(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

func TestTermsDoNotRepeat(t *testing.T) {
	s := newHost(t, t.TempDir(), Options{})
	must(t, s.Close())
	backup := t.TempDir()
	must(t, os.CopyFS(backup, os.DirFS(s.Dir())))
	seen := map[uint64]bool{}
	for i := range 100 {
		if i%10 == 9 { // back to the backup
			must(t, os.RemoveAll(s.Dir()))
			must(t, os.CopyFS(s.Dir(), os.DirFS(backup)))
		}
		after := time.Duration(i) * time.Second
		s = at(t, s, today.Add(after), false)
		term, err := s.NextTerm()
		must(t, err)
		if seen[term] || term != uint64(i+1) {
			t.Fatalf("term %d after %v, seen before: %v, want %d", term, after, seen[term], i+1)
		}
		seen[term] = true
		must(t, s.Close())
	}
}

func TestAWrongClockUsesUpNoTerms(t *testing.T) {
	s := newHost(t, t.TempDir(), Options{})
	last := uint64(0)
	for _, clock := range []time.Time{
		today, today.AddDate(137, 0, 0), today.AddDate(300, 0, 0), today.AddDate(-100, 0, 0), today,
		today.AddDate(67, 0, 0), today, today.AddDate(68, 1, 0), today,
	} {
		s = at(t, s, clock, false)
		term, err := s.NextTerm()
		must(t, err)
		if term <= last || term > maxTerm/2+10 {
			t.Errorf("by a clock that says %s term %d follows %d, want a later one that leaves half of all", clock, term, last)
		}
		last = term
	}
}

func TestRebuiltLeasesBeginAboveAllOthers(t *testing.T) {
	s := newHost(t, t.TempDir(), Options{})
	highest := addr.Generation(0)
	for _, clock := range []time.Time{today, today.AddDate(-1, 0, 0), today.AddDate(137, 0, 0), time.Unix(-5, 0), today} {
		s = at(t, s, clock, false)
		term, err := s.NextTerm()
		must(t, err)
		highest = max(highest, addr.Generation(term), s.Leases().Floor()) + 1000
		must(t, s.Leases().Put(grant(1, highest)))
		must(t, s.Close())
		must(t, os.Remove(filepath.Join(s.Dir(), fileLeases)))
		s = at(t, s, clock, true)
		if got := s.Leases().Floor(); got <= highest || got > maxTerm/2+1<<30 {
			t.Errorf("by a clock that says %s a rebuilt table begins with %d after %d", clock, got, highest)
		}
		if term, err := s.NextTerm(); err != nil || term <= uint64(highest) {
			t.Errorf("its term is %d, %v, after generation %d", term, err, highest)
		}
	}
}

func TestALostTableIsRebuilt(t *testing.T) {
	s := newHost(t, t.TempDir(), Options{})
	_, err := s.NextTerm()
	must(t, err)
	must(t, s.Leases().Put(grant(1, 7)))
	must(t, s.Close())
	path := filepath.Join(s.Dir(), fileLeases)
	must(t, os.Remove(path))
	_, err = Open(s.Dir(), opts(OS{}))
	wantError(t, "the table is gone", err, ErrDamaged, path, "missing", "--rebuild-leases")
	o := opts(OS{})
	o.RebuildLeases = true
	s, err = Open(s.Dir(), o)
	must(t, err)
	l := s.Leases()
	if len(s.Notes()) != 1 || len(l.All()) != 0 || uint64(l.Floor()) != uint64(today.Unix()) || l.Term() != uint64(l.Floor()) {
		t.Errorf("notes %q, leases %v, floor %d, term %d", s.Notes(), l.All(), l.Floor(), l.Term())
	}
	wantError(t, "below the floor", l.Put(grant(1, 8)), ErrOldGeneration)
	must(t, l.Put(grant(1, l.Floor())))
	s = reopen(t, s)
	if len(s.Leases().All()) != 1 {
		t.Errorf("leases %v", s.Leases().All())
	}
}

// fill makes every write to the table's open file fail with ENOSPC, as a full
// disk does, and returns how to undo it.
func fill(t testing.TB, l *Leases) (undo func()) {
	t.Helper()
	full, err := os.OpenFile("/dev/full", os.O_RDWR, 0)
	must(t, err)
	fd := int(l.file.handle.Fd())
	saved, err := syscall.Dup(fd)
	must(t, err)
	must(t, syscall.Dup3(int(full.Fd()), fd, syscall.O_CLOEXEC))
	must(t, full.Close())
	return func() { must(t, syscall.Close(saved)) }
}

func TestLeasesOnAFullDisk(t *testing.T) {
	f := &faultyOS{}
	s := newHost(t, t.TempDir(), Options{FS: f})
	l := s.Leases()
	must(t, l.Put(grant(1, 1)))
	undo := fill(t, l)
	defer undo()
	wantError(t, "a full disk", l.Put(grant(1, 2)), syscall.ENOSPC, fileLeases, "nothing was lost")
	if g, _ := l.Get(1); g.Generation != 1 {
		t.Errorf("generation %d after a failed grant, want 1", g.Generation)
	}
	for _, op := range []string{"write", "rename", "sync"} {
		f.fail = func(o, _ string) error {
			if o == op {
				return syscall.ENOSPC
			}
			return nil
		}
		wantError(t, op, l.Put(grant(1, 2)), syscall.ENOSPC)
		if g, _ := l.Get(1); g.Generation != 1 {
			t.Errorf("%s: generation %d after a failed grant, want 1", op, g.Generation)
		}
	}
	f.fail = nil
	must(t, l.Put(grant(1, 2), grant(2, 1)))
	s = reopen(t, s)
	if want := []verdict.Lease{grant(1, 2), grant(2, 1)}; !reflect.DeepEqual(s.Leases().All(), want) {
		t.Errorf("leases %v, want %v", s.Leases().All(), want)
	}
	must(t, s.Close())
	wantError(t, "after Close", s.Leases().Put(grant(3, 1)), ErrClosed)
	if _, err := os.Stat(filepath.Join(s.Dir(), fileLeases+tmpSuffix)); !missing(err) {
		t.Errorf("a temporary file is left: %v", err)
	}
}

// TestLeasesAgainstAModel commits under random failures and restarts: all
// acknowledged grants are there afterwards, and nothing is older.
func TestLeasesAgainstAModel(t *testing.T) {
	root := t.TempDir()
	round := 0
	rapid.Check(t, func(t *rapid.T) {
		round++
		f := &faultyOS{}
		o := opts(f)
		s, err := Init(filepath.Join(root, fmt.Sprint(round)), InitOptions{Options: o, Cluster: clusterA})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = s.Close() }()
		model := map[addr.NodeID]verdict.Lease{}
		for range rapid.IntRange(1, 8).Draw(t, "steps") {
			switch rapid.SampledFrom([]string{"commit", "commit", "restart", "fail"}).Draw(t, "step") {
			case "restart":
				f.fail = nil
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				if s, err = Open(s.Dir(), o); err != nil {
					t.Fatal(err)
				}
				for id, want := range model {
					if g, _ := s.Leases().Get(id); g.Generation < want.Generation {
						t.Fatalf("lease %d went back from %d to %d", id, want.Generation, g.Generation)
					}
				}
				for _, g := range s.Leases().All() {
					model[g.ID] = g // a failed grant may have reached the disk
				}
			case "fail":
				n := rapid.IntRange(0, 4).Draw(t, "operations before the failure")
				f.fail = func(string, string) error {
					if n--; n < 0 {
						return syscall.EIO
					}
					return nil
				}
			case "commit":
				var list []verdict.Lease
				for id := range addr.NodeID(rapid.IntRange(1, 3).Draw(t, "grants")) {
					list = append(list, grant(id, model[id].Generation+1))
				}
				if err := s.Leases().Commit(5, list...); err != nil {
					if !errors.Is(err, syscall.EIO) {
						t.Fatal(err)
					}
					f.fail = nil
					break
				}
				for _, g := range list {
					model[g.ID] = g
				}
			}
			for id, want := range model {
				if g, ok := s.Leases().Get(id); !ok || g != want {
					t.Fatalf("lease %d is %v, want %v", id, g, want)
				}
			}
		}
	})
}

func TestEveryGrantFlipIsNoticed(t *testing.T) {
	b := AppendLease(nil, grant(7, 3))
	if g, err := ParseLease(b); err != nil || g != grant(7, 3) {
		t.Fatalf("%v, %v, want it back", g, err)
	}
	for i := range b {
		for bit := range 8 {
			b[i] ^= 1 << bit
			if _, err := ParseLease(b); !errors.Is(err, ErrDamaged) {
				t.Fatalf("byte %d bit %d flipped: %v", i, bit, err)
			}
			b[i] ^= 1 << bit
		}
		if _, err := ParseLease(b[:i]); !errors.Is(err, ErrDamaged) {
			t.Fatalf("cut to %d: %v", i, err)
		}
	}
}

// TestTheRecordOfALeaseIsFixed: other versions read the same bytes, and their numbers of states.
func TestTheRecordOfALeaseIsFixed(t *testing.T) {
	for state, want := range map[verdict.LeaseState]string{
		verdict.LeaseFree:       "0101000700000003000000000000000201020300000000000000000000000009000000003b9aca05057765622d31cb436ac4",
		verdict.LeaseActive:     "0102000700000003000000000000000201020300000000000000000000000009000000003b9aca05057765622d3178f30717",
		verdict.LeaseQuarantine: "0103000700000003000000000000000201020300000000000000000000000009000000003b9aca05057765622d31166323a6",
	} {
		l := verdict.Lease{ID: 7, Generation: 3, Epoch: 2, UUID: addr.UUID{1, 2, 3, 15: 9}, State: state, Since: time.Unix(1, 5).UTC(), Name: "web-1"}
		if got := fmt.Sprintf("%x", AppendLease(nil, l)); got != want {
			t.Errorf("%v: %s, want %s", state, got, want)
		}
	}
}

func FuzzParseLease(f *testing.F) {
	f.Add(AppendLease(nil, grant(7, 3)))
	f.Add(appendSum([]byte{9}))
	f.Add(appendSum(make([]byte, grantHead)))
	f.Fuzz(func(t *testing.T, b []byte) {
		g, err := ParseLease(b)
		if err == nil && !bytes.Equal(AppendLease(nil, g), b) {
			t.Errorf("%x parses to %+v", b, g)
		}
		// The body behind a right checksum, which random bytes never have.
		if g, err := ParseLease(appendSum(bytes.Clone(b))); err == nil && check(g) != nil {
			t.Errorf("%x parses to %+v", b, g)
		}
	})
}

// TestReadBoltStaysInItsBudget: a damaged file costs at most as much as its pairs do,
// each of which has 16 bytes of it.
func TestReadBoltStaysInItsBudget(t *testing.T) {
	s := newHost(t, t.TempDir(), Options{})
	for id := range 200 {
		must(t, s.Leases().Put(grant(addr.NodeID(id+1), 1)))
	}
	must(t, s.Close())
	whole, err := os.ReadFile(filepath.Join(s.Dir(), fileLeases))
	must(t, err)
	const pair = 32 // times 16 bytes, growing lists included
	for at := 0; at < len(whole); at += 97 {
		for _, value := range []byte{0, 0x7f, 0xff} {
			b := bytes.Clone(whole)
			b[at] = value
			budget.HoldTimes(t, "readBolt", b, pair, func(p []byte) { _, _ = readBolt(p, leaseBucket) })
		}
	}
}

func FuzzReadBolt(f *testing.F) {
	s := newHost(f, f.TempDir(), Options{})
	must(f, s.Leases().Put(grant(1, 1)))
	must(f, s.Close())
	b, err := os.ReadFile(filepath.Join(s.Dir(), fileLeases))
	must(f, err)
	f.Add(b, uint16(3*boltPage), uint8(1))
	f.Add(b[:2*boltPage], uint16(0), uint8(0))
	f.Add([]byte{}, uint16(0), uint8(0))
	f.Fuzz(func(t *testing.T, b []byte, at uint16, value uint8) {
		if int(at) < len(b) {
			b[at] = value
		}
		pairs, err := readBolt(b, leaseBucket)
		if err != nil {
			if !errors.Is(err, ErrDamaged) {
				t.Errorf("error %v", err)
			}
			return
		}
		if 16*len(pairs) > len(b) {
			t.Errorf("%d pairs in %d bytes", len(pairs), len(b))
		}
	})
}

// Get returns the grant of an ID.
func (l *Leases) Get(id addr.NodeID) (g verdict.Lease, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	g, ok = l.grants[id]
	return g, ok
}
