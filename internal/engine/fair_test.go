package engine_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/fence"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/engine"
	"github.com/fabricd/fabricd/internal/test/bubble"
	"github.com/fabricd/fabricd/internal/test/netsim"
	"github.com/fabricd/fabricd/rma"
)

const (
	floodPairs = 8
	floodPiece = 128 << 10 // of one send or write
	floodDepth = 4         // writes under way of one connection
	// floodLong is how much all connections together move while their shares are
	// compared, in bytes: many times all that may be under way.
	floodLong = 96 << 20
	// floodWait is how much they may move while one small write waits: the bytes that may be
	// under way when it comes are, for each connection, a message window and the
	// writes of its depth. That goes by on the way there and on the way back.
	floodWait = 2 * floodPairs * (engine.MessageWindow + floodDepth*floodPiece)
)

// A flood is connections between two nodes that send messages and write to windows
// as fast as they can, all the time.
type flood struct {
	t       *testing.T
	ctx     context.Context // ends with the flood
	ends    sync.WaitGroup
	arrived [floodPairs]atomic.Int64 // bytes of messages, as received
	written [floodPairs]atomic.Int64 // bytes of writes that are known to be in the window
}

// begin lets connection k flood.
func (f *flood) begin(k int, near, far attach.NodeEndpoint) {
	src, dst := alloc(f.t, floodPiece), alloc(f.t, floodPiece)
	loff, roff := windowOf(f.t, near, src), windowOf(f.t, far, dst)
	f.ends.Go(func() {
		for p := make([]byte, floodPiece); f.ctx.Err() == nil; {
			if _, err := near.Send(f.ctx, p); err != nil && f.ctx.Err() == nil {
				f.t.Errorf("connection %d: send: %v", k, err)
				return
			}
		}
	})
	f.ends.Go(func() {
		for p := make([]byte, floodPiece); f.ctx.Err() == nil; {
			n, err := far.Recv(f.ctx, p)
			if f.arrived[k].Add(int64(n)); err != nil && f.ctx.Err() == nil {
				f.t.Errorf("connection %d: recv: %v", k, err)
				return
			}
		}
	})
	f.ends.Go(func() {
		if err := f.write(k, near, loff, roff); err != nil && f.ctx.Err() == nil {
			f.t.Errorf("connection %d: write: %v", k, err)
		}
	})
}

// write keeps floodDepth writes under way.
func (f *flood) write(k int, near attach.NodeEndpoint, loff, roff int64) error {
	var marks [floodDepth]fence.Mark
	for i := 0; f.ctx.Err() == nil; i++ {
		if i >= floodDepth {
			if err := near.FenceWait(f.ctx, marks[i%floodDepth]); err != nil {
				return err
			}
			f.written[k].Add(floodPiece)
		}
		if err := near.WriteTo(loff, floodPiece, roff, 0); err != nil {
			return err
		}
		var err error
		if marks[i%floodDepth], err = near.FenceMark(fence.InitSelf); err != nil {
			return err
		}
	}
	return nil
}

// counts returns the bytes of one kind that each connection has moved.
func counts(of *[floodPairs]atomic.Int64) (n [floodPairs]int64) {
	for k := range of {
		n[k] = of[k].Load()
	}
	return n
}

func (f *flood) total() (n int64) {
	for k := range floodPairs {
		n += f.arrived[k].Load() + f.written[k].Load()
	}
	return n
}

// pass waits until the flood has moved n bytes more, or done holds.
func (f *flood) pass(n int64, done func() bool) {
	for was := f.total(); f.total()-was < n && !done(); {
		time.Sleep(10 * time.Microsecond)
	}
}

func never() bool { return false }

// checkShares fails unless each connection had at least a tenth of the bytes of the
// one with the most.
func checkShares(t *testing.T, what string, before, after [floodPairs]int64) {
	t.Helper()
	var got [floodPairs]int64
	most := int64(0)
	for k := range got {
		got[k] = after[k] - before[k]
		most = max(most, got[k])
	}
	for k, n := range got {
		if n*10 < most || n == 0 {
			t.Errorf("%s: connection %d had %d bytes, another one %d: %v", what, k, n, most, got)
			return
		}
	}
	t.Logf("%s: %v", what, got)
}

