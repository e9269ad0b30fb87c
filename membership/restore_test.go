package membership

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

// TestARestoredHostGrantsNoLifeAgain: the host's directory goes back to a copy that
// was made before a node joined. The next node gets no life that was that node's, and
// nobody else is harmed.
func TestARestoredHostGrantsNoLifeAgain(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.cluster(2)
		member, dir, copied := w.node(2), filepath.Join(w.dir, "1"), filepath.Join(w.dir, "copy")
		own := member.life()
		copyDir(t, copied, dir)
		w.join(3)
		w.within(5*time.Second, "the third node is there", func() bool { return mesh(w.all) })
		gone := w.node(3).life()
		w.kill(w.node(3))
		w.within(5*time.Second, "its end is known", func() bool { return mesh(w.all) })
		w.kill(w.node(1))
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		copyDir(t, dir, copied)
		w.again(1)
		w.within(5*time.Second, "the host is back", func() bool { return mesh(w.all) })
		began := time.Now()
		next := w.join(4)
		w.within(10*time.Second, "the fourth node is there", func() bool { return mesh(w.all) })
		time.Sleep(20 * time.Second)
		if got := next.life(); got == gone || got.Node == gone.Node && got.Generation <= gone.Generation {
			t.Errorf("the fourth node lives as %v, and the third one did as %v", got, gone)
		}
		if got := member.life(); got != own || !mesh(w.all) {
			t.Errorf("a node that was there all the time lived as %v and lives as %v, events %v", own, got, words(member.since(began)))
		}
		if got := words(member.since(began)); len(got) != 1 || !strings.HasPrefix(got[0], "added ") {
			t.Errorf("it was told %v, want the new node and no more", got)
		}
	})
}

// TestARestoredHostHearsOfLivesThatItLacks: a node lives in a life that the copy does
// not know. It keeps its ID, in a later life.
func TestARestoredHostHearsOfLivesThatItLacks(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.cluster(3)
		dir, copied := filepath.Join(w.dir, "1"), filepath.Join(w.dir, "copy")
		copyDir(t, copied, dir)
		w.kill(w.node(3))
		late := w.again(3)
		w.within(5*time.Second, "the third node is back", func() bool { return mesh(w.all) })
		old := late.life()
		w.kill(w.node(1))
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		copyDir(t, dir, copied)
		w.again(1)
		w.within(20*time.Second, "all are back", func() bool { return mesh(w.all) })
		if got := late.life(); got.Node != old.Node || got.Generation <= old.Generation {
			t.Errorf("it lived as %v and lives as %v, want a later life of the same ID", old, got)
		}
		if host := w.node(1).life(); host.Node != addr.Host {
			t.Errorf("the host lives as %v", host)
		}
	})
}

func copyDir(t *testing.T, to, from string) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
}
