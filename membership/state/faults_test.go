package state

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/faults/failpoint"
	"github.com/fabricd/fabricd/membership/verdict"
)

// A silent actor is that of a node whose end needs no action.
type silent struct{}

func (silent) Crash()                                 {}
func (silent) Freeze(time.Duration) error             { return nil }
func (silent) Starve(int) (func() error, error)       { return func() error { return nil }, nil }
func withFaults(dir string) (string, *failpoint.Node) { return dir, failpoint.New(silent{}) }

func grantOf(id addr.NodeID, generation addr.Generation) verdict.Lease {
	return verdict.Lease{ID: id, Generation: generation, Epoch: 1, UUID: addr.UUID{byte(id)}, State: verdict.LeaseActive, Since: today, Name: "n"}
}

// initHost makes a host's directory whose disk has the faults.
func initHost(t testing.TB, dir string, faults *failpoint.Node) *State {
	t.Helper()
	s, err := Init(dir, InitOptions{Options: Options{Faults: faults}, Cluster: clusterA, Name: "host"})
	must(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

// again opens the directory as the next start does.
func again(t testing.TB, s *State) *State {
	t.Helper()
	must(t, s.Close())
	next, err := Open(s.Dir(), Options{})
	must(t, err)
	t.Cleanup(func() { next.Close() })
	return next
}

func TestDiskFaultsRefuseWritesAndEnd(t *testing.T) {
	for mode, errno := range map[string]syscall.Errno{
		failpoint.DiskFull: syscall.ENOSPC, failpoint.DiskReadOnly: syscall.EROFS, failpoint.DiskSync: syscall.EIO,
	} {
		t.Run(mode, func(t *testing.T) {
			dir, faults := withFaults(t.TempDir())
			defer faults.Close()
			s := initHost(t, dir, faults)
			must(t, s.Leases().Put(grantOf(1, 1)))
			id, err := faults.Add(failpoint.Fault{Kind: failpoint.Disk, Disk: mode, For: failpoint.Duration(time.Hour)})
			must(t, err)

			wantError(t, "put leases", s.Leases().Put(grantOf(1, 2)), errno, "leases.db")
			wantError(t, "trouble", s.Trouble(), errno, "leases.db")
			wantError(t, "put secret", s.PutSecret(SecretTokens, []byte("x")), errno, "tokens")
			_, err = s.NextEpoch()
			wantError(t, "next epoch", err, errno, "epoch")
			wantError(t, "maintain", s.Maintain(), errno)
			if g, ok := s.Leases().Get(1); !ok || g.Generation != 1 || s.Secret(SecretTokens) != nil {
				t.Errorf("after failures the state has lease %+v and token %q", g, s.Secret(SecretTokens))
			}

			_, err = faults.Clear(id)
			must(t, err)
			must(t, s.Maintain())
			must(t, s.Trouble())
			must(t, s.Leases().Put(grantOf(1, 3)))
			must(t, s.PutSecret(SecretTokens, []byte("y")))
			next := again(t, s)
			if g, _ := next.Leases().Get(1); g.Generation != 3 || string(next.Secret(SecretTokens)) != "y" {
				t.Errorf("the next start has lease %+v and token %q", g, next.Secret(SecretTokens))
			}
		})
	}
}

func TestAFullDiskIsSeenWithoutAWrite(t *testing.T) {
	dir, faults := withFaults(t.TempDir())
	defer faults.Close()
	s := initHost(t, dir, faults)
	must(t, s.Maintain())
	_, err := faults.Add(failpoint.Fault{Kind: failpoint.Disk, Disk: failpoint.DiskFull, For: failpoint.Duration(time.Hour)})
	must(t, err)
	wantError(t, "maintain", s.Maintain(), syscall.ENOSPC, "free space")
	_, err = faults.ClearAll()
	must(t, err)
	must(t, s.Maintain())
}

// TestCrashAtEveryStepOfAWrite ends the node at each step of a file's and of the
// table's replacement, again and again, and starts it: it has the content from before
// or the written one, and every acknowledged one.
func TestCrashAtEveryStepOfAWrite(t *testing.T) {
	steps := []string{"state.file_begun", "state.file_written", "state.file_synced", "state.file_renamed",
		"state.table_begun", "state.table_written"}
	for _, step := range steps {
		for nth := 1; nth <= 3; nth++ {
			t.Run(fmt.Sprintf("%s %d", step, nth), func(t *testing.T) {
				dir, faults := withFaults(t.TempDir())
				defer faults.Close()
				s := initHost(t, dir, faults)
				_, err := faults.Add(failpoint.Fault{Kind: failpoint.Crash, Step: step, Nth: nth})
				must(t, err)
				acked, tried := writeUntilDead(t, s, faults)
				next := again(t, s)
				g, _ := next.Leases().Get(1)
				if n := uint64(g.Generation); n < acked.lease || n > tried.lease {
					t.Errorf("lease of generation %d, acknowledged %d, tried %d", n, acked.lease, tried.lease)
				}
				token := next.Secret(SecretTokens)
				if n := uint64(len(token)); n < acked.token || n > tried.token || len(bytes.Trim(token, "x")) > 0 {
					t.Errorf("token %q, acknowledged %d, tried %d bytes", token, acked.token, tried.token)
				}
				if term, err := next.NextTerm(); err != nil || term <= acked.term {
					t.Errorf("next term %d after %d: %v", term, acked.term, err)
				}
				must(t, next.Leases().Put(grantOf(1, addr.Generation(tried.lease+1))))
				must(t, next.Maintain())
			})
		}
	}
}

// A progress is the last written values: each value counts.
type progress struct{ lease, token, term uint64 }

// writeUntilDead writes everything in turn until the node has crashed.
func writeUntilDead(t testing.TB, s *State, faults *failpoint.Node) (acked, tried progress) {
	t.Helper()
	for i := uint64(1); i < 100; i++ {
		tried.lease++
		if s.Leases().Put(grantOf(1, addr.Generation(tried.lease))) == nil {
			acked.lease = tried.lease
		}
		tried.token++
		if s.PutSecret(SecretTokens, bytes.Repeat([]byte("x"), int(tried.token))) == nil {
			acked.token = tried.token
		}
		if term, err := s.NextTerm(); err == nil {
			acked.term = term
		}
		if faults.Dead() {
			return acked, tried
		}
	}
	t.Fatal("the step was not hit")
	return acked, tried
}

func TestAnErrorAtEveryStepOfAWriteLeavesTheOldStateOrTheNew(t *testing.T) {
	for _, info := range failpoint.Steps() {
		if info.Fails == "" || info.Step < failpoint.FileBegun || info.Step > failpoint.TableWritten {
			continue
		}
		dir, faults := withFaults(t.TempDir())
		s := initHost(t, dir, faults)
		_, err := faults.Add(failpoint.Fault{Kind: failpoint.Error, Step: info.Name, Times: 2})
		must(t, err)
		var failed int
		for i := range 4 {
			if err := s.Leases().Put(grantOf(1, addr.Generation(i+1))); err != nil {
				wantError(t, info.Name, err, syscall.EIO, "injected at step "+info.Name)
				failed++
			}
		}
		if failed == 0 {
			t.Errorf("%s: nothing failed", info.Name)
		}
		must(t, s.Maintain())
		next := again(t, s)
		if g, _ := next.Leases().Get(1); g.Generation != 4 {
			t.Errorf("%s: the next start has lease %+v", info.Name, g)
		}
		faults.Close()
	}
}

// TestRealFullFileSystem fills a small file system under a host's state.
func TestRealFullFileSystem(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("state", dir, "tmpfs", 0, "size=256k"); err != nil {
		t.Logf("no file system may be mounted here: %v", err)
		return
	}
	defer func() { must(t, syscall.Unmount(dir, syscall.MNT_DETACH)) }()
	s := initHost(t, filepath.Join(dir, "state"), nil)
	must(t, s.Leases().Put(grantOf(1, 1)))
	must(t, s.Maintain())

	hog := filepath.Join(dir, "hog")
	if err := os.WriteFile(hog, make([]byte, 1<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("filling: %v", err)
	}
	wantError(t, "maintain", s.Maintain(), syscall.ENOSPC, "free space")
	wantError(t, "put secret", s.PutSecret(SecretTokens, bytes.Repeat([]byte("x"), 8<<10)), syscall.ENOSPC, "tokens")
	for i := range 2000 { // until the table needs another page
		if err := s.Leases().Put(grantOf(addr.NodeID(i+2), 1)); err != nil {
			wantError(t, "put leases", err, syscall.ENOSPC)
			break
		}
	}
	wantError(t, "trouble", s.Trouble(), syscall.ENOSPC)
	had := len(s.Leases().All())

	must(t, os.Remove(hog))
	must(t, s.Maintain())
	must(t, s.Leases().Put(grantOf(5000, 1)))
	next := again(t, s)
	if got := len(next.Leases().All()); got != had+1 {
		t.Errorf("the next start has %d leases, want %d", got, had+1)
	}

	must(t, next.Close())
}
