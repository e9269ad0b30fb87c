package tcp

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fabricd/fabricd/internal/bubble"
	"github.com/fabricd/fabricd/internal/netsim"
	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/transport/transporttest"
)

// inBubble runs f with two connected sessions, in a bubble of its own, for TLS
// and for plaintext.
func inBubble(t *testing.T, f func(t *testing.T, network *netsim.Network, a, b *session)) {
	for name, plaintext := range map[string]bool{"tls": false, "plaintext": true} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				network := netsim.New(1)
				network.SetDefaultRules(netsim.Rules{Delay: 100 * time.Microsecond})
				pa, pb := simulated(t, network, func(c *Config) { c.Plaintext = plaintext })
				a, b := transporttest.Connect(t, pa, pb)
				f(t, network, a.(*session), b.(*session))
				pa.Close()
				pb.Close()
				network.Close()
			})
		})
	}
}

func random(seed uint64, n int) []byte {
	p := make([]byte, n)
	var key [32]byte
	key[0], key[1] = byte(seed), byte(seed>>8)
	rand.NewChaCha8(key).Read(p)
	return p
}

// pump writes data to a new lane of s in pieces of random sizes, some of them from
// memory that the lane may hold, which all comes back.
func pump(t *testing.T, s transport.Session, seed uint64, data []byte) {
	l, err := s.OpenLane(context.Background())
	if err != nil {
		t.Error(err)
		return
	}
	r := rand.New(rand.NewPCG(seed, 1))
	var loans []*transporttest.Loan
	for len(data) > 0 {
		n := 1 + r.IntN(200)
		if r.IntN(2) == 0 {
			n = 1 + r.IntN(1200<<10)
		}
		n = min(n, len(data))
		if r.IntN(2) == 0 {
			_, err = l.Write(data[:n])
		} else {
			var loan *transporttest.Loan
			loan, err = transporttest.Lend(l, nil, data[:n])
			loans = append(loans, loan)
		}
		if err != nil {
			t.Error(err)
			return
		}
		data = data[n:]
	}
	l.Close()
	for _, loan := range loans {
		<-loan.Over()
	}
}

// drain reads a lane to its end with memory of random sizes.
func drain(l transport.RecvLane, seed uint64) ([]byte, error) {
	r := rand.New(rand.NewPCG(seed, 2))
	var all []byte
	for {
		p := make([]byte, 1+r.IntN(300<<10))
		n, err := l.Read(p)
		all = append(all, p[:n]...)
		if err == io.EOF {
			return all, nil
		}
		if err != nil {
			return all, err
		}
	}
}

// mixed sends several lanes of small and large writes both ways at once.
func mixed(t *testing.T, a, b transport.Session) {
	const count, size = 4, 4 << 20
	var all sync.WaitGroup
	for side, s := range []transport.Session{a, b} {
		for i := range count {
			seed := uint64(side*count + i)
			all.Go(func() { pump(t, s, seed, append([]byte{byte(seed)}, random(seed, size)...)) })
		}
	}
	for _, s := range []transport.Session{a, b} {
		for i := range count {
			l, err := s.AcceptLane(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			all.Go(func() {
				got, err := drain(l, uint64(i))
				if err != nil || len(got) != size+1 || !bytes.Equal(got[1:], random(uint64(got[0]), size)) {
					t.Errorf("a lane brought %d bytes of %d, or others: %v", len(got), size+1, err)
				}
			})
		}
	}
	all.Wait()
}

func (s *session) bulkCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.bulk.conns)
}

func TestMixedWrites(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *netsim.Network, a, b *session) {
		mixed(t, a, b)
		for _, s := range []*session{a, b} {
			if s.bulkCount() == 0 {
				t.Error("large writes opened no bulk connection")
			}
			if left := len(s.lanesIn) + len(s.lanesOut); left > 0 {
				t.Errorf("%d lanes are left", left)
			}
			if s.allowed.came.Load() != s.allowed.freed.Load() {
				t.Errorf("%d bytes came, %d were accounted for", s.allowed.came.Load(), s.allowed.freed.Load())
			}
		}
		if a.bulkCount() > a.p.cfg.MaxBulk {
			t.Errorf("%d bulk connections", a.bulkCount())
		}
	})
}

