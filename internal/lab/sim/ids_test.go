package sim_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/lab/check"
	"github.com/fabricd/fabricd/internal/lab/history"
	"github.com/fabricd/fabricd/internal/lab/scenario"
	"github.com/fabricd/fabricd/internal/lab/sim"
)

// TestAnIDGoesOnAfterItsQuarantine lets IDs run out: a new node then gets the ID of a
// lost node, as its next generation and ten minutes after its end.
func TestAnIDGoesOnAfterItsQuarantine(t *testing.T) {
	path := filepath.Join("testdata", "ids-run-out.yaml")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	s, err := scenario.Decode(path, text)
	if err != nil {
		t.Fatal(err)
	}
	res, err := sim.Run(s.Resolve(1), sim.Options{IDs: 3})
	if err != nil {
		t.Fatal(err)
	}
	found(t, string(s.Name), 1, check.Run(res.History, s).Problems())
	var lost, reused int64
	for _, r := range res.History {
		switch b := r.Body.(type) {
		case *history.Process:
			if b.Target.Role == history.RoleDaemon && b.Did == history.DidKill {
				lost = r.At
			}
		case *history.Event:
			if b.What == history.EventSelf && r.Source.Node == 4 && b.Subject == (addr.Incarnation{Node: 1, Generation: 2}) {
				reused = r.At
			}
		}
	}
	if after := time.Duration(reused - lost); reused == 0 || after < 10*time.Minute || after > 10*time.Minute+10*time.Second {
		t.Errorf("the ID of the node that was lost at %v is another's at %v", time.Duration(lost), time.Duration(reused))
	}
}
