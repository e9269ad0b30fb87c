package engine_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/engine"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/test/bubble"
	"github.com/fabricd/fabricd/internal/wire"
)

// TestANodeReportsItsLinks to a peer that looks, and measures round trips to the others then.
func TestANodeReportsItsLinks(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		fab := newFabricOn(t, netConfig{Delay: time.Millisecond}, 3, engine.Config{})
		rows := func() map[addr.NodeID]engine.LinkInfo {
			said, err := fab.nodes[0].LinksOf(t.Context(), 1)
			if err != nil {
				t.Fatal(err)
			}
			all := map[addr.NodeID]engine.LinkInfo{}
			for _, l := range said {
				all[l.Node] = l
			}
			return all
		}
		if got := rows(); len(got) != 1 || got[0].Generation != 1 {
			t.Errorf("node 1 says %+v, want its link to node 0", got)
		}
		time.Sleep(time.Second) // of the bubble: heartbeats
		got := rows()
		own := fab.nodes[1].Links()
		if len(got) != 2 || len(own) != 2 || got[2].RoundTripUS != own[1].RoundTripUS || got[2].RoundTripUS == 0 || got[2].SilentMS > 1000 {
			t.Errorf("a second later it says %+v; its own table has %+v", got, own)
		}
		if len(fab.nodes[2].Links()) != 1 {
			t.Errorf("node 2, which nobody has asked, has %d links", len(fab.nodes[2].Links()))
		}
		if _, err := fab.nodes[0].LinksOf(t.Context(), 0); !errors.Is(err, status.NotSupp) {
			t.Errorf("of itself: %v", err)
		}
		fab.nodes[1].NodeLost(fab.peers[0].Incarnation, "crashed")
		fab.nodes[0].NodeLost(fab.peers[1].Incarnation, "crashed")
		if _, err := fab.nodes[0].LinksOf(t.Context(), 1); !errors.Is(err, status.NoDevice) {
			t.Errorf("of a lost node: %v", err)
		}
	})
}

// TestHostilePeerReportsLinks: its rows are returned as they are, within bounds; a request
// that it does not answer ends with its context, and its too frequent requests are not answered.
func TestHostilePeerReportsLinks(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		fab := newFabric(t, 1)
		h := newHostileOn(t, fab, 1, wire.VersionMax)
		go func() {
			for hd, body, err := h.ctrlIn.Next(); err == nil; hd, body, err = h.ctrlIn.Next() {
				if f, err := wire.ParseAskLinks(hd.Flags, body); hd.Type == wire.TypeAskLinks && err == nil && f.Request == 1 {
					row := wire.LinkRow{Peer: addr.Incarnation{Node: 7, Generation: 1}, SilentMS: 1<<32 - 1, RoundTripUS: 1<<32 - 1, Loss: 10_000, Fallback: true}
					h.write(wire.Links{Request: 99}.AppendTo(nil))
					h.write(wire.Links{Request: f.Request, Rows: []wire.LinkRow{row}}.AppendTo(nil))
				}
			}
		}()
		said, err := fab.nodes[0].LinksOf(t.Context(), 9)
		if err != nil || len(said) != 1 || said[0].LossPercent != 100 || said[0].SilentMS != 1<<32-1 || said[0].Provider != "" || len(said[0].Considered) != 1 {
			t.Errorf("%+v, %v", said, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := fab.nodes[0].LinksOf(ctx, 9); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("no answer comes: %v", err)
		}
		h.write(append(wire.AskLinks{}.AppendTo(nil), wire.Links{Rows: []wire.LinkRow{{}, {}}}.AppendTo(nil)...))
		h.wantReset(true)
	})
	bubble.Test(t, func(t *testing.T) {
		h := newHostile(t, 1)
		answers := 0
		go func() {
			for hd, _, err := h.ctrlIn.Next(); err == nil; hd, _, err = h.ctrlIn.Next() {
				if hd.Type == wire.TypeLinks {
					answers++
				}
			}
		}()
		for i := range uint64(5000) {
			h.write(wire.AskLinks{Request: i}.AppendTo(nil))
		}
		synctest.Wait()
		if answers != 60 || h.sess.Err() != nil {
			t.Errorf("%d answers, session %v; want 60 of a minute", answers, h.sess.Err())
		}
	})
	bubble.Test(t, func(t *testing.T) {
		fab := newFabric(t, 1)
		newHostileOn(t, fab, 1, 5)
		if _, err := fab.nodes[0].LinksOf(t.Context(), 9); !errors.Is(err, status.NotSupp) {
			t.Errorf("of one of an earlier version: %v", err)
		}
	})
}
