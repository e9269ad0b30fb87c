package engine_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fabricd/fabricd/internal/engine"
	"github.com/fabricd/fabricd/internal/path"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/test/bubble"
	"github.com/fabricd/fabricd/internal/wire"
)

// A pathHostile is a hostile with a victim that makes paths, and counts its dials of the
// hostile's data port, which nothing answers.
type pathHostile struct {
	*hostile
	fab   *fabric
	dials atomic.Int64
}

func newPathHostile(t *testing.T, version uint16) *pathHostile {
	h := &pathHostile{}
	dial := func(context.Context, string) (*net.TCPConn, error) {
		h.dials.Add(1)
		return nil, errors.New("connection refused")
	}
	h.fab = newFabricOf(t, 1, engine.Config{Paths: &engine.PathNetwork{Dial: dial, Max: 8}})
	h.hostile = newHostileOn(t, h.fab, 1000, version)
	return h
}

// frames counts the frames that the victim sends on its operations stream, until that ends.
func (h *pathHostile) frames() (count func() map[wire.Type]int) {
	var mu sync.Mutex
	got := make(map[wire.Type]int)
	go func() { // ends with the stream, which ends with the test
		for {
			hd, _, err := h.opsIn.Next()
			if err != nil {
				return
			}
			mu.Lock()
			got[hd.Type]++
			mu.Unlock()
		}
	}()
	return func() map[wire.Type]int {
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		return got
	}
}

// goesOn checks that the victim's connection and its bound of paths are as before.
func (h *pathHostile) goesOn() {
	h.t.Helper()
	if _, err := h.victim.TrySend([]byte("x")); err != nil {
		h.t.Errorf("the connection has ended: %v", err)
	}
	if info := h.fab.nodes[0].Conns(); len(info) != 1 || info[0].Socket != nil {
		h.t.Errorf("the node reports %+v", info)
	}
}

// TestAPeerThatKnowsNoPaths is asked for none, and its connection goes on over the link
// and says why.
func TestAPeerThatKnowsNoPaths(t *testing.T) {
	for _, v := range []struct {
		version   uint16
		path, rma bool // it knows them
	}{{2, false, false}, {3, true, false}, {4, true, true}} {
		bubble.Test(t, func(t *testing.T) {
			h := newPathHostile(t, v.version)
			count := h.frames()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := h.victim.Path(ctx, path.Hash{}, func() {})
			if unknown := errors.Is(err, status.NotSupp) && strings.Contains(err.Error(), "knows no paths"); unknown == v.path {
				t.Errorf("version %d: a path: %v", v.version, err)
			}
			_, err = h.victim.RMAPath(ctx, path.Hash{}, func() {})
			if unknown := errors.Is(err, status.NotSupp) && strings.Contains(err.Error(), "knows no RMA paths"); unknown == v.rma {
				t.Errorf("version %d: an RMA path: %v", v.version, err)
			}
			if why := h.fab.nodes[0].Conns()[0].RMAWhy; strings.Contains(why, "the peer's fabricd knows no RMA paths") == v.rma {
				t.Errorf("version %d: the node reports no RMA path because %q", v.version, why)
			}
			got := count()
			if said := got[wire.TypePath] > 0; said != v.path {
				t.Errorf("version %d is asked for a path: %v", v.version, got)
			}
			if said := got[wire.TypeRMAPath] > 0; said != v.rma {
				t.Errorf("version %d is asked for an RMA path: %v", v.version, got)
			}
			h.goesOn()
		})
	}
}

