package membership

import "time"

// maxHostAddresses bounds the addresses at which the host is looked for at a time,
// and maxGossiped those of them that only gossip names, which are asked no more
// often than gossipedEvery.
const (
	maxHostAddresses = 8
	maxGossiped      = 3
	gossipedEvery    = time.Second
)

// waitsEvery is how often a node that waits for its host logs it.
const waitsEvery = time.Minute

// A hostSearch is how a node looks for its host. Owned by the loop.
type hostSearch struct {
	dials    int       // at addresses that only gossip names, counted
	dialedAt time.Time // when such addresses were dialed last
	warnedAt time.Time // when it was last logged that the host is not reached; zero: it was reached
}

// turn returns the addresses that only gossip names with another one in front each time; none
// if such addresses were dialed just now.
func (h *hostSearch) turn(gossiped []string, now time.Time) []string {
	if len(gossiped) == 0 || now.Sub(h.dialedAt) < gossipedEvery {
		return nil
	}
	h.dialedAt = now
	h.dials++
	first := h.dials % len(gossiped)
	return append(gossiped[first:len(gossiped):len(gossiped)], gossiped[:first]...)
}

// warn reports whether to log that the host is not reached: at once if the node has no
// incarnation without it, and every minute. That a node with one has lost it is an event.
func (h *hostSearch) warn(now time.Time, lives bool) bool {
	if h.warnedAt.IsZero() && lives {
		h.warnedAt = now
	}
	if !h.warnedAt.IsZero() && now.Sub(h.warnedAt) < waitsEvery {
		return false
	}
	h.warnedAt = now
	return true
}
