package gossip

import (
	"fmt"
	"time"

	"github.com/hashicorp/memberlist"
)

// A Profile chooses how soon gossip calls a silent member gone, and the cost of that. Changes come
// later than a broken lifeline in every profile.
type Profile string

const (
	// Fast: about 1.4 s with 8 members, 99 of 100 times within 2 s; pauses of
	// 1 s survive.
	Fast Profile = "fast"
	// Normal: about 1.4 s with 8 members, 99 of 100 times within 2.4 s; pauses of
	// 1.2 s survive.
	Normal Profile = "normal"
	// Calm: about 6 s, at most 10 s; pauses of 5 s mostly survive. For many
	// members, or machines that are overloaded as a rule.
	Calm Profile = "calm"
)

// ParseProfile returns the profile named s.
func ParseProfile(s string) (Profile, error) {
	switch p := Profile(s); p {
	case Fast, Normal, Calm:
		return p, nil
	}
	return "", fmt.Errorf("detection %q: want fast, normal or calm", s)
}

// apply sets the profile's figures. Those of Fast and Normal spread a change far more eagerly than
// memberlist's own: with fewer retransmissions some pair of a fresh cluster does not know each
// other for up to a minute. Each interval wakes up an idle process, so none is shorter than its
// purpose needs: a change starts a look at most, a member that is gone is met by the reconnector,
// and queued changes are also on every ping and its answer. Intervals are multiples of each other:
// then one wake-up does for all.
func (p Profile) apply(c *memberlist.Config) {
	c.GossipNodes = 4
	c.RetransmitMult = 8
	c.PushPullInterval = 10 * time.Second
	switch p {
	case Fast:
		c.ProbeInterval = 200 * time.Millisecond
		c.ProbeTimeout = 100 * time.Millisecond
		c.GossipInterval = 50 * time.Millisecond
		c.PushPullInterval = 2 * time.Second
		c.SuspicionMult = 5
		c.SuspicionMaxTimeoutMult = 3
	case Normal:
		// A member calls another one gone by itself, without others to confirm
		// it: the loss of a silent host waits for that.
		c.ProbeInterval = 400 * time.Millisecond
		c.ProbeTimeout = 200 * time.Millisecond
		c.GossipInterval = c.ProbeInterval
		c.SuspicionMult = 2
	default: // Calm: memberlist's figures for a LAN
	}
}
