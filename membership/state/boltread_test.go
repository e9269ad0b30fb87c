package state

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
)

// boltDamage is the file that [TestBboltDoesNotSurviveDamage] has a process of its own read
// with bbolt, and how.
const boltDamage = "FABRICD_TEST_BOLT_DAMAGE"

// boltUses are the two ways to read a file with bbolt: its check, and a look for a key.
var boltUses = map[string]func(*bolt.Tx) error{
	"check": func(tx *bolt.Tx) (first error) {
		for err := range tx.Check() {
			first = errors.Join(first, err)
		}
		return first
	},
	"get": func(tx *bolt.Tx) error {
		tx.Bucket([]byte(leaseBucket)).Get(grantKey(0))
		return nil
	},
}

// useBolt reads a file with bbolt as carefully as a process can: without writing, with
// faults as panics, which it recovers.
func useBolt(path string, use func(*bolt.Tx) error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = damaged("%v", r)
		}
	}()
	debug.SetPanicOnFault(true)
	debug.SetMaxStack(1 << 20) // a whole table needs a few pages of it
	db, err := bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true, PageSize: boltPage, Timeout: time.Second})
	if err != nil {
		return err
	}
	return errors.Join(db.View(use), db.Close())
}

// TestBboltDoesNotSurviveDamage is why this package reads lease files by itself: one wrong
// page number ends the process that gives the file to bbolt, in a way that nothing there
// recovers from. Its check panics in a goroutine of its own, a look for a key fills the
// stack. When this test fails, bbolt's own reader may do.
func TestBboltDoesNotSurviveDamage(t *testing.T) {
	if how, path, ok := strings.Cut(os.Getenv(boltDamage), " "); ok {
		if err := useBolt(path, boltUses[how]); err != nil {
			t.Fatal(err)
		}
		return
	}
	s := manyLeases(t, 70)
	whole, err := os.ReadFile(filepath.Join(s.Dir(), fileLeases))
	must(t, err)
	branch := 0
	for at := 2 * boltPage; at < len(whole); at += boltPage {
		if native.Uint16(whole[at+8:]) == flagBranch {
			branch = at
		}
	}
	for _, test := range []struct {
		use   string
		child uint64 // the page that the first branch refers to; 0: as it was
		ends  string // the process
	}{
		{"check", 0, ""},
		{"get", 0, ""},
		{"check", uint64(branch / boltPage), "panic: freepages: failed to get all reachable pages"},
		{"get", uint64(branch / boltPage), "stack overflow"},
	} {
		file := append([]byte(nil), whole...)
		if test.child != 0 {
			native.PutUint64(file[branch+pageHead+8:], test.child)
		}
		path := filepath.Join(t.TempDir(), fileLeases)
		must(t, os.WriteFile(path, file, 0o600))
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), boltDamage+"="+test.use+" "+path)
		out, err := cmd.CombinedOutput()
		if (err == nil) != (test.ends == "") || !strings.Contains(string(out), test.ends) {
			t.Errorf("%s, a reference to page %d: %v, want an end with %q:\n%.2000s", test.use, test.child, err, test.ends, out)
		}
		if _, _, err := parseLeases(file); errors.Is(err, ErrDamaged) != (test.child != 0) {
			t.Errorf("a reference to page %d: this package says %v", test.child, err)
		}
	}
}
