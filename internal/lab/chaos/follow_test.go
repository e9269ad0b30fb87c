package chaos

import (
	"bytes"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/daemon"
	"github.com/fabricd/fabricd/internal/lab/chaos/workload"
	"github.com/fabricd/fabricd/internal/lab/history"
	"github.com/fabricd/fabricd/internal/test/bubble"
)

// TestAViewHasAllNodesOfTheBeginning notifies a follower of nodes that come slowly one
// after the other: they are written as one view, at the end of them or before the first
// change.
func TestAViewHasAllNodesOfTheBeginning(t *testing.T) {
	for _, tt := range []struct {
		name string
		last time.Duration // from the last node to the change
	}{{"a change long after them", time.Second}, {"a change at once", 0}} {
		t.Run(tt.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				const nodes = 4
				clock, err := workload.NewClock(0)
				if err != nil {
					t.Fatal(err)
				}
				var out bytes.Buffer
				l := &eventWriter{log: workload.NewLog(&out, history.Daemon(1, 1), clock), self: addr.Incarnation{Node: 1, Generation: 1}}
				events := make(chan daemon.NodeEvent)
				go func() {
					defer close(events)
					for id := range addr.NodeID(nodes) {
						time.Sleep(quiet * 4 / 5)
						events <- daemon.NodeEvent{Event: daemon.EventCurrent, Node: &daemon.NodeInfo{ID: id, Generation: 1}}
					}
					time.Sleep(tt.last)
					events <- daemon.NodeEvent{Event: daemon.EventAdded, Node: &daemon.NodeInfo{ID: nodes, Generation: 1}}
				}()
				l.run(events)
				records, err := history.Read(&out, "log")
				if err != nil {
					t.Fatal(err)
				}
				if len(records) != 3 {
					t.Fatalf("%d records are written, want its own incarnation, one view, and the change: %+v", len(records), records)
				}
				if v, ok := records[1].Body.(*history.View); !ok || len(v.Live) != nodes {
					t.Errorf("the view is %+v, want one of %d nodes", records[1].Body, nodes)
				}
			})
		})
	}
}
