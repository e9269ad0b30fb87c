package scenario

import "time"

// A Detection is a profile: how soon silence is loss, against how long a busy
// node may pause.
type Detection string

// The profiles.
const (
	Fast   Detection = "fast"
	Normal Detection = "normal"
	Calm   Detection = "calm"
)

// A LostPair is the treatment of two nodes that have lost only each other.
type LostPair string

// The treatments.
const (
	LostPairReset LostPair = "reset" // both stay, without a link
	LostPairEvict LostPair = "evict" // one of them is removed
)

// A Bound is the promise of a profile. The numbers are those of the design, not those
// of the code: the checker compares the code with them.
type Bound struct {
	Crash   time.Duration // from a killed process to NODE_REMOVED at every node, at most
	Silence time.Duration // from the last packet of a silent node to NODE_REMOVED at every node, at most
	Pause   time.Duration // a node that stands still for so long is not removed
	Gap     time.Duration // a network that passes nothing for so long removes no node
	Heal    time.Duration // from the end of a fault to full mesh, at most
	Connect time.Duration // from the end of a fault to a new connection, at most
	Stall   time.Duration // the longest standstill of a connection that no fault touches

	Quarantine time.Duration // the ID of a lost node is given to no other node for so long
}

// Bound returns the promise of the profile.
func (d Detection) Bound() Bound {
	b := Bound{Crash: time.Second, Silence: 3 * time.Second, Pause: 1500 * time.Millisecond, Gap: time.Second,
		Heal: 5 * time.Second, Connect: 5 * time.Second, Stall: 250 * time.Millisecond, Quarantine: 10 * time.Minute}
	switch d {
	case Fast:
		b.Silence, b.Pause = 2*time.Second, time.Second
	case Calm:
		b.Silence, b.Pause, b.Gap = 10*time.Second, 5*time.Second, 5*time.Second
	}
	return b
}

// A Slack is the time that a lab adds to the bounds: real processes share processors
// with everything else, and are observed late.
type Slack struct {
	// Time is added to every time within which something must happen.
	Time time.Duration
	// Order is by how much two records of different goroutines may be out of
	// order: a call that has failed may be written so much after the event that
	// must follow it.
	Order time.Duration
}

// Slack returns the slack of the lab.
func (l Lab) Slack() Slack {
	switch l {
	case Sim:
		return Slack{Time: 0, Order: 0}
	case Compose:
		return Slack{Time: time.Second, Order: 500 * time.Millisecond}
	}
	return Slack{Time: 500 * time.Millisecond, Order: 250 * time.Millisecond}
}
