package server

import (
	"errors"
	"testing"

	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/internal/status"
)

// takeAll takes n of r and wants the next one to be refused.
func takeAll(t *testing.T, what string, a *account, r resource, n int64) {
	t.Helper()
	if err := a.charge(r, n); err != nil {
		t.Errorf("%s: %v", what, err)
	}
	if err := a.charge(r, 1); !errors.Is(err, status.NoMemory) {
		t.Errorf("%s, one more than %d: %v, want %v", what, n, err, status.NoMemory)
	}
}

// TestPathsAndConnectionsHaveSharesOfTheirOwn: with any number of paths, connections find as many
// descriptors as without paths, and the reverse; a user that takes all that it gets leaves a
// quarter of each to another one.
func TestPathsAndConnectionsHaveSharesOfTheirOwn(t *testing.T) {
	total := newTotal(192, 96)
	first := newAccount("a user", Limits{}, total)
	session := newSessionAccount(SessionLimits(), first)
	takeAll(t, "paths", session, pathSockets, 72)
	takeAll(t, "connections beside all these paths", session, heldFiles, 72)
	second := newAccount("another user", Limits{}, total)
	takeAll(t, "paths of another user", second, pathSockets, 18)
	takeAll(t, "connections of another user", second, heldFiles, 18)
	third := newAccount("a user with a limit", Limits{Descriptors: 4}, total)
	takeAll(t, "connections of a user with a limit", third, heldFiles, 4)
	session.refund(pathSockets, 72)
	session.refund(heldFiles, 72)
	takeAll(t, "connections when the first user has left", second, heldFiles, 51)
	if files, paths := UserShare(1); files == 0 || paths != 1 {
		t.Errorf("with one path a user may have %d, and %d descriptors", paths, files)
	}
	second.refund(pathSockets, 18)
	second.refund(heldFiles, 69)
	third.refund(heldFiles, 4)
	if !total.idle() || !session.idle() {
		t.Error("a refusal has kept something")
	}
}

// TestPathNeedsBoth: a path that finds no descriptor to send gives its place back.
func TestPathNeedsBoth(t *testing.T) {
	user := newAccount("a user", Limits{Descriptors: 1}, newTotal(40, 20))
	if err := user.chargeBoth(pathSockets, 1, heldFiles, 1); err != nil {
		t.Fatal(err)
	}
	if err := user.chargeBoth(pathSockets, 1, heldFiles, 1); !errors.Is(err, status.NoMemory) {
		t.Errorf("%v, want %v", err, status.NoMemory)
	}
	if got := user.used[pathSockets]; got != 1 {
		t.Errorf("%d paths are charged, want 1", got)
	}
}

// TestSharesOfTheProcess: with the defaults applications leave a quarter of the descriptors to the
// node, and one user has a connection with a path for each four that the process may have, with
// room for an application's other needs.
func TestSharesOfTheProcess(t *testing.T) {
	all := shm.Descriptors()
	opt := new(Options)
	total := newTotal(0, opt.maxPaths())
	if got := total.limit[heldFiles] + total.limit[pathSockets]; got > all-reserve || got > all-all/4 {
		t.Errorf("applications may have %d of %d descriptors", got, all)
	}
	files, paths := UserShare(DefaultPaths())
	if all >= 1024 && (files < all/4+8 || paths < all/4) {
		t.Errorf("one user may have %d descriptors and %d paths, of %d", files, paths, all)
	}
	opt.NoPaths = "off"
	if got := newTotal(0, opt.maxPaths()).limit[heldFiles]; got < 2*total.limit[heldFiles] {
		t.Errorf("applications may have %d descriptors without paths, and %d beside them", got, total.limit[heldFiles])
	}
	if got := newTotal(0, 1<<20).limit[heldFiles]; got < all/8 {
		t.Errorf("the most paths leave %d of %d descriptors to connections", got, all)
	}
}
