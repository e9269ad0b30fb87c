package quic

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/fabricd/fabricd/internal/transport"
)

// Patience is how long a datagram may go without any acknowledgement before the
// tail is sent again: between minPatience and maxPatience, another time each
// time so that no network comes and goes at the same pace, and two round trips.
// A peer acknowledges within 25 ms, and quic-go has probed twice by then on a
// way that is short.
const (
	minPatience = 100 * time.Millisecond
	maxPatience = 150 * time.Millisecond
)

// acknowledged changes with every acknowledgement of something new: these are
// the measurements of the round trip, to the nanosecond. Packets that come say
// less: on a way that is open in one direction only they come, and nothing that
// is sent arrives. While all measurements are the same, as they may be on virtual
// time, the tail goes out for nothing.
type acknowledged struct{ latest, smoothed, deviation time.Duration }

func (s *session) acknowledged() acknowledged {
	st := s.conn.ConnectionStats()
	return acknowledged{st.LatestRTT, st.SmoothedRTT, st.MeanDeviation}
}

// ask notes that a datagram is about to be sent, which the peer acknowledges
// at once.
func (s *session) ask() {
	select {
	case s.asked <- s.acknowledged():
	default: // asked already
	}
}

// watch sends the tail again and again while a datagram finds no answer, until
// the session ends. So the time without a sign of life, once the way is open,
// is at most the patience, a round trip and the peer's delay: see tails. A peer
// whose address changes during the session is not helped. ctx ends with the
// provider.
func (s *session) watch(ctx context.Context) {
	tail := s.tails.follow(s.conn.RemoteAddr())
	defer s.tails.leave(tail)
	ended := s.conn.Context().Done()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	timer.Stop()
	var before acknowledged
	for waiting := false; ; {
		select {
		case asked := <-s.asked:
			if !waiting {
				before, waiting = asked, true
				timer.Reset(s.patience())
			}
		case <-timer.C:
			if waiting = s.acknowledged() == before; waiting {
				s.again.Add(uint64(s.tails.again(tail)))
				timer.Reset(s.patience())
			}
		case <-ended:
			s.repeatEnd(ctx, tail)
			return
		}
	}
}

// endAgain are the times after which the end of a session is sent again.
var endAgain = [...]time.Duration{20 * time.Millisecond, 100 * time.Millisecond, 300 * time.Millisecond}

// repeatEnd sends the tail of a session that ended here a few times more. quic-go
// tells the peer once, and again only if something comes from there: if that one
// packet is lost, a peer whose way to here is cut goes on to wait until it finds
// the silence out by itself.
func (s *session) repeatEnd(ctx context.Context, tail *tail) {
	var how *transport.CloseError
	if !errors.As(s.Err(), &how) || how.Remote || how.Reset || how.Timeout {
		return
	}
	for _, d := range endAgain {
		t := time.NewTimer(d)
		select {
		case <-t.C:
			s.again.Add(uint64(s.tails.again(tail)))
		case <-ctx.Done():
			t.Stop()
			return
		}
	}
}

// patience draws how long the next acknowledgement is waited for.
func (s *session) patience() time.Duration {
	spread := time.Duration(rand.Int64N(int64(maxPatience - minPatience)))
	return minPatience + spread + 2*s.conn.ConnectionStats().MinRTT
}