func TestMixedWritesOnSockets(t *testing.T) {
	for name, plaintext := range map[string]bool{"tls": false, "plaintext": true} {
		t.Run(name, func(t *testing.T) {
			pa, pb := onSockets(t, func(c *Config) { c.Plaintext = plaintext })
			a, b := transporttest.Connect(t, pa, pb)
			mixed(t, a, b)
		})
	}
}

// TestTokensComeInTheirOrder: who writes and who reads may both give the dialer
// a token at once, and it takes a number that comes late for a broken protocol.
func TestTokensComeInTheirOrder(t *testing.T) {
	pa, pb := onSockets(t, func(c *Config) { c.Plaintext, c.MaxBulk = true, maxBulk })
	for range 20 {
		a, b := transporttest.Connect(t, pa, pb)
		accepter := b.(*session)
		var all sync.WaitGroup
		for range maxBulk {
			all.Go(accepter.giveToken)
		}
		all.Wait()
		thereAndBack(t, a, b)
		a.Close(transport.CodeOK, "")
		<-b.Done()
	}
}

// thereAndBack sends one byte on a lane of each end.
func thereAndBack(t *testing.T, a, b transport.Session) {
	t.Helper()
	for _, ends := range [][2]transport.Session{{a, b}, {b, a}} {
		l, err := ends[0].OpenLane(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.Write([]byte{1}); err != nil {
			t.Fatal(err)
		}
		l.Close()
		in, err := ends[1].AcceptLane(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(in); len(got) != 1 || err != nil {
			t.Fatalf("a lane brought %v, %v", got, err)
		}
	}
}

// withBulk opens a lane from a to b and waits until large writes have a
// connection of their own.
func withBulk(t *testing.T, a, b *session) (*sendLane, *recvLane) {
	t.Helper()
	s, r := transporttest.Lane(t, a, b)
	for a.bulkCount() == 0 || b.bulkCount() == 0 {
		if _, err := s.Write(make([]byte, bulkMin)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(r, make([]byte, bulkMin)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return s.(*sendLane), r.(*recvLane)
}

// A lane whose reader or writer gives up in the middle of a large transfer
// leaves the others, and the session's credit, as they were.
func TestCancelInsideALargeWrite(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *netsim.Network, a, b *session) {
		for round := range 20 {
			s, r := withBulk(t, a, b)
			done := make(chan error, 1)
			go func() { _, err := s.Write(make([]byte, 8<<20)); done <- err }()
			if _, err := io.ReadFull(r, make([]byte, 1+round*50<<10)); err != nil {
				t.Fatal(err)
			}
			if round%2 == 0 {
				r.Cancel()
			} else {
				s.Cancel()
			}
			if err := <-done; !errors.Is(err, transport.ErrLaneCanceled) {
				t.Fatalf("write: %v", err)
			}
			if _, err := r.Read(make([]byte, 1)); round%2 == 0 && !errors.Is(err, transport.ErrLaneCanceled) {
				t.Fatalf("read: %v", err)
			}
			s.Cancel()
			r.Cancel()
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if len(b.lanesIn) > 0 || len(a.lanesOut) > 0 || b.allowed.came.Load() != b.allowed.freed.Load() || a.sendTotal != b.allowed.came.Load() {
			t.Errorf("%d and %d lanes are left; sent %d bytes, %d came, %d were accounted for",
				len(b.lanesIn), len(a.lanesOut), a.sendTotal, b.allowed.came.Load(), b.allowed.freed.Load())
		}
		mixed(t, a, b)
	})
}

// Deadlines that end reads and writes in the middle of a large transfer lose
// nothing: what was handed over arrives.
func TestDeadlinesInsideALargeWrite(t *testing.T) {
	inBubble(t, func(t *testing.T, network *netsim.Network, a, b *session) {
		network.SetDefaultRules(netsim.Rules{Delay: 3 * time.Millisecond})
		s, r := withBulk(t, a, b)
		data := random(9, 6<<20)
		done := make(chan error, 1)
		go func() {
			defer s.Close()
			for sent := 0; sent < len(data); {
				s.SetWriteDeadline(time.Now().Add(5 * time.Millisecond))
				n, err := s.Write(data[sent:min(len(data), sent+1<<20)])
				sent += n
				if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
					done <- err
					return
				}
			}
			done <- nil
		}()
		var got []byte
		for {
			r.SetReadDeadline(time.Now().Add(4 * time.Millisecond))
			p := make([]byte, 700<<10)
			n, err := r.Read(p)
			got = append(got, p[:n]...)
			if err == io.EOF {
				break
			}
			if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatal(err)
			}
		}
		if err := <-done; err != nil || !bytes.Equal(got, data) {
			t.Errorf("%d bytes of %d arrived, or others: %v", len(got), len(data), err)
		}
	})
}

// TestPeerDies sees a crash as a reset, wherever the session is in its work.
func TestPeerDies(t *testing.T) {
	inBubble(t, func(t *testing.T, network *netsim.Network, a, b *session) {
		s, _ := withBulk(t, a, b)
		blocked := make(chan error, 1)
		go func() { _, err := s.Write(make([]byte, 16<<20)); blocked <- err }()
		time.Sleep(50 * time.Millisecond)
		network.Crash("10.0.0.2")
		err := <-blocked
		var end *transport.CloseError
		if !errors.As(err, &end) || !end.Reset {
			t.Errorf("write: %v, want a reset", err)
		}
		<-a.Done()
		if !errors.As(a.Err(), &end) || !end.Reset {
			t.Errorf("session: %v, want a reset", a.Err())
		}
	})
}

// A lane's large writes do not hold up another lane's small ones: these take a
// round trip and no longer, in the time of the bubble.
func TestSmallWritesBesideLargeOnes(t *testing.T) {
	inBubble(t, func(t *testing.T, network *netsim.Network, a, b *session) {
		const delay = 5 * time.Millisecond
		network.SetDefaultRules(netsim.Rules{Delay: delay})
		s, r := withBulk(t, a, b)
		large := make(chan error, 2)
		go func() { _, err := s.Write(make([]byte, 32<<20)); large <- errors.Join(err, s.Close()) }()
		go func() { _, err := io.Copy(io.Discard, r); large <- err }()

		out, err := a.OpenLane(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		back, err := b.OpenLane(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		echoed := make(chan error, 1)
		go func() {
			in, err := b.AcceptLane(context.Background())
			if err == nil {
				_, err = io.Copy(back, in)
				back.Close()
			}
			echoed <- err
		}()
		var answers transport.RecvLane
		for i := range 50 {
			began := time.Now()
			if _, err := out.Write([]byte("ping")); err != nil {
				t.Fatal(err)
			}
			if answers == nil {
				if answers, err = a.AcceptLane(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := io.ReadFull(answers, make([]byte, 4)); err != nil {
				t.Fatal(err)
			}
			if d := time.Since(began); d > 2*delay+4*watchEvery {
				t.Errorf("ping %d took %v beside a large write", i, d)
			}
		}
		out.Close()
		if err := <-echoed; err != nil {
			t.Error(err)
		}
		for range 2 {
			if err := <-large; err != nil {
				t.Error(err)
			}
		}
	})
}

// TestALargeTransferTakesSeveralConnections: while more than a piece of one lane is
// under way on a bulk connection, its next pieces go over another one.
func TestALargeTransferTakesSeveralConnections(t *testing.T) {
	hostile(t, func(c *Config) { c.Plaintext = true }, func(r *rig) {
		own := roomy
		own.bulk, own.laneWindow, own.sessionWindow = 2, 16<<20, 32<<20
		first, more, s := r.withBulkOf(own)
		l, err := s.OpenLane(r.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		r.frame(first)
		var writer sync.WaitGroup
		writer.Go(func() { _, _ = l.Write(make([]byte, 16<<20)) }) // it ends with the session
		pieces := func(c net.Conn, n int) (bytes int) {
			for range n {
				h, _ := r.frameUpTo(c, maxPiece)
				if h.kind != typeData || h.length == 0 {
					t.Errorf("type %d, %d bytes", h.kind, h.length)
				}
				bytes += int(h.length)
			}
			return bytes
		}
		had := pieces(more, 2) // nothing is acknowledged
		at := r.given(first)
		second := r.dial("")
		r.write(second, at.appendTo(nil))
		r.frame(second)
		writer.Go(func() { _, _ = io.Copy(io.Discard, more) }) // likewise
		if h, _ := r.frameUpTo(second, maxPiece); h.kind != typeData || h.value < uint64(1+had) {
			t.Errorf("type %d at %d on the second connection, behind %d bytes", h.kind, h.value, had)
		}
		s.Close(0, "")
		writer.Wait()
	})
}
