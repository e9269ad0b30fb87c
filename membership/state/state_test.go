package state

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

const dir = "/state"

var (
	clusterA = addr.UUID{0xaa}
	clusterB = addr.UUID{0xbb}
	today    = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
)

func opts(fsys FS) Options { return Options{FS: fsys, Now: func() time.Time { return today }} }

func leaseOf(generation addr.Generation, term uint64) Lease {
	return Lease{
		Incarnation: addr.Incarnation{Node: 7, Generation: generation}, Term: term, Epoch: 1 << 32,
		Since: today, Signed: []byte("signed by the host"),
	}
}

func joinedOf(cluster addr.UUID) Joined {
	return Joined{Cluster: cluster,
		Secrets: map[SecretName][]byte{SecretCredentials: []byte("key and certificate"), SecretKeyring: []byte("gossip key")}}
}

// join stores what a node gets when it joins cluster A, and then its lease.
func join(s *State, generation addr.Generation, term uint64) error {
	if err := s.Join(joinedOf(clusterA)); err != nil {
		return err
	}
	return s.PutLease(leaseOf(generation, term))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wantError checks that err has the cause and says it in one line with words.
func wantError(t testing.TB, what string, err, cause error, words ...string) {
	t.Helper()
	if !errors.Is(err, cause) {
		t.Fatalf("%s: error %v, want one that is %v", what, err, cause)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%s: error %q does not say %q", what, err, w)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("%s: error %q has more than one line", what, err)
	}
}

// joinedNode makes a plain node that has all there is to have.
func joinedNode(t testing.TB) (*memFS, *State) {
	t.Helper()
	m := newMemFS()
	s, err := Prepare(dir, "n1", opts(m))
	must(t, err)
	_, err = s.NextEpoch()
	must(t, err)
	must(t, join(s, 3, 5))
	must(t, s.PutMembers([]Member{{Incarnation: addr.Incarnation{Generation: 1}, UUID: addr.UUID{9}, Name: "host", Gossip: "10.0.0.1:7946", Addresses: []string{"10.0.0.1:7000"}}}))
	return m, s
}

func TestStateSurvivesReopening(t *testing.T) {
	m, s := joinedNode(t)
	id, epoch, members := s.Identity(), s.Epoch(), s.Members()
	if !s.Joined() || s.Leases() != nil {
		t.Errorf("joined %v, leases %v", s.Joined(), s.Leases())
	}
	must(t, s.Close())
	must(t, s.Close())

	s, err := Open(dir, opts(m))
	must(t, err)
	if got := s.Identity(); got != id || got.Role != Node || got.Cluster != clusterA || got.Name != "n1" || !got.Created.Equal(today) {
		t.Errorf("identity %+v, want %+v", got, id)
	}
	if lease, ok := s.Lease(); !ok || !reflect.DeepEqual(lease, leaseOf(3, 5)) {
		t.Errorf("lease %+v, want %+v", lease, leaseOf(3, 5))
	}
	if s.Term() != 5 || s.Epoch() != epoch || !reflect.DeepEqual(s.Members(), members) || len(s.Notes()) != 0 {
		t.Errorf("term %d, epoch %x, members %v, notes %q", s.Term(), s.Epoch(), s.Members(), s.Notes())
	}
	if string(s.Secret(SecretKeyring)) != "gossip key" || len(s.Secret(SecretResetKey)) != 32 || s.Secret(SecretAuthority) != nil {
		t.Error("secrets differ")
	}
	next, err := s.NextEpoch()
	must(t, err)
	if next>>32 != epoch>>32+1 {
		t.Errorf("epoch %x after %x, want the counter one higher", next, epoch)
	}
	if again, err := s.NextEpoch(); err != nil || again != next {
		t.Errorf("a second epoch of one start: %x, %v, want %x", again, err, next)
	}
}

func TestEpochsDiffer(t *testing.T) {
	m, s := joinedNode(t)
	must(t, s.Close())
	// Two copies of one directory get different epochs.
	seen := map[uint64]bool{}
	for range 4 {
		s, err := Open(dir, opts(m.clone()))
		must(t, err)
		e, err := s.NextEpoch()
		must(t, err)
		seen[e] = true
	}
	if len(seen) != 4 {
		t.Errorf("%d epochs of 4 copies, want 4", len(seen))
	}
}

func TestNothingGoesBack(t *testing.T) {
	_, s := joinedNode(t)
	wantError(t, "an old term", s.AcceptTerm(4), ErrOldTerm, "term 4", "5")
	wantError(t, "an old generation", s.PutLease(leaseOf(2, 5)), ErrOldGeneration, "7.2", "7.3")
	wantError(t, "a lease of an old term", s.PutLease(leaseOf(4, 4)), ErrOldTerm)
	must(t, s.AcceptTerm(5))
	must(t, s.PutLease(leaseOf(4, 6)))
	if s.Term() != 6 {
		t.Errorf("term %d, want the lease's 6", s.Term())
	}
	if err := s.PutLease(Lease{}); err == nil {
		t.Error("the lease of no incarnation is accepted")
	}
}

func TestClusterNeverChanges(t *testing.T) {
	_, s := joinedNode(t)
	must(t, s.CheckCluster(clusterA))
	wantError(t, "check", s.CheckCluster(clusterB), ErrOtherCluster, dir, clusterA.String(), clusterB.String(), "--state-dir")
	wantError(t, "join", s.Join(joinedOf(clusterB)), ErrOtherCluster)
	if s.Term() != 5 {
		t.Errorf("a refused join left term %d", s.Term())
	}
	must(t, join(s, 4, 6))
}

func TestPrepareKeepsTheUUID(t *testing.T) {
	m := newMemFS()
	s, err := Prepare(dir, "n1", opts(m))
	must(t, err)
	id := s.Identity()
	if s.Joined() || id.Node.IsZero() {
		t.Errorf("a fresh node: %+v", id)
	}
	must(t, s.CheckCluster(clusterB)) // it may still join any
	must(t, s.Close())
	s, err = Prepare(dir, "other", opts(m))
	must(t, err)
	if s.Identity() != id {
		t.Errorf("identity %+v, want %+v", s.Identity(), id)
	}
	_, err = Prepare("/long", strings.Repeat("x", maxName+1), opts(m))
	if err == nil {
		t.Error("a name of 65 bytes is accepted")
	}
}

func TestOpenWithoutState(t *testing.T) {
	m := newMemFS()
	_, err := Open(dir, opts(m))
	wantError(t, "no directory", err, ErrNotInitialized, dir, "fabricd init")
	must(t, m.MakeDir(dir))
	_, err = Open(dir, opts(m))
	wantError(t, "an empty directory", err, ErrNotInitialized)
	if len(m.locked) != 0 {
		t.Error("a refused Open keeps the lock")
	}
}

func TestOneProcessPerDirectory(t *testing.T) {
	d := t.TempDir()
	s, err := Prepare(d, "n1", Options{})
	must(t, err)
	_, err = Open(d, Options{})
	wantError(t, "a second one", err, ErrLocked, d, fmt.Sprintf("process %d", os.Getpid()))
	must(t, s.Close())
	s, err = Open(d, Options{})
	must(t, err)
	must(t, s.Close())
	wantError(t, "after Close", s.PutSecret(SecretTokens, nil), ErrClosed)
}

func TestModes(t *testing.T) {
	d := filepath.Join(t.TempDir(), "a", "b")
	must(t, os.MkdirAll(d, 0o755))
	s := newHost(t, d, Options{})
	must(t, s.Leases().Put(grant(1, 1)))
	must(t, s.Close())
	info, err := os.Stat(d)
	must(t, err)
	if info.Mode().Perm() != 0o700 {
		t.Errorf("directory mode %v, want 0700", info.Mode())
	}
	entries, err := os.ReadDir(d)
	must(t, err)
	for _, e := range entries {
		if info, err := e.Info(); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: mode %v, %v, want 0600", e.Name(), info.Mode(), err)
		}
		if strings.HasSuffix(e.Name(), tmpSuffix) || e.Name() == fileMarker {
			t.Errorf("%s is left over", e.Name())
		}
	}
}

