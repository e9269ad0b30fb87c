package shm

import (
	"io/fs"
	"net"
	"path/filepath"
	"testing"
)

func TestWhoMayServeASocket(t *testing.T) {
	for name, c := range map[string]struct {
		server, owner uint32
		mode          fs.FileMode
		readOnly, may bool
	}{
		"a directory that everybody may write to":      {7, 0, fs.ModeDir | fs.ModeSticky | 0o777, false, false},
		"the owner of such a directory":                {7, 7, fs.ModeDir | 0o777, false, true},
		"a volume that is mounted read-only here":      {7, 0, fs.ModeDir | 0o777, true, true},
		"a directory of a group":                       {7, 0, fs.ModeDir | 0o770, false, true},
		"a directory that only its owner may write to": {7, 0, fs.ModeDir | 0o755, false, true},
	} {
		if got := mayServe(c.server, c.owner, c.mode, c.readOnly); got != c.may {
			t.Errorf("%s: %v, want %v", name, got, c.may)
		}
	}
}

// TestOwnServerIsChecked: the kernel reports the user of the listener.
func TestOwnServerIsChecked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unixpacket", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("unixpacket", path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := CheckServer(c.(*net.UnixConn), path); err != nil {
		t.Error(err)
	}
}
