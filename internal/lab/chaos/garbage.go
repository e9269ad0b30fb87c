package chaos

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fabricd/fabricd/internal/lab/scenario"
)

const (
	// garbagePause is between two packets or connections of one sender to one
	// target, so that it disturbs and does not fill the network.
	garbagePause = 2 * time.Millisecond
	// garbageMost is how much is sent on one connection, in bytes, and
	// how long it waits for an answer.
	garbageMost = 64 << 10
	garbageWait = 100 * time.Millisecond
)

// garbage sends to every port and socket of nodes data that no fabricd would send:
// random bytes, and beginnings of real protocols with random bytes behind them.
func (c *cluster) garbage(a scenario.Action) effect {
	ctx, cancel := context.WithCancel(c.followers.ctx)
	var wg sync.WaitGroup
	var all []*garbageSender
	for _, id := range a.Network.Node.IDs() {
		for i, t := range c.targets(c.nodes[id]) {
			s := &garbageSender{target: t, rand: rand.New(rand.NewPCG(a.Seed, uint64(id)<<8|uint64(i)))}
			all = append(all, s)
			wg.Go(func() {
				if s.err = c.site.enter(id); s.err == nil {
					s.run(ctx)
				}
			})
		}
	}
	return undoBy(func(context.Context) (uint64, string, error) {
		cancel()
		wg.Wait()
		var sent, ended uint64
		for _, s := range all {
			if s.sent.Load() == 0 {
				return 0, "", fmt.Errorf("nothing reaches %s %s: %w", s.target.network, s.target.address, s.err)
			}
			sent, ended = sent+s.sent.Load(), ended+s.ended
		}
		return sent, fmt.Sprintf("sent %d packets and pieces; %d connections were ended by fabricd", sent, ended), nil
	})
}

// A target is where a daemon listens.
type target struct{ network, address string }

// targets are all of a node: of peers, of gossip, of applications, of administrators.
func (c *cluster) targets(s *node) []target {
	p := c.site.place(s.index)
	data := netip.AddrPortFrom(p.advertise, p.data).String()
	gossip := netip.AddrPortFrom(p.advertise, p.gossip).String()
	return []target{{"udp", data}, {"tcp", data}, {"udp", gossip}, {"tcp", gossip},
		{"unixpacket", s.file("app.sock")}, {"unix", s.file("admin.sock")}}
}

// A garbageSender sends to one target. Its run owns all but sent.
type garbageSender struct {
	target target
	rand   *rand.Rand
	sent   atomic.Uint64 // packets and pieces
	ended  uint64        // connections that the other side ended
	err    error         // the last one of a dial
}

// run goes on until ctx is done. A daemon that is away for a while, or refuses the
// connection, is dialed again.
func (s *garbageSender) run(ctx context.Context) {
	t := time.NewTicker(garbagePause)
	defer t.Stop()
	for ctx.Err() == nil {
		if conn, err := new(net.Dialer).DialContext(ctx, s.target.network, s.target.address); err != nil {
			s.err = err
		} else {
			s.send(conn)
			conn.Close()
		}
		select {
		case <-t.C:
		case <-ctx.Done():
		}
	}
}

// send sends a few pieces on a connection, or a packet, and waits for the answer.
func (s *garbageSender) send(conn net.Conn) {
	conn.SetDeadline(time.Now().Add(garbageWait)) // of a socket that is open: it cannot fail
	most := garbageMost
	if s.target.network == "udp" {
		most = 1400
	}
	p := piece(s.rand, s.target.network, most)
	for len(p) > 0 {
		n := len(p)
		if s.target.network != "udp" {
			n = 1 + s.rand.IntN(n)
		}
		if _, err := conn.Write(p[:n]); err != nil {
			if !os.IsTimeout(err) {
				s.ended++
			}
			return
		}
		s.sent.Add(1)
		p = p[n:]
	}
	if s.target.network == "udp" {
		return
	}
	if _, err := io.Copy(io.Discard, conn); err == nil || !os.IsTimeout(err) {
		s.ended++
	}
}

// piece returns between 1 and most bytes: all random, or behind a head that a
// decoder takes for one of its own.
func piece(r *rand.Rand, network string, most int) []byte {
	p := make([]byte, 64+r.IntN(most-63))
	for i := 0; i+8 <= len(p); i += 8 {
		binary.LittleEndian.PutUint64(p[i:], r.Uint64())
	}
	switch kind := r.IntN(4); {
	case kind == 0:
		return p[:1+r.IntN(len(p))]
	case network == "udp" && kind == 1: // a first packet of QUIC (RFC 9000, 17.2.2)
		p[0] = 0xc0 | p[0]&0x0f
		copy(p[1:], []byte{0, 0, 0, 1, 8})
		p[14] = 8
	case network == "udp" && kind == 2: // a short one of an unknown connection
		p[0] = 0x40 | p[0]&0x3f
	case network == "tcp" && kind == 1: // a ClientHello of TLS (RFC 8446, 4.1.2)
		copy(p, []byte{22, 3, 1, byte(len(p) >> 8), byte(len(p)), 1, 0})
	case network == "tcp" && kind == 2: // alerts and data before any handshake
		copy(p, []byte{21 + byte(r.IntN(3)), 3, 3, 0, 2})
	default: // a length in front, as many protocols have
		binary.BigEndian.PutUint32(p, uint32(r.IntN(1<<20)))
	}
	return p
}
