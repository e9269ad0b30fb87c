package membership

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestARestartWhileTheHostIsAwayServesItsMachine(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.cluster(3)
		old := w.node(3).incarnation()
		w.kill(w.node(1))
		w.kill(w.node(3))
		began := time.Now()
		n := w.again(3)
		w.within(2*time.Second, "it serves its machine", func() bool { return len(n.since(began)) != 0 })
		if got := words(n.since(began)); !slices.Equal(got, []string{"local " + old.String()}) {
			t.Errorf("events %v, want its last incarnation for its machine alone", got)
		}
		time.Sleep(10 * time.Second)
		if n.incarnation() != noIncarnation || len(n.a.Nodes()) != 0 {
			t.Errorf("without a host it lives as %v and knows %v", n.incarnation(), n.a.Nodes())
		}
		if got := w.node(2).a.Nodes(); len(got) != 0 {
			t.Errorf("another node knows %v", got)
		}
		w.again(1)
		w.within(10*time.Second, "the host is back", func() bool { return mesh(w.all) })
		if got := n.incarnation(); got.Node != old.Node || got.Generation <= old.Generation {
			t.Errorf("it lived as %v and lives as %v", old, got)
		}
		if got := words(n.since(began)); slices.Contains(got, "reset") {
			t.Errorf("events %v, want its new incarnation right behind the old one", got)
		}
	})
}

func TestAMemberThatWaitsForTheHostSaysSoOnceAMinute(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.cluster(2)
		w.kill(w.node(1))
		w.kill(w.node(2))
		n := w.again(2)
		time.Sleep(150 * time.Second)
		if got := strings.Count(n.logged(), `"message":"waiting for the host"`); got != 3 {
			t.Errorf("it said %d times in 150 s that it waits, want 3", got)
		}
		if got := n.a.Status().HostDetail; !strings.Contains(got, dataAddr(1)) {
			t.Errorf("its status says of the host %q, want where it was looked for", got)
		}
	})
}