func TestUnknownSecret(t *testing.T) {
	_, s := joinedNode(t)
	if s.PutSecret("../escape", nil) == nil {
		t.Error("a secret of any name is accepted")
	}
	if s.PutSecret(SecretTokens, make([]byte, MaxFile+1)) == nil {
		t.Error("a secret too long to be read back is accepted")
	}
}

// checkNode opens a node whose disk was tampered with and checks that it either
// refuses with a line that names the file, or has gone back in nothing.
func checkNode(t *testing.T, m *memFS, name string, want *State, what string) {
	t.Helper()
	s, err := Open(dir, opts(m))
	if err != nil {
		wantError(t, what, err, ErrDamaged, filepath.Join(dir, name)+": ")
		return
	}
	defer s.Close()
	if len(s.Notes()) != 1 || !strings.Contains(s.Notes()[0], filepath.Join(dir, name)+": ") {
		t.Errorf("%s: not noticed: %q", what, s.Notes())
	}
	if s.Identity() != want.Identity() || s.Term() != want.Term() {
		t.Errorf("%s: identity %+v, term %d", what, s.Identity(), s.Term())
	}
	if lease, ok := s.Lease(); ok && !reflect.DeepEqual(lease, leaseOf(3, 5)) {
		t.Errorf("%s: lease %+v", what, lease)
	}
	for _, n := range []SecretName{SecretCredentials, SecretKeyring} {
		if !bytes.Equal(s.Secret(n), want.Secret(n)) {
			t.Errorf("%s: secret %s differs", what, n)
		}
	}
	if e, err := s.NextEpoch(); err != nil || e <= want.Epoch() {
		t.Errorf("%s: epoch %x, %v, not above %x", what, e, err, want.Epoch())
	}
}

