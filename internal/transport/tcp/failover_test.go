package tcp

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fabricd/fabricd/internal/bubble"
	"github.com/fabricd/fabricd/internal/netsim"
	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/transport/transporttest"
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
			bubble.Test(t, func(t *testing.T) {
				network := netsim.New(1)
				network.SetDefaultRules(netsim.Rules{Delay: 100 * time.Microsecond})
				random := rand.New(rand.NewPCG(*seed, 7))
				var cuts atomic.Int64
				pa, pb := simulated(t, network, func(c *Config) { c.Plaintext = plaintext })
				cutting(random, 3<<20, &cuts)(&pa.cfg)
				sa, sb := transporttest.Connect(t, pa, pb)
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
					if s.allowed.came.Load() != s.allowed.freed.Load() || len(s.lanesIn)+len(s.lanesOut) > 0 || len(s.unnamed)+len(s.waiting) > 0 {
						t.Errorf("%d bytes came, %d were accounted for, %d lanes are left", s.allowed.came.Load(), s.allowed.freed.Load(), len(s.lanesIn)+len(s.lanesOut))
					}
					if len(s.bulk.ending)+len(s.bulk.dialing) > 0 {
						t.Errorf("%d connections are ending, %d being dialed", len(s.bulk.ending), len(s.bulk.dialing))
					}
				}
				if a.sendTotal != b.allowed.came.Load() || b.sendTotal != a.allowed.came.Load() {
					t.Errorf("sent %d and %d bytes, %d and %d came", a.sendTotal, b.sendTotal, b.allowed.came.Load(), a.allowed.came.Load())
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
			sa, sb := transporttest.Connect(t, pa, pb)
			a, b := sa.(*session), sb.(*session)
			s, r := withBulk(t, a, b)
			data := random(11, 24<<20)
			done := make(chan error, 1)
			go func() {
				var err error
				var loans []*transporttest.Loan
				for rest := data; len(rest) > 0 && err == nil; rest = rest[min(len(rest), 1<<20):] {
					var loan *transporttest.Loan
					loan, err = transporttest.Lend(s, nil, rest[:min(len(rest), 1<<20)])
					loans = append(loans, loan)
				}
				err = errors.Join(err, s.Close())
				for _, loan := range loans {
					<-loan.Over()
				}
				done <- err
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
		s.bulk.conns[0].kept.add(frameOf(1, 0, 0, make([]byte, 100), nil))
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

// lent has the provider of r write p to a lane from memory that it may hold, and
// reads it as the peer. Nothing is acknowledged.
func lent(r *rig, first, more net.Conn, s *session, p []byte) (transport.SendLane, *transporttest.Loan) {
	r.Helper()
	l, err := s.OpenLane(r.Context())
	if err != nil {
		r.Fatal(err)
	}
	if _, err := l.Write([]byte("x")); err != nil {
		r.Fatal(err)
	}
	if h, body := r.frame(first); h.kind != typeData || string(body) != "x" {
		r.Fatalf("type %d, %q", h.kind, body)
	}
	loan := make(chan *transporttest.Loan)
	go func() {
		l, err := transporttest.Lend(l, nil, p)
		if err != nil {
			r.Error(err)
		}
		loan <- l
	}()
	got := make([]byte, headerLen+len(p))
	if _, err := io.ReadFull(more, got); err != nil {
		r.Fatal(err)
	}
	if h, err := parseHeader(got, maxPiece); err != nil || h.kind != typeData || int(h.length) != len(p) || !bytes.Equal(got[headerLen:], p) {
		r.Fatalf("%+v, %v, or other bytes", h, err)
	}
	return l, <-loan
}

// roomy is a peer with room for what is held.
var roomy = hello{from: version, to: version, bulk: 1, laneWindow: 4 << 20, sessionWindow: 8 << 20, lanes: lanes}

// What a peer has acknowledged it cannot ask for again: that memory is its owner's,
// who may have changed it.
func TestLostBelowWhatWasAcknowledged(t *testing.T) {
	hostile(t, func(c *Config) { c.Plaintext = true }, func(r *rig) {
		first, more, s := r.withBulkOf(roomy)
		_, loan := lent(r, first, more, s, random(3, heldMin))
		synctest.Wait()
		if !loan.Held() {
			t.Error("nothing was held before the ACK")
		}
		r.write(first, header{kind: typeAck, lane: 1, value: headerLen + heldMin}.appendTo(nil))
		<-loan.Over()
		r.write(first, header{kind: typeLost, lane: 1, value: headerLen + heldMin - 1}.appendTo(nil))
		if code, reason := r.closed(first); code != transport.CodeProtocol || !strings.Contains(reason, "acknowledged") {
			t.Errorf("closed with %d, %q", code, reason)
		}
		<-s.Done()
	})
}

// A position that nobody wrote ends the session, and what is held comes back, also
// when the connection is over here.
func TestLostThatNobodyWrote(t *testing.T) {
	hostile(t, func(c *Config) { c.Plaintext = true }, func(r *rig) {
		first, more, s := r.withBulkOf(roomy)
		_, loan := lent(r, first, more, s, random(6, heldMin))
		more.Close()
		synctest.Wait()
		r.write(first, header{kind: typeLost, lane: 1, value: 2 * maxPiece}.appendTo(nil))
		<-loan.Over()
		<-s.Done()
	})
}

// A peer that does not acknowledge, and asks for everything again when the lane was
// canceled and the memory given back, gets the bytes that were written.
func TestLostBehindACancel(t *testing.T) {
	hostile(t, func(c *Config) { c.Plaintext = true }, func(r *rig) {
		first, more, s := r.withBulkOf(roomy)
		p := random(4, heldMin+100)
		l, loan := lent(r, first, more, s, p)
		l.Cancel()
		<-loan.Over()
		const had = 1000
		r.write(first, header{kind: typeLost, lane: 1, value: headerLen + had}.appendTo(nil))
		var again []byte
		for len(again) < len(p)-had {
			h, body := r.frame(first)
			switch h.kind {
			case typeData:
				if int(h.value) != 1+had+len(again) {
					t.Fatalf("bytes at %d behind %d", h.value, 1+had+len(again))
				}
				again = append(again, body...)
			case typeReset, typeLost:
			default:
				t.Fatalf("type %d", h.kind)
			}
		}
		if !bytes.Equal(again, p[had:]) {
			t.Error("other bytes than those that were written")
		}
	})
}

// What a cut makes the provider send again comes from memory of its own: the
// owner's is given back first.
func TestACutGivesMemoryBack(t *testing.T) {
	hostile(t, func(c *Config) { c.Plaintext = true }, func(r *rig) {
		first, more, s := r.withBulkOf(roomy)
		p := random(5, heldMin)
		_, loan := lent(r, first, more, s, p)
		r.write(first, header{kind: typeLost, lane: 1}.appendTo(nil))
		<-loan.Over()
		var again []byte
		for len(again) < len(p) {
			if h, body := r.frame(first); h.kind == typeData {
				again = append(again, body...)
			}
		}
		if !bytes.Equal(again, p) {
			t.Error("other bytes than those that were written")
		}
	})
}

// The last byte of a frame that the peer may hold in its memory is for nobody before
// the peer was told that it has come: whatever follows from it comes later.
func TestAcknowledgedBeforeItIsRead(t *testing.T) {
	pa, pb := onSockets(t, func(c *Config) { c.Plaintext = true })
	sa, sb := transporttest.Connect(t, pa, pb)
	b := sb.(*session)
	s, r := withBulk(t, sa.(*session), b)
	b.writeMu.Lock() // nothing is said
	wrote := make(chan error, 1)
	go func() { _, err := s.Write(make([]byte, heldMin)); wrote <- err }()
	read := make(chan error, 1)
	go func() { _, err := io.ReadFull(r, make([]byte, heldMin)); read <- err }()
	select {
	case <-read:
		t.Error("all was read while nothing could be said")
		read <- nil
	case <-time.After(50 * time.Millisecond):
	}
	b.writeMu.Unlock()
	if err := errors.Join(<-wrote, <-read); err != nil {
		t.Error(err)
	}
}

// An ACK that nobody's answer takes along comes by itself, whether anybody reads the
// lane or not.
func TestAcknowledgementOfWhatNobodyAnswers(t *testing.T) {
	for name, reads := range map[string]bool{"read": true, "unread": false} {
		t.Run(name, func(t *testing.T) {
			hostile(t, func(c *Config) { c.Plaintext, c.LaneWindow, c.SessionWindow = true, 4<<20, 8<<20 }, func(r *rig) {
				first, more, s := r.withBulk()
				if reads {
					l, err := s.AcceptLane(r.Context())
					if err != nil {
						t.Fatal(err)
					}
					go io.ReadFull(l, make([]byte, 1+heldMin)) // ends with the lane
				}
				r.write(more, data(1, 1, heldMin))
				for {
					h, _ := r.frame(first)
					if h.kind == typeAck && h.lane == 1 && h.value == headerLen+heldMin {
						return
					}
					if h.kind == typeAck {
						t.Fatalf("ACK of %d", h.value)
					}
				}
			})
		})
	}
}

// What was put off goes out before the next frame, or when it is settled, once.
func TestWhatWasPutOff(t *testing.T) {
	hostile(t, func(*Config) {}, func(r *rig) {
		first, s := r.session(ownHello)
		s.putOff(header{kind: typeCredit, lane: 7, value: 1})
		s.putOff(header{kind: typeCredit, lane: 7, value: 2})
		s.say(header{kind: typeCredit, value: 3})
		s.putOff(header{kind: typeCredit, lane: 7, value: 4})
		s.settle()
		s.settle()
		s.say(header{kind: typeCredit, value: 5})
		for want := range uint64(5) {
			if h, _ := r.frame(first); h.value != want+1 {
				t.Fatalf("frame %d instead of %d", h.value, want+1)
			}
		}
		if s.owes.Load() {
			t.Error("something is still owed")
		}
	})
}
