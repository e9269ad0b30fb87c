package gossip

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/test/bubble"
)

// A forger is a member with the key that gossips members which it made up.
type forger struct {
	b     *bench
	names int // as many
	round int // raises their incarnation
	nonce uint64
}

func forged(i int) Key { return Key{addr.UUID{0xFE, byte(i >> 8), byte(i)}, 7} }

// isForged reports whether an address is one of a forged member.
func isForged(to string) bool { return strings.HasPrefix(to, "172.") }

func (f *forger) seal() []byte {
	f.nonce++
	return binary.BigEndian.AppendUint64([]byte("forg"), f.nonce)
}

// entry returns member i's entry in a push-pull.
func (f *forger) entry(b []byte, i int) []byte {
	m := Meta{Cluster: testCluster, Host: true, Serving: true, Incarnation: addr.Incarnation{Node: addr.NodeID(i)}, Term: 1 << 40,
		Addresses: []string{fmt.Sprintf("172.%d.%d.1:7946", 16+i/256, i%256)}}
	meta, err := m.Append(nil)
	if err != nil {
		panic(err)
	}
	return appendMap(b, pair{"Name", []byte(forged(i).String())}, pair{"Addr", []byte{172, byte(16 + i/256), byte(i), 1}},
		pair{"Port", 7947}, pair{"Meta", meta}, pair{"Incarnation", f.round}, pair{"State", 0}, pair{"Vsn", versions})
}

// push sends all of them to member i, in as many streams as it takes, and reads the
// answers: a stream is not to be refused for its length.
func (f *forger) push(i int) {
	f.round++
	const each = 500
	for first := 0; first < f.names; first += each {
		state := appendMap([]byte{6}, pair{"Nodes", each}, pair{"UserStateLen", 0}, pair{"Join", false})
		for k := first; k < first+each; k++ {
			state = f.entry(state, k)
		}
		c, err := f.b.net.Dial(f.b.t.Context(), hostIP(99), address(i))
		if err != nil {
			continue
		}
		c.Write(append(testSeal.header(), testSeal.frame(f.seal(), state)...))
		c.SetReadDeadline(time.Now().Add(time.Second))
		_, _ = testSeal.readFrame(c)
		c.Close()
	}
}

// A census counts the acts of members while 8,000 others were made up.
type census struct {
	dials atomic.Int64 // to addresses of those
	wakes int
	known int
	heap  int64
}

// endure has the forger push to three members for a minute.
func (s *census) endure(t *testing.T, proven func(Key) bool) {
	bubble.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.end()
		var all []*Gossip
		for i := 1; i <= 3; i++ {
			all = append(all, b.start(i, 1, s.on, func(c *Config) { c.Proven = proven }))
		}
		b.within(time.Second, "all see all", func() bool { return complete(all) })
		time.Sleep(20 * time.Second)
		s.dials.Store(0)
		before := heapInUse()
		ctx, cancel := context.WithCancel(t.Context())
		var wakes sync.WaitGroup
		wakes.Go(func() {
			for {
				select {
				case <-all[0].Wake():
					s.wakes++
					all[0].Take()
				case <-ctx.Done():
					return
				}
			}
		})
		f := &forger{b: b, names: 8000}
		if raceEnabled {
			f.names = 1000
		}
		for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(6 * time.Second) {
			for i := range all {
				f.push(i + 1)
			}
		}
		all[0].mu.Lock()
		s.known = all[0].members.len()
		all[0].mu.Unlock()
		s.heap = heapInUse() - before
		for i, g := range all {
			for _, o := range all {
				if o != g && !strings.Contains(strings.Join(names(g.Members()), " "), o.Self().String()) {
					t.Errorf("member %d has lost %v", i+1, o.Self())
				}
			}
		}
		b.kill(3, all[2])
		took := b.within(time.Minute, "a killed member is gone all the same", func() bool {
			return !strings.Contains(strings.Join(names(all[0].Members()), " "), all[2].Self().String())
		})
		t.Logf("a killed member is gone after %v", took)
		cancel()
		wakes.Wait()
	})
}

// on makes a member count into s.
func (s *census) on(c *Config) {
	dial := c.Dial
	c.Dial = func(ctx context.Context, to string) (net.Conn, error) {
		if isForged(to) {
			s.dials.Add(1)
		}
		return dial(ctx, to)
	}
}

// heapInUse returns the bytes in use on the heap.
func heapInUse() int64 {
	synctest.Wait()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func TestMembersThatAreMadeUpCostLittle(t *testing.T) {
	var s census
	s.endure(t, func(k Key) bool { return k.UUID[0] == 0xAA })
	t.Logf("8,000 made up for a minute: %d are known, %d dials to them of three members, %d wakes of one, heap grew by %d KiB", s.known, s.dials.Load(), s.wakes, s.heap>>10)
	if s.known > 2+maxUnproven {
		t.Errorf("%d members are known, want at most %d", s.known, 2+maxUnproven)
	}
	if s.dials.Load() > 0 {
		t.Errorf("%d dials to members that are made up", s.dials.Load())
	}
	if s.wakes > 700 {
		t.Errorf("%d wakes in a minute", s.wakes)
	}
	if s.heap > 4<<20 {
		t.Errorf("the heap grew by %d KiB", s.heap>>10)
	}
}