// fairNets are the networks that connections share.
var fairNets = map[string]func(*testing.T, uint64) chaosNet{
	"mem": newMemNet, "quic": newPacketNet, "tcp": newStreamNet(false), "tcp plaintext": newStreamNet(true),
}

// flooded runs check while eight connections between two nodes flood, and a ninth
// is idle.
func flooded(t *testing.T, net chaosNet, check func(f *flood, near, far attach.NodeEndpoint)) {
	defer net.close()
	nodes := couple(t, net)
	mem := &fabric{t: t, nodes: nodes[:]}
	defer mem.close()
	near, far := coupled(t, nodes, 3000)
	ctx, cancel := context.WithCancel(t.Context())
	f := &flood{t: t, ctx: ctx}
	defer f.ends.Wait()
	defer cancel()
	for k := range floodPairs {
		a, b := coupled(t, nodes, addr.Port(3001+k))
		f.begin(k, a, b)
	}
	f.pass(floodLong/8, never)
	check(f, near, far)
}

// shares lets the flood move n bytes, and checks the share of each connection.
func (f *flood) shares(n int64) {
	f.t.Helper()
	messages, writes := counts(&f.arrived), counts(&f.written)
	f.pass(n, never)
	checkShares(f.t, "messages", messages, counts(&f.arrived))
	checkShares(f.t, "writes", writes, counts(&f.written))
}

// TestConnectionsShareALink has eight connections flood one link with messages and
// bulk writes. Each gets on, and no small write has to wait for the end of the
// flood. The test compares bytes moved, not rates.
func TestConnectionsShareALink(t *testing.T) {
	for name, network := range fairNets {
		t.Run(name, func(t *testing.T) {
			s := seed(t)
			bubble.Test(t, func(t *testing.T) {
				net := network(t, s)
				if n, ok := net.(interface{ SetDefaultRules(netsim.Rules) }); ok {
					n.SetDefaultRules(netsim.Rules{Delay: 200 * time.Microsecond})
				}
				flooded(t, net, func(f *flood, near, far attach.NodeEndpoint) {
					f.shares(floodLong)
					dst := alloc(t, rma.PageSize)
					roff := windowOf(t, far, dst)
					for i := range 20 {
						f.small(near, roff, dst, byte(i+1))
					}
					f.pass(floodLong/8, never) // it was not the end that let them through
				})
			})
		})
	}
}

// TestConnectionsShareLossyStreams is the same where losses hold up now one
// stream of the link and now another one: a connection that had to wait is not the last
// from then on.
func TestConnectionsShareLossyStreams(t *testing.T) {
	for _, name := range []string{"tcp", "tcp plaintext"} {
		t.Run(name, func(t *testing.T) {
			s := seed(t)
			bubble.Test(t, func(t *testing.T) {
				flooded(t, fairNets[name](t, s), func(f *flood, _, _ attach.NodeEndpoint) { f.shares(2 * floodLong) })
			})
		})
	}
}

// small writes beside the flood.
func (f *flood) small(near attach.NodeEndpoint, roff int64, dst []byte, value byte) {
	f.t.Helper()
	done := make(chan error, 1)
	was := f.total()
	f.ends.Go(func() { done <- near.VWriteTo([]byte{value}, roff, rma.Sync) })
	f.pass(floodWait, func() bool { return len(done) > 0 })
	if len(done) == 0 {
		f.t.Fatalf("write %d still waits when the flood has moved %d bytes", value, f.total()-was)
	}
	if err := <-done; err != nil || dst[0] != value {
		f.t.Fatalf("write %d: %v, the window has %d", value, err, dst[0])
	}
}

// windowOf registers n bytes of p and returns their offset.
func windowOf(t *testing.T, ep attach.NodeEndpoint, p []byte) int64 {
	t.Helper()
	off, err := register(ep, p, 0, rma.ProtRead|rma.ProtWrite, 0)
	if err != nil {
		t.Fatal(err)
	}
	return off
}
