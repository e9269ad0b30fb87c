package quic

import (
	"math/rand/v2"
	"time"
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
// is sent arrives. If two measurements are the same by chance, as they may be
// on virtual time, the tail goes out once for nothing.
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
// whose address changes during the session is not helped.
func (s *session) watch() {
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
			return
		}
	}
}

// patience draws how long the next acknowledgement is waited for.
func (s *session) patience() time.Duration {
	spread := time.Duration(rand.Int64N(int64(maxPatience - minPatience)))
	return minPatience + spread + 2*s.conn.ConnectionStats().MinRTT
}
