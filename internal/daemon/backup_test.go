package daemon

import (
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/fabricd/fabricd/fabric/addr"
)

// TestABackupIsRestoredUnderRunningDaemons: a backup of a running host by its admin
// socket, then nodes that come and go, then the old file in the place of the state: the
// node goes on, new ones come, and no incarnation is granted twice.
func TestABackupIsRestoredUnderRunningDaemons(t *testing.T) {
	const seed = 1
	rng := rand.New(rand.NewPCG(seed, 29))
	t.Logf("seed %d", seed)
	host, node := testHost(t)
	hc := host.cfg
	stays := startTest(t, node("stays"))
	file := filepath.Join(t.TempDir(), "backup")
	takeBackup(t, hc.Local.AdminSocket, file)

	seen := map[addr.Incarnation]string{}
	note := func(d *Daemon) {
		incarnation, _ := d.nodeList.own()
		who := d.cfg.Name + " " + d.started.String()
		if other := seen[incarnation]; other != "" && other != who {
			t.Errorf("incarnation %v is of %s and of %s", incarnation, other, who)
		}
		seen[incarnation] = who
	}
	note(stays)
	comes := node("comes")
	for range 4 + rng.IntN(4) {
		d := startTest(t, comes)
		note(d)
		if rng.IntN(2) == 0 {
			_ = d.Leave(t.Context()) // its crash is as good
		}
		d.Close()
	}
	if _, err := Restore(file, hc.StateDir, true); !IsRunning(err) {
		t.Errorf("the directory of a running host: %v", err)
	}
	host.Close()
	if _, err := Restore(file, hc.StateDir, false); err == nil {
		t.Error("state was replaced without --force")
	}
	r, err := Restore(file, hc.StateDir, true)
	if err != nil || r.Kept == "" {
		t.Fatalf("restore: %+v, %v", r, err)
	}
	hc.Network.DataPort = netip.MustParseAddrPort(host.Status().Data[0]).Port()
	host = startTest(t, hc)
	sees(t, host, 1)
	next := startTest(t, node("new")) // waits for the grace period
	note(next)
	note(stays)
	if _, err := stays.Ping(t.Context(), next.Status().ID); err != nil {
		t.Errorf("the nodes do not reach each other: %v", err)
	}
}

func takeBackup(t *testing.T, socket, file string) {
	t.Helper()
	c := NewClient(socket)
	defer c.Close()
	b, err := c.Backup(t.Context())
	if err == nil {
		err = b.Write(file)
	}
	if err != nil || b.IDs != 1 {
		t.Fatalf("backup %+v: %v", b, err)
	}
}

// TestBackupsThatCannotBeTakenOrRestored: one line each.
func TestBackupsThatCannotBeTakenOrRestored(t *testing.T) {
	host, node := testHost(t)
	d := startTest(t, node("node"))
	c := NewClient(d.cfg.Local.AdminSocket)
	defer c.Close()
	if _, err := c.Backup(t.Context()); err == nil || err.Error() != "this node is not the host; only the host's state is backed up" {
		t.Errorf("of a plain node: %v", err)
	}
	d.Close()
	if _, err := BackupStopped(d.cfg.StateDir); err == nil {
		t.Error("a plain node's state was backed up")
	}
	file := filepath.Join(t.TempDir(), "backup")
	takeBackup(t, host.cfg.Local.AdminSocket, file)
	b, err := host.Backup()
	if err != nil {
		t.Fatal(err)
	}
	configError(t, b.Write(file)) // it is there
	if err := os.Truncate(file, 1000); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "state")
	for _, bad := range []string{file, file + "-missing", t.TempDir()} {
		_, err := Restore(bad, dir, false)
		configError(t, err)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("a directory was made for nothing")
	}
}
