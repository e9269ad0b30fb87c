package state

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/fabricd/fabricd/fabric/addr"
)

// backedUp makes a host with two leases, and returns it with its backup, which went
// through its bytes.
func backedUp(t testing.TB) (*State, Backup) {
	t.Helper()
	s := newHost(t, t.TempDir(), Options{})
	_, err := s.NextTerm()
	must(t, err)
	must(t, s.Leases().Commit(2, grant(1, 7), grant(2, 1)))
	must(t, s.PutSecret(SecretBans, []byte("[]")))
	b, err := s.Backup()
	must(t, err)
	b, err = DecodeBackup(b.Encode())
	must(t, err)
	return s, b
}

func openHost(t testing.TB, dir string) *State {
	t.Helper()
	s, err := Open(dir, opts(OS{}))
	must(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

func TestARestoredDirectoryIsTheHostsAboveAllItGranted(t *testing.T) {
	s, b := backedUp(t)
	if b.Term != 1 || b.Leases != 2 || b.Identity != s.Identity() || !b.Made.Equal(today.Truncate(time.Second)) {
		t.Errorf("backup %+v", b)
	}
	dir := filepath.Join(t.TempDir(), "new")
	kept, err := Restore(dir, b, false, opts(OS{}))
	must(t, err)
	r := openHost(t, dir)
	if kept != "" || len(r.Notes()) > 0 || r.Identity() != s.Identity() || string(r.Secret(SecretKeyring)) != "key" || r.Secret(SecretBans) == nil {
		t.Errorf("kept %q, notes %q, identity %+v", kept, r.Notes(), r.Identity())
	}
	floor := r.Leases().Floor()
	if term, err := r.NextTerm(); err != nil || term != uint64(floor)+1 || floor < 7+rebuildStep {
		t.Errorf("floor %d, next term %d, %v", floor, term, err)
	}
	if got, want := r.Leases().All(), s.Leases().All(); len(got) != 2 || got[0] != want[0] || got[1] != want[1] || r.Leases().Cursor() != 2 {
		t.Errorf("leases %v, want %v", got, want)
	}
	wantError(t, "an early generation", r.Leases().Put(grant(3, floor-1)), ErrOldGeneration)
	must(t, r.Leases().Put(grant(3, floor+1)))
	if epoch, err := r.NextEpoch(); err != nil || epoch>>32 <= uint64(today.Unix()) {
		t.Errorf("epoch %#x, %v", epoch, err)
	}
}

// TestABackupThatIsRestoredAgainBeginsAboveItsFirstRestore, however far its term is above
// the age of the cluster: a host that ran in between has granted incarnations.
func TestABackupThatIsRestoredAgainBeginsAboveItsFirstRestore(t *testing.T) {
	_, b := backedUp(t)
	b.Term = 1 << 30
	var floors []addr.Generation
	for _, later := range []time.Duration{0, time.Hour} {
		dir := filepath.Join(t.TempDir(), "new")
		o := opts(OS{})
		o.Now = func() time.Time { return today.Add(later) }
		_, err := Restore(dir, b, false, o)
		must(t, err)
		floors = append(floors, openHost(t, dir).Leases().Floor())
	}
	if floors[0] < 1<<30 || floors[1] < floors[0]+3600 {
		t.Errorf("floors %d, want the second an hour of seconds above the first", floors)
	}
}

func TestADirectoryThatNobodyHasOpenIsBackedUpAsItIs(t *testing.T) {
	s, b := backedUp(t)
	_, err := BackupOf(s.Dir(), opts(OS{}))
	wantError(t, "of a running host", err, ErrLocked)
	must(t, s.Close())
	before := modTimes(t, s.Dir())
	stopped, err := BackupOf(s.Dir(), opts(OS{}))
	must(t, err)
	if !bytes.Equal(stopped.Encode(), b.Encode()) {
		t.Error("the backup of the stopped host differs from that of the running one")
	}
	for name, at := range modTimes(t, s.Dir()) {
		if name != fileLock && !at.Equal(before[name]) {
			t.Errorf("%s was written", name)
		}
	}
	_, err = BackupOf(t.TempDir(), opts(OS{}))
	wantError(t, "of nothing", err, ErrNotInitialized)
	node, err := Prepare(t.TempDir(), "n", opts(OS{}))
	must(t, err)
	defer node.Close()
	_, err = node.Backup()
	wantError(t, "of a plain node", err, ErrRole)
	must(t, os.Truncate(filepath.Join(s.Dir(), fileLeases), 4096))
	_, err = BackupOf(s.Dir(), opts(OS{}))
	wantError(t, "of a damaged table", err, ErrDamaged, fileLeases)
}

func modTimes(t testing.TB, dir string) map[string]time.Time {
	t.Helper()
	all := map[string]time.Time{}
	entries, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range entries {
		info, err := e.Info()
		must(t, err)
		all[e.Name()] = info.ModTime()
	}
	return all
}

func TestABackupFileIsForItsUserAndNeverReplaced(t *testing.T) {
	_, b := backedUp(t)
	path := filepath.Join(t.TempDir(), "backup")
	must(t, WriteBackup(path, b.Encode()))
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	wantError(t, "a second time", WriteBackup(path, []byte("x")), fs.ErrExist)
	if r, err := ReadBackup(path); err != nil || r.Leases != 2 {
		t.Errorf("read %+v, %v", r, err)
	}
}

func TestEveryDamageToABackupIsNoticed(t *testing.T) {
	_, b := backedUp(t)
	text := b.Encode()
	rapid.Check(t, func(t *rapid.T) {
		damaged := bytes.Clone(text)
		if i := rapid.IntRange(0, len(text)-1).Draw(t, "byte"); rapid.Bool().Draw(t, "cut") {
			damaged = damaged[:i]
		} else {
			damaged[i] ^= rapid.ByteRange(1, 255).Draw(t, "flip")
		}
		if _, err := DecodeBackup(damaged); !errors.Is(err, ErrDamaged) {
			t.Errorf("got %v", err)
		}
	})
	for name, with := range map[string]func(*Backup){
		"a foreign file": func(b *Backup) { b.files["../evil"] = Seal("../evil", nil) },
		"no table":       func(b *Backup) { delete(b.files, fileLeases) },
		"no seal":        func(b *Backup) { delete(b.files, fileSealed) },
		"no term":        func(b *Backup) { delete(b.files, fileTerm) },
		"no identity":    func(b *Backup) { delete(b.files, fileIdentity) },
		"a swapped file": func(b *Backup) { b.files[string(SecretBans)] = b.files[fileTerm] },
	} {
		_, b := backedUp(t)
		with(&b)
		_, err := DecodeBackup(b.Encode())
		wantError(t, name, err, ErrDamaged)
	}
}

func TestRestoreRefusesWhatIsNotItsToReplace(t *testing.T) {
	s, b := backedUp(t)
	_, err := Restore(s.Dir(), b, true, opts(OS{}))
	wantError(t, "a running host's", err, ErrLocked)
	must(t, s.Close())
	_, err = Restore(s.Dir(), b, false, opts(OS{}))
	wantError(t, "without --force", err, ErrInitialized, "--force")
	other, err := Init(t.TempDir(), InitOptions{Options: opts(OS{}), Cluster: addr.UUID{9}, Name: "other"})
	must(t, err)
	must(t, other.Close())
	_, err = Restore(other.Dir(), b, true, opts(OS{}))
	wantError(t, "another cluster's", err, ErrOtherCluster)
	early := Options{Now: func() time.Time { return today.Add(-restoreSkew - time.Minute) }}
	_, err = Restore(t.TempDir(), b, false, early)
	wantError(t, "with a clock that is behind", err, ErrClock)
	for _, dir := range []string{s.Dir(), other.Dir()} {
		must(t, openHost(t, dir).Close())
	}
}

// TestAReplacedDirectoryIsKeptAndCounts: the old files lie aside, unchanged, and the
// restored table's floor is above their grants.
func TestAReplacedDirectoryIsKeptAndCounts(t *testing.T) {
	s, b := backedUp(t)
	const later = 5 << 20
	must(t, s.AcceptTerm(later))
	must(t, s.Leases().Put(grant(4, later+9)))
	want := s.Leases().All()
	must(t, s.Close())
	kept, err := Restore(s.Dir(), b, true, opts(OS{}))
	must(t, err)
	r := openHost(t, s.Dir())
	if floor := r.Leases().Floor(); floor < later+9+rebuildStep || len(r.Leases().All()) != 2 {
		t.Errorf("floor %d, leases %v", floor, r.Leases().All())
	}
	must(t, r.Close())
	old := openHost(t, kept)
	if got := old.Leases().All(); len(got) != len(want) || old.Term() != later {
		t.Errorf("kept leases %v, term %d", got, old.Term())
	}
}

// A stopFS ends after so many changes of the directory, as a crash does.
type stopFS struct {
	OS
	left *int
}

var errStopped = errors.New("crashed")

func (f stopFS) step() error {
	if *f.left--; *f.left < 0 {
		return errStopped
	}
	return nil
}

func (f stopFS) Rename(from, to string) error {
	if err := f.step(); err != nil {
		return err
	}
	return f.OS.Rename(from, to)
}

func (f stopFS) WriteFile(path string, b []byte) error {
	if err := f.step(); err != nil {
		return err
	}
	return f.OS.WriteFile(path, b)
}

// TestACrashWithinARestoreLosesNothing: the directory opens as it was before or as
// restored, or as neither, and then no new cluster is made there and the old files are
// all at one of two places; a second restore completes the first.
func TestACrashWithinARestoreLosesNothing(t *testing.T) {
	outcomes := map[string]int{}
	for steps := 0; outcomes["restored"] == 0; steps++ {
		s, b := backedUp(t)
		must(t, s.Leases().Put(grant(5, 9)))
		must(t, s.Close())
		left := steps
		_, failed := Restore(s.Dir(), b, true, Options{FS: stopFS{left: &left}, Now: func() time.Time { return today }})
		r, err := Open(s.Dir(), opts(OS{}))
		switch {
		case failed == nil:
			must(t, err)
			outcomes["restored"]++
		case err == nil && len(r.Leases().All()) == 3:
			outcomes["as before"]++
		case err != nil:
			wantError(t, "open half of it", err, ErrDamaged, fileIdentity)
			_, err = Init(s.Dir(), InitOptions{Options: opts(OS{}), Cluster: clusterA})
			wantError(t, "a new cluster", err, ErrDamaged)
			must(t, everywhere(s.Dir(), fileTerm, fileLeases, string(SecretAuthority)))
			_, err = Restore(s.Dir(), b, true, Options{Now: func() time.Time { return today.Add(time.Second) }})
			must(t, err)
			r = openHost(t, s.Dir())
			outcomes["half"]++
		default:
			t.Fatalf("after %d steps and %v: leases %v", steps, failed, r.Leases().All())
		}
		must(t, r.Close())
	}
	if outcomes["as before"] < 5 || outcomes["half"] < 10 {
		t.Errorf("outcomes %v: too few steps were hit", outcomes)
	}
}

// everywhere checks that the files lie in a directory, or where it kept them aside.
func everywhere(dir string, names ...string) error {
	for _, name := range names {
		found, err := filepath.Glob(filepath.Join(dir, "*", name))
		if err != nil {
			return err
		}
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil && !strings.Contains(strings.Join(found, " "), keptPrefix) {
			return errors.New(name + " is gone")
		}
	}
	return nil
}

func FuzzDecodeBackup(f *testing.F) {
	s := newHost(f, f.TempDir(), Options{})
	b, err := s.Backup()
	must(f, err)
	f.Add(b.Encode())
	f.Add(Seal(backupKind, []byte(`{"files":{"identity":""}}`)))
	f.Fuzz(func(t *testing.T, text []byte) {
		b, err := DecodeBackup(text)
		if err != nil {
			return
		}
		if again, err := DecodeBackup(b.Encode()); err != nil || again.Identity != b.Identity || again.Term != b.Term {
			t.Errorf("read %+v, and again %+v: %v", b, again, err)
		}
	})
}

// The user whose directory it is swaps the name under which root writes: root has
// only that user's rights, and the restored files belong to that user.
func TestRestoreHasTheRightsOfTheDirectorysUser(t *testing.T) {
	_, b := backedUp(t)
	dir, other, user := t.TempDir(), t.TempDir(), os.Geteuid()
	must(t, os.Chmod(other, 0o500))
	if user == 0 {
		user = 65534
		must(t, errors.Join(os.Chmod(filepath.Dir(dir), 0o755), os.Chown(dir, user, user)))
	}
	swap := &faultyOS{fail: func(op, _ string) error {
		staged := filepath.Join(dir, dirStaged)
		if op != "write" {
			return nil
		}
		return errors.Join(os.RemoveAll(staged), os.Symlink(other, staged))
	}}
	if _, err := Restore(dir, b, false, opts(swap)); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("a restore into another user's directory: %v", err)
	}
	_, err := Restore(dir, b, false, opts(OS{}))
	must(t, err)
	if _, err := BackupOf(dir, opts(OS{})); err != nil {
		t.Error(err)
	}
	names, err := os.ReadDir(dir)
	must(t, err)
	for _, name := range names {
		info, err := name.Info()
		must(t, err)
		if owner := info.Sys().(*syscall.Stat_t).Uid; int(owner) != user {
			t.Errorf("%s belongs to user %d, the directory to %d", name.Name(), owner, user)
		}
	}
	if left, err := os.ReadDir(other); err != nil || len(left) > 0 || len(names) < 5 {
		t.Errorf("%d files restored, %d in the other directory, %v", len(names), len(left), err)
	}
	if user == 65534 && os.Geteuid() != 0 {
		t.Errorf("root goes on as user %d", os.Geteuid())
	}
}