func TestEveryDamageToANodeIsNoticed(t *testing.T) {
	m, s := joinedNode(t)
	must(t, s.Close())
	for path, b := range m.names {
		name := filepath.Base(path)
		damage := func(what string, bad []byte) {
			c := m.clone()
			c.names[path] = bad
			checkNode(t, c, name, s, name+": "+what)
		}
		for i := range b {
			for _, bit := range []byte{0x01, 0x20, 0x80, 0xff} {
				bad := bytes.Clone(b)
				bad[i] ^= bit
				damage(fmt.Sprintf("byte %d xor %#x", i, bit), bad)
			}
			damage(fmt.Sprintf("cut to %d", i), b[:i])
		}
		damage("one byte more", append(bytes.Clone(b), '\n'))
	}
}

func TestMissingFilesOfANode(t *testing.T) {
	m, s := joinedNode(t)
	must(t, s.Close())
	for path := range m.names {
		name := filepath.Base(path)
		if name == fileLease || name == string(SecretCredentials) {
			continue // a node without a lease, or with an operator's CA
		}
		c := m.clone()
		delete(c.names, path)
		checkNode(t, c, name, s, name+" missing")
	}
}

func TestSwappedFilesAreNoticed(t *testing.T) {
	m, s := joinedNode(t)
	must(t, s.Close())
	term, epoch := filepath.Join(dir, fileTerm), filepath.Join(dir, fileEpoch)
	m.names[term] = m.names[epoch]
	_, err := Open(dir, opts(m))
	wantError(t, "the epoch's file as the term's", err, ErrDamaged, term, `"epoch"`)
}

func TestNewerFilesAreNotRebuilt(t *testing.T) {
	m, s := joinedNode(t)
	must(t, s.Close())
	path := filepath.Join(dir, fileEpoch)
	m.names[path] = bytes.Replace(m.names[path], []byte("fabricd-state 1"), []byte("fabricd-state 2"), 1)
	_, err := Open(dir, opts(m))
	wantError(t, "version 2", err, ErrNewer, path, "version 2", "newer fabricd")
}

