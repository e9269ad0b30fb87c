package tcp

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fabricd/fabricd/internal/netsim"
	"github.com/fabricd/fabricd/internal/transport"
)

var seed = flag.Uint64("seed", uint64(time.Now().UnixNano()), "where bulk connections are cut")

// A limited connection ends after some more bytes, as one does whose path is cut:
// those that were written and not read are lost.
type limited struct {
	net.Conn
	left atomic.Int64
}

var errCut = &net.OpError{Op: "write", Err: io.ErrUnexpectedEOF}

func (c *limited) spend(n int) int {
	left := c.left.Add(int64(-n)) + int64(n)
	return int(min(max(left, 0), int64(n)))
}

func (c *limited) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	k := c.spend(n)
	if k < n || n == 0 && err == nil {
		_ = c.Conn.Close() // nothing more would come, and nobody would know
		if k == 0 {
			err = io.ErrUnexpectedEOF
		}
	}
	return k, err
}

func (c *limited) Write(p []byte) (int, error) {
	n := c.spend(len(p))
	n, err := c.Conn.Write(p[:n])
	if n < len(p) && err == nil {
		_ = c.Conn.Close()
		err = errCut
	}
	return n, err
}

// cutting returns a change of the dialer's configuration: each bulk connection
// ends after a random number of bytes, up to most, of both directions together.
func cutting(random *rand.Rand, most int64, cuts *atomic.Int64) func(*Config) {
	var mu sync.Mutex
	return func(c *Config) {
		dial, first := c.Dial, true
		c.Dial = func(ctx context.Context, address string) (net.Conn, error) {
			conn, err := dial(ctx, address)
			mu.Lock()
			defer mu.Unlock()
			if err != nil || first {
				first = false
				return conn, err
			}
			l := &limited{Conn: conn}
			if l.left.Store(8000 + random.Int64N(most)); random.IntN(4) == 0 {
				l.left.Store(random.Int64N(8000)) // while it is made
			}
			cuts.Add(1)
			return l, nil
		}
	}
}

// TestCutsInsideLargeWrites cuts every bulk connection somewhere, many times in
// one session, with traffic both ways on several lanes: no byte is lost, doubled
// or out of place, the session lives, and its credit adds up.
func TestCutsInsideLargeWrites(t *testing.T) {
	t.Logf("-seed %d", *seed)
	for name, plaintext := range map[string]bool{"tls": false, "plaintext": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				network := netsim.New(1)
				network.SetDefaultRules(netsim.Rules{Delay: 100 * time.Microsecond})
				random := rand.New(rand.NewPCG(*seed, 7))
				var cuts atomic.Int64
				pa, pb := simulated(t, network, func(c *Config) { c.Plaintext = plaintext })
				cutting(random, 3<<20, &cuts)(&pa.cfg)
				sa, sb := connect(t, pa, pb)
				a, b := sa.(*session), sb.(*session)
				for round := 0; cuts.Load() < 12 && round < 200; round++ {
					mixed(t, a, b)
					time.Sleep(askEvery)
				}
				if cuts.Load() < 12 {
					t.Errorf("%d connections were cut", cuts.Load())
				}
				time.Sleep(time.Second)
				synctest.Wait()
				for _, s := range []*session{a, b} {
					if err := s.Err(); err != nil {
						t.Errorf("the session ended: %v", err)
					}
					if s.recvTotal != s.freedTotal || len(s.lanesIn)+len(s.lanesOut) > 0 || len(s.unnamed)+len(s.waiting) > 0 {
						t.Errorf("%d bytes came, %d were accounted for, %d lanes are left", s.recvTotal, s.freedTotal, len(s.lanesIn)+len(s.lanesOut))
					}
					if len(s.bulk.ending)+len(s.bulk.dialing) > 0 {
						t.Errorf("%d connections are ending, %d being dialed", len(s.bulk.ending), len(s.bulk.dialing))
					}
				}
				if a.sendTotal != b.recvTotal || b.sendTotal != a.recvTotal {
					t.Errorf("sent %d and %d bytes, %d and %d came", a.sendTotal, b.sendTotal, b.recvTotal, a.recvTotal)
				}
				pa.Close()
				pb.Close()
				network.Close()
			})
		})
	}
}

// TestCutOnSockets closes the bulk connections of a session on the loopback
// interface under way, from either end, again and again.
func TestCutOnSockets(t *testing.T) {
	for name, plaintext := range map[string]bool{"tls": false, "plaintext": true} {
		t.Run(name, func(t *testing.T) {
			pa, pb := onSockets(t, func(c *Config) { c.Plaintext = plaintext })
			sa, sb := connect(t, pa, pb)
			a, b := sa.(*session), sb.(*session)
			s, r := withBulk(t, a, b)
			data := random(11, 24<<20)
			done := make(chan error, 1)
			go func() {
				_, err := s.Write(data)
				done <- errors.Join(err, s.Close())
			}()
			quit := make(chan struct{})
			var cutter sync.WaitGroup
			cuts := 0
			cutter.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-quit:
						return
					case <-time.After(5 * time.Millisecond):
						if cutOne([]*session{a, b}[i%2]) {
							cuts++
						}
					}
				}
			})
			got, err := io.ReadAll(r)
			close(quit)
			cutter.Wait()
			if err != nil || !bytes.Equal(got, data) {
				t.Errorf("%d bytes of %d arrived, or others: %v", len(got), len(data), err)
			}
			if err := <-done; err != nil || cuts == 0 {
				t.Errorf("%v; %d connections were cut", err, cuts)
			}
		})
	}
}

// cutOne closes the socket of a bulk connection of s, if there is one.
func cutOne(s *session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.bulk.conns) == 0 {
		return false
	}
	s.bulk.conns[0].conn.Close()
	return true
}

// A peer whose bulk connection ends and who does not say what it has got loses the
// session, soon.
func TestSilentAboutACut(t *testing.T) {
	hostile(t, func(c *Config) { c.Plaintext = true }, func(r *rig) {
		_, more, s := r.withBulk()
		began := time.Now()
		more.Close()
		<-s.Done()
		if d := time.Since(began); d < cutGrace || d > cutGrace+100*time.Millisecond {
			t.Errorf("the session ended after %v", d)
		}
		var end *transport.CloseError
		if !errors.As(s.Err(), &end) || !end.Reset {
			t.Errorf("%v, want a reset", s.Err())
		}
	})
}

// A writer that found no room a moment ago looks again after every
// acknowledgement, whatever room there was when that came.
func TestAcknowledgementWakesWhoWaitsForRoom(t *testing.T) {
	hostile(t, func(c *Config) { c.Plaintext = true }, func(r *rig) {
		first, _, s := r.withBulk()
		l := &sendLane{s: s, wake: make(chan struct{}, 1)}
		s.mu.Lock()
		s.bulk.conns[0].kept.add(copyFrame(1, 0, vector{b: make([]byte, 100)}))
		s.waiting[l] = struct{}{}
		s.mu.Unlock()
		r.write(first, header{kind: typeAck, lane: 1, value: headerLen + 100}.appendTo(nil))
		synctest.Wait()
		select {
		case <-l.wake:
		default:
			t.Error("it was not woken")
		}
	})
}
