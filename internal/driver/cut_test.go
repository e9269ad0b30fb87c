package driver_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/bubble"
	"github.com/fabricd/fabricd/internal/driver"
	"github.com/fabricd/fabricd/internal/ipc"
	"github.com/fabricd/fabricd/internal/netsim"
	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/transport/tcp"
)

// A fuse is a connection that ends after some more bytes of both directions.
type fuse struct {
	net.Conn
	left atomic.Int64
}

func (c *fuse) burn(n int) int {
	left := c.left.Add(int64(-n)) + int64(n)
	return int(min(max(left, 0), int64(n)))
}

func (c *fuse) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	k := c.burn(n)
	if k < n || n == 0 && err == nil {
		_ = c.Conn.Close()
		if k == 0 {
			err = io.ErrUnexpectedEOF
		}
	}
	return k, err
}

func (c *fuse) Write(p []byte) (int, error) {
	k := c.burn(len(p))
	n, err := c.Conn.Write(p[:k])
	if n < len(p) && err == nil {
		_ = c.Conn.Close()
		err = &net.OpError{Op: "write", Err: io.ErrUnexpectedEOF}
	}
	return n, err
}

// fused returns two nodes over TCP whose connections for large transfers end
// after random numbers of bytes. cuts counts them.
func fused(t *testing.T, network *netsim.Network, random *rand.Rand, plaintext bool, cuts *atomic.Int64) *fabric {
	q, fab := newQuicker(t), &fabric{t: t}
	var mu sync.Mutex // guards random
	for i, address := range []string{"10.0.0.1:7000", "10.0.0.2:7000"} {
		l, err := network.Listen(address)
		if err != nil {
			t.Fatal(err)
		}
		config, identify := q.member(i)
		dials := 0
		p, err := tcp.New(tcp.Config{Listener: l, ServerTLS: config, ClientTLS: config, Identify: identify, Plaintext: plaintext,
			Dial: func(ctx context.Context, to string) (net.Conn, error) {
				c, err := network.Dial(ctx, address[:len(address)-5], to)
				mu.Lock()
				defer mu.Unlock()
				if dials++; err != nil || dials == 1 { // a session's first connection
					return c, err
				}
				f := &fuse{Conn: c}
				f.left.Store(100<<10 + random.Int64N(4<<20))
				cuts.Add(1)
				return f, nil
			}})
		if err != nil {
			t.Fatal(err)
		}
		n := driver.Start(driver.Config{Providers: []transport.Provider{p}, Log: zerolog.New(zerolog.NewTestWriter(t))})
		life := addr.Life{Node: addr.NodeID(i), Generation: 1}
		n.SetSelf(driver.Self{Self: ipc.Self{Cluster: uuid(0xCC), Life: life}, UUID: uuid(byte(i + 1)), Epoch: 1, Term: 1})
		fab.nodes = append(fab.nodes, n)
		fab.peers = append(fab.peers, driver.Peer{Life: life, UUID: uuid(byte(i + 1)), Epoch: 1, Addresses: []string{p.Addr()}})
	}
	fab.nodes[0].NodeUp(fab.peers[1])
	fab.nodes[1].NodeUp(fab.peers[0])
	return fab
}

// TestMemoryThatChangesBehindAFence cuts the connections of large transfers
// somewhere, again and again. Whoever may change his memory, behind a fence or an
// unregister, does so at once: what has arrived is what it was before.
func TestMemoryThatChangesBehindAFence(t *testing.T) {
	s := seed(t)
	for name, plaintext := range map[string]bool{"tls": false, "plaintext": true} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				network := netsim.New(s)
				defer network.Close()
				network.SetDefaultRules(netsim.Rules{Delay: 100 * time.Microsecond})
				random := rand.New(rand.NewPCG(s, 5))
				var cuts atomic.Int64
				fab := fused(t, network, random, plaintext, &cuts)
				defer fab.close()
				a, b := fab.pair(0, 1)
				const length = 3 << 20
				here, there := memoryOf(t, fab, length), memoryOf(t, fab, length)
				loff, roff := windowOf(t, a, here), windowOf(t, b, there)
				pace := rand.New(rand.NewPCG(s, 6))
				fill := rand.NewChaCha8([32]byte{byte(s)})
				for round := 0; cuts.Load() < 12 && round < 300; round++ {
					n := int64(1 + pace.IntN(length))
					from, to, move := here, there, a.WriteTo
					if pace.IntN(2) == 0 {
						from, to, move = there, here, a.ReadFrom
					}
					_, _ = fill.Read(from[:n]) // it returns no error
					want := bytes.Clone(from[:n])
					if err := errors.Join(move(loff, n, roff, 0), fenced(a)); err != nil {
						t.Fatalf("round %d: %v", round, err)
					}
					if &from[0] == &there[0] { // its owner hears of the end from unregister
						if err := b.Unregister(roff, length); err != nil {
							t.Fatal(err)
						}
					}
					clear(from)
					if !bytes.Equal(to[:n], want) {
						t.Fatalf("round %d: %d bytes are not those that were there before the fence", round, n)
					}
					if &from[0] == &there[0] {
						if roff = windowOf(t, b, there); roff < 0 {
							t.Fatal("no window")
						}
					}
					time.Sleep(300 * time.Millisecond) // until there are connections again
				}
				if cuts.Load() < 12 {
					t.Errorf("%d connections were made", cuts.Load())
				}
			})
		})
	}
}