func TestEpochIsNotRebuiltFromAnUnsetClock(t *testing.T) {
	m, s := joinedNode(t)
	must(t, s.Close())
	delete(m.names, filepath.Join(dir, fileEpoch))
	o := opts(m)
	o.Now = func() time.Time { return time.Unix(100, 0) }
	_, err := Open(dir, o)
	wantError(t, "in 1970", err, ErrDamaged, fileEpoch)
}

// nodeIncarnation is the data of a node over its incarnation, as far as it was acknowledged.
type nodeIncarnation struct {
	id    Identity
	epoch uint64
	term  uint64
	lease addr.Generation
}

// live runs one start of a node; it stops at the first error.
func (n *nodeIncarnation) live(fsys FS, round int) error {
	s, err := Prepare(dir, "n1", opts(fsys))
	if err != nil {
		return err
	}
	defer s.Close()
	n.id = s.Identity()
	e, err := s.NextEpoch()
	if err != nil {
		return err
	}
	n.epoch = e
	generation, term := addr.Generation(round+1), uint64(10*round+1)
	if err := join(s, generation, term); err != nil {
		return err
	}
	n.id, n.term, n.lease = s.Identity(), term, generation
	if err := s.AcceptTerm(term + 1); err != nil {
		return err
	}
	n.term = term + 1
	return s.PutMembers(nil)
}

func TestCrashAtEveryStepOfANode(t *testing.T) {
	for at := 1; ; at++ {
		m := newMemFS()
		m.crashAt = at
		var n nodeIncarnation
		err := n.live(m, 0)
		if err == nil {
			err = n.live(m, 1)
		}
		if err == nil {
			if at < 20 {
				t.Fatalf("an incarnation has only %d operations", at)
			}
			return
		}
		wantError(t, "the crash", err, errCrash)
		for _, eager := range []bool{false, true} {
			checkAfterCrash(t, m.crash(eager), n, fmt.Sprintf("crash at %d, eager %v", at, eager))
		}
	}
}

func checkAfterCrash(t *testing.T, m *memFS, n nodeIncarnation, what string) {
	t.Helper()
	s, err := Prepare(dir, "n1", opts(m))
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	defer s.Close()
	if len(s.Notes()) != 0 {
		t.Errorf("%s: looks like damage: %q", what, s.Notes())
	}
	if !n.id.Node.IsZero() && s.Identity().Node != n.id.Node || n.id.Cluster != (addr.UUID{}) && s.Identity().Cluster != n.id.Cluster {
		t.Errorf("%s: identity %+v, was given %+v", what, s.Identity(), n.id)
	}
	if lease, _ := s.Lease(); s.Term() < n.term || lease.Incarnation.Generation < n.lease {
		t.Errorf("%s: term %d, lease %v, was given %+v", what, s.Term(), lease.Incarnation, n)
	}
	if e, err := s.NextEpoch(); err != nil || e <= n.epoch {
		t.Errorf("%s: epoch %x, %v, was given %x", what, e, err, n.epoch)
	}
}

