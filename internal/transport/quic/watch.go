package quic

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/wait"
)

// Patience is how long a datagram may stay unacknowledged before the tail is resent: a random time
// between minPatience and maxPatience, so that it does not match the rhythm of a flapping network,
// plus two round trips. A peer acknowledges within 25 ms, and on a short path quic-go has sent two
// probes by then.
const (
	minPatience = 100 * time.Millisecond
	maxPatience = 150 * time.Millisecond
)

// acknowledged changes with every acknowledgement of new packets: it holds the measurements of the
// round trip, to the nanosecond. Received packets prove less: on a path that is open in one
// direction only they arrive, but no sent packet does. While all measurements are equal, as they
// may be on virtual time, the tail is resent needlessly.
type acknowledged struct{ latest, smoothed, deviation time.Duration }

func (s *session) acknowledged() acknowledged {
	st := s.conn.ConnectionStats()
	return acknowledged{st.LatestRTT, st.SmoothedRTT, st.MeanDeviation}
}

// ask signals that a datagram is about to be sent, which the peer acknowledges at once.
func (s *session) ask() {
	select {
	case s.asked <- s.acknowledged():
	default: // already signaled
	}
}

// watch resends the tail repeatedly while a datagram is unacknowledged, until the session ends. So
// once the path is open, the silence lasts at most the patience, a round trip and the peer's delay:
// see tails. It does not help a peer whose address changes during the session. ctx ends with the
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

// endAgain are the delays after which the end of a session is resent.
var endAgain = [...]time.Duration{20 * time.Millisecond, 100 * time.Millisecond, 300 * time.Millisecond}

// repeatEnd resends the tail of a session that this side ended a few times. quic-go sends the end
// once, and again only after a packet of the peer: if that one packet is lost, a peer that cannot
// reach this node would wait for its own timeout.
func (s *session) repeatEnd(ctx context.Context, tail *tail) {
	var how *transport.CloseError
	if !errors.As(s.Err(), &how) || how.Remote || how.Reset || how.Timeout {
		return
	}
	for _, d := range endAgain {
		if !wait.For(ctx.Done(), d) {
			return
		}
		s.again.Add(uint64(s.tails.again(tail)))
	}
}

// patience returns a random time to wait for the next acknowledgement.
func (s *session) patience() time.Duration {
	spread := time.Duration(rand.Int64N(int64(maxPatience - minPatience)))
	return minPatience + spread + 2*s.conn.ConnectionStats().MinRTT
}