// TestFurtherAttemptsAreOfAVersion: a peer that knows them has its refusal answered, and may ask
// again behind a pause. One that does not is not notified of them.
func TestFurtherAttemptsAreOfAVersion(t *testing.T) {
	for version, attempts := range map[uint16]int{6: 1, 7: 2} {
		bubble.Test(t, func(t *testing.T) {
			h := newPathHostile(t, version)
			count := h.frames()
			h.sendFrame(wire.RMAPath{Token: path.Token{1}}.AppendTo(nil))
			h.sendFrame(wire.NoRMAPath{Passing: true, Reason: "not now"}.AppendTo(nil))
			h.sendFrame(wire.RMAPath{Token: path.Token{2}}.AppendTo(nil))
			if got := count(); got[wire.TypeRMAPath] != 1 || got[wire.TypeNoRMAPath] != attempts-1 {
				t.Errorf("version %d: at once the node has answered %v", version, got)
			}
			time.Sleep(time.Second)
			h.sendFrame(wire.RMAPath{Token: path.Token{3}}.AppendTo(nil))
			if got := count(); got[wire.TypeRMAPath] != attempts {
				t.Errorf("version %d: behind the pause the node has answered %v", version, got)
			}
			h.goesOn()
		})
	}
}

// TestFramesOfPathsWithoutEnd: a peer that asks, refuses and asks again as fast as it can
// makes the node dial nothing that its application has not asked for, keeps no place of
// another connection's path, and harms its own connection alone.
func TestFramesOfPathsWithoutEnd(t *testing.T) {
	const times = 5000
	for name, do := range map[string]func(h *pathHostile){
		"asks and refuses": func(h *pathHostile) {
			for i := range times {
				h.sendFrame(wire.Path{Token: path.Token{byte(i), byte(i >> 8)}}.AppendTo(nil))
				h.sendFrame(wire.NoPath{Reason: "no"}.AppendTo(nil))
			}
		},
		"refuses": func(h *pathHostile) {
			for range times {
				h.sendFrame(wire.NoPath{Reason: "no"}.AppendTo(nil))
				h.sendFrame(wire.NoRMAPath{Reason: "no"}.AppendTo(nil))
				h.sendFrame(wire.NoRMAPath{Answer: true, Reason: "no"}.AppendTo(nil))
			}
		},
		"asks for an RMA path, refuses it for now and asks again": func(h *pathHostile) {
			for i := range times {
				h.sendFrame(wire.RMAPath{Token: path.Token{byte(i), byte(i >> 8)}}.AppendTo(nil))
				h.sendFrame(wire.NoRMAPath{Passing: true, Reason: "not now"}.AppendTo(nil))
			}
		},
		"asks for an RMA path and refuses": func(h *pathHostile) {
			h.sendFrame(wire.RMAPath{Token: path.Token{1}}.AppendTo(nil))
			for range times {
				h.sendFrame(wire.NoRMAPath{Reason: "no"}.AppendTo(nil))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				h := newPathHostile(t, wire.VersionMax)
				count := h.frames()
				do(h)
				if got := count(); got[wire.TypePath] > 0 {
					t.Errorf("the node asks for a path: %v", got)
				}
				if n := h.dials.Load(); n > 1 { // one for the RMA path that the peer has asked for
					t.Errorf("the node has dialed the peer's data port %d times", n)
				}
				h.goesOn()
			})
		})
	}
}

// TestFramesOfPathsThatBreakTheRules cost the peer its connection, and nothing else.
func TestFramesOfPathsThatBreakTheRules(t *testing.T) {
	ask := func(h *pathHostile, frames ...[]byte) {
		for _, f := range frames {
			h.sendFrame(f)
		}
	}
	for name, do := range map[string]func(h *pathHostile){
		"a second Path":    func(h *pathHostile) { ask(h, wire.Path{}.AppendTo(nil), wire.Path{}.AppendTo(nil)) },
		"a second RMAPath": func(h *pathHostile) { ask(h, wire.RMAPath{}.AppendTo(nil), wire.RMAPath{}.AppendTo(nil)) },
		"an answer to no RMAPath": func(h *pathHostile) {
			ask(h, wire.RMAPath{Answer: true}.AppendTo(nil))
		},
		"RMAPassed without an RMA path": func(h *pathHostile) { ask(h, wire.RMAPassed{Bytes: 1}.AppendTo(nil)) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				h := newPathHostile(t, wire.VersionMax)
				h.frames()
				do(h)
				h.wantReset(false)
			})
		})
	}
}