func TestFullDiskLosesNothing(t *testing.T) {
	for _, fault := range []error{syscall.ENOSPC, syscall.EROFS, syscall.EIO} {
		for _, op := range []string{"write", "rename", "sync"} {
			m, s := joinedNode(t)
			m.fail = func(o, _ string) error {
				if o == op {
					return fault
				}
				return nil
			}
			what := op + ": " + fault.Error()
			wantError(t, what, s.AcceptTerm(6), fault, filepath.Join(dir, fileTerm))
			wantError(t, what, s.PutLease(leaseOf(4, 5)), fault)
			wantError(t, what, s.PutMembers(nil), fault)
			wantError(t, what, s.PutSecret(SecretCredentials, []byte("new")), fault)
			if lease, _ := s.Lease(); s.Term() != 5 || lease.Incarnation.Generation != 3 || len(s.Members()) != 1 || string(s.Secret(SecretCredentials)) == "new" {
				t.Errorf("%s: a failed call changed the state", what)
			}
			m.fail = nil
			must(t, s.AcceptTerm(6))
			must(t, s.PutLease(leaseOf(4, 6)))
			must(t, s.Close())
			s, err := Open(dir, opts(m.crash(false)))
			must(t, err)
			if lease, _ := s.Lease(); s.Term() != 6 || lease.Incarnation.Generation != 4 || len(s.Notes()) != 0 {
				t.Errorf("%s: afterwards term %d, lease %v, notes %q", what, s.Term(), lease.Incarnation, s.Notes())
			}
		}
	}
}

func TestNoEpochWithoutItsFile(t *testing.T) {
	m, s := joinedNode(t)
	old := s.Epoch()
	must(t, s.Close())
	s, err := Open(dir, opts(m))
	must(t, err)
	m.fail = func(string, string) error { return syscall.ENOSPC }
	if e, err := s.NextEpoch(); !errors.Is(err, syscall.ENOSPC) || e != 0 {
		t.Fatalf("epoch %x, %v on a full disk", e, err)
	}
	m.fail = nil
	if e, err := s.NextEpoch(); err != nil || e <= old {
		t.Errorf("epoch %x, %v once there is space, want more than %x", e, err, old)
	}
}

func TestPrepareOnAReadOnlyDisk(t *testing.T) {
	m := newMemFS()
	m.fail = func(string, string) error { return syscall.EROFS }
	_, err := Prepare(dir, "n1", opts(m))
	wantError(t, "prepare", err, syscall.EROFS, dir)
	m.fail = nil
	s, err := Prepare(dir, "n1", opts(m))
	must(t, err)
	must(t, s.Close())
}

func FuzzUnseal(f *testing.F) {
	f.Add(Seal("term", []byte("5")))
	f.Add(Seal("epoch", nil))
	f.Add([]byte("fabricd-state 2 term 1 00\n5"))
	f.Add([]byte("fabricd-state"))
	f.Fuzz(func(t *testing.T, b []byte) {
		content, err := Unseal("term", b)
		if err == nil && !bytes.Equal(Seal("term", content), b) {
			t.Errorf("%q unseals to %q", b, content)
		}
		if err != nil && !errors.Is(err, ErrDamaged) {
			t.Errorf("error %v", err)
		}
	})
}

func FuzzDecodeContents(f *testing.F) {
	f.Add(Identity{Role: Node, Node: addr.UUID{1}, Cluster: clusterA, Name: "n", Created: today}.encode())
	f.Add(encodeLease(leaseOf(1, 1)))
	f.Add(encodeMembers([]Member{{UUID: addr.UUID{1}, Addresses: []string{"a:1"}}}))
	f.Add(encodeCounter(1))
	f.Fuzz(func(t *testing.T, b []byte) {
		if id, err := decodeIdentity(b); err == nil {
			if again, err := decodeIdentity(id.encode()); err != nil || again != id {
				t.Errorf("%+v becomes %+v, %v", id, again, err)
			}
		}
		if l, err := decodeLease(b); err == nil {
			if again, err := decodeLease(encodeLease(l)); err != nil || again.Incarnation != l.Incarnation || !bytes.Equal(again.Signed, l.Signed) {
				t.Errorf("%+v becomes %+v, %v", l, again, err)
			}
		}
		if list, err := decodeMembers(b); err == nil {
			if again, err := decodeMembers(encodeMembers(list)); err != nil || len(again) != len(list) {
				t.Errorf("%+v becomes %+v, %v", list, again, err)
			}
		}
		if n, err := decodeCounter(b); err == nil {
			if again, err := decodeCounter(encodeCounter(n)); err != nil || again != n {
				t.Errorf("%d becomes %d, %v", n, again, err)
			}
		}
	})
}
