package verdict

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// A plan is one hostile schedule: a cluster, the faults that happen to it, and
// the acts of its hostile members. The same plan gives the same run.
type plan struct {
	seed    uint64
	honest  int // members beside the host
	hostile int
	partial PartialPolicy
	acts    []act // ascending by at
}

// An act is one thing that happens. Acts of hostile members are left out of
// the control run.
type act struct {
	at   time.Duration // since the cluster is whole
	do   actKind
	who  int           // which hostile member; -1: all of them
	whom int           // which honest member, counted around; -1: all
	long time.Duration // of acts that last
	salt uint64        // seeds all other random values
}

// An actKind is the kind of an act.
type actKind uint8

const (
	// Faults of honest machines.
	hostRestarts  actKind = iota // crashes, and starts again after long
	hostStalls                   // stands still for long
	crashes                      // a member crashes; starts again after long, unless that is 0
	isIsolated                   // a member is cut off from all others for long
	pauses                       // a member stands still for long
	loseEachOther                // two members lose their link for long
	joinsAnew                    // a new machine starts

	// Acts of hostile members.
	reportsOne         // all evidence about one
	reportsAll         // one kind of evidence about all
	endsOne            // EndAnnounced about one
	endsAll            // EndAnnounced about all
	answersChecks      // for long: whatever is checked is reached, or is not
	acksAll            // removals that were never reported
	leavesOthers       // Leave of another incarnation
	pingsWildly        // wild incarnations, nonces, versions
	syncs              // a storm of Sync
	joins              // Join again, with wild claims
	resumes            // Resume again: own incarnations, old and new
	saysHostOver       // Resume with the end of the host's incarnation
	spreadsFalseGossip // false gossip, taken back after a while
	keepsFalseGossip   // the same for long
	answersNone        // no packet of the data path is answered for long
	keepsBack          // sends no Ack, CheckResult or Report for long
	replays            // its earlier messages
	secondSession      // a session beside that of its member
	reportsLoss        // asymmetric loss: that it receives nothing from the host
	losesSome          // its links to one honest member, or to half of them, for long
	baits              // both: some give it up while there is no host, and it gives up none
	startsAnew         // its process: a new epoch
	reconnects         // ends its session
	actKinds
)

var actNames = [actKinds]string{"host restarts", "host stalls", "crashes", "is isolated", "pauses", "lose each other", "joins anew",
	"reports one", "reports all", "reports end of one", "reports end of all", "answers checks", "acks all", "leaves others", "pings wildly", "syncs",
	"joins", "resumes", "claims host over", "spreads false gossip", "keeps false gossip", "answers none", "keeps back", "replays",
	"second session", "reports loss", "loses some", "baits", "starts anew", "reconnects"}

func (d actKind) hostile() bool { return d >= reportsOne }

func (a act) String() string {
	s := fmt.Sprintf("%8v %s", a.at, actNames[a.do])
	if a.do.hostile() {
		s += fmt.Sprintf(" who=%d", a.who)
	}
	return s + fmt.Sprintf(" whom=%d long=%v salt=%d", a.whom, a.long, a.salt)
}

// String returns the whole plan, one act a line.
func (p plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "VERDICT_SEED=%d: a host, %d honest and %d hostile members, partial policy %d\n", p.seed, p.honest, p.hostile, p.partial)
	for _, a := range p.acts {
		fmt.Fprintf(&b, "  %s\n", a)
	}
	return b.String()
}

// newPlan makes the plan of a seed: some slots, each with a fault and with
// words around it.
func newPlan(seed uint64) plan {
	rng := rand.New(rand.NewPCG(seed, 3))
	members := 3 + rng.IntN(5)
	switch rng.IntN(20) {
	case 0:
		members = 8 + rng.IntN(25)
	case 1, 2:
		members = 8 + rng.IntN(5)
	}
	p := plan{seed: seed, hostile: 1 + rng.IntN(2)}
	p.honest = members - p.hostile
	if rng.IntN(4) == 0 {
		p.partial = PartialEvict
	}
	at := 500 * time.Millisecond
	for range 2 + rng.IntN(2) {
		at = p.slot(rng, at)
	}
	p.sort()
	return p
}

func (p *plan) sort() {
	slices.SortStableFunc(p.acts, func(a, b act) int { return int(a.at - b.at) })
}

// between returns a time from a to b.
func between(rng *rand.Rand, a, b time.Duration) time.Duration {
	return a + time.Duration(rng.Int64N(int64(b-a)))
}

// slot adds a fault and words about it, and returns when the next may begin.
func (p *plan) slot(rng *rand.Rand, at time.Duration) time.Duration {
	victim := rng.IntN(p.honest)
	f := p.fault(rng, at, victim)
	for range 3 + rng.IntN(12) {
		p.acts = append(p.acts, p.nearFault(rng, at, f, victim))
	}
	return at + f + 5*time.Second
}

// fault adds the slot's fault, and returns how long it lasts. A fault is either
// well below the bounds of detection or well beyond them: a removal near a bound
// does not show its cause.
func (p *plan) fault(rng *rand.Rand, at time.Duration, victim int) time.Duration {
	add := func(d actKind, long time.Duration) time.Duration {
		p.acts = append(p.acts, act{at: at, do: d, whom: victim, long: long, salt: rng.Uint64()})
		return long
	}
	switch rng.IntN(14) {
	default: // quiet times
		return 0
	case 0, 1:
		return add(hostRestarts, between(rng, 30*time.Millisecond, 2500*time.Millisecond))
	case 2:
		return add(hostStalls, between(rng, 200*time.Millisecond, 950*time.Millisecond))
	case 3, 4: // noticed by the host alone
		return add(hostStalls, between(rng, 1250*time.Millisecond, 1450*time.Millisecond))
	case 5:
		return add(hostStalls, between(rng, 5*time.Second, 6*time.Second))
	case 6:
		add(crashes, 0)
		return 0
	case 7:
		return add(crashes, between(rng, 20*time.Millisecond, 3*time.Second))
	case 8:
		return add(isIsolated, between(rng, 5*time.Second, 6*time.Second))
	case 9:
		return add(pauses, between(rng, 100*time.Millisecond, 850*time.Millisecond))
	case 10:
		return add(joinsAnew, 0)
	case 11: // a member ends while there is no host
		add(crashes, 0)
		return add(hostRestarts, between(rng, time.Second, 5*time.Second))
	case 12: // members lose each other while there is no host
		add(loseEachOther, between(rng, 4*time.Second, 6*time.Second))
		return add(hostRestarts, between(rng, 3*time.Second, 5*time.Second))
	}
}

// nearFault returns something that a hostile member sends or does around a fault
// that began at at and lasts for long: mostly soon after its end.
func (p *plan) nearFault(rng *rand.Rand, at, long time.Duration, victim int) act {
	a := act{do: reportsOne + actKind(rng.IntN(int(actKinds-reportsOne))), who: rng.IntN(p.hostile), whom: victim, salt: rng.Uint64()}
	a.long = between(rng, 50*time.Millisecond, 3*time.Second)
	switch rng.IntN(5) {
	case 0:
		a.at = at - 400*time.Millisecond + between(rng, 0, long+4500*time.Millisecond)
	case 1:
		a.at = at + between(rng, 0, long+100*time.Millisecond)
	case 2: // all through it
		a.at = at - 100*time.Millisecond + between(rng, 0, time.Second)
		a.long += long
	default:
		a.at = at + long + between(rng, 0, 2*time.Second)
	}
	if rng.IntN(3) == 0 {
		a.who = -1
	}
	switch rng.IntN(4) {
	case 0:
		a.whom = rng.IntN(p.honest)
	case 1:
		a.whom = -1
	}
	return a
}

// planOf reads a plan out of any bytes: a byte or two for the cluster, then
// eight for each act.
func planOf(data []byte) plan {
	if len(data) < 3 {
		return plan{honest: 2, hostile: 1}
	}
	p := plan{seed: uint64(data[0]), hostile: 1 + int(data[1]>>4)%2, partial: PartialPolicy(data[2] & 1)}
	p.honest = 3 - p.hostile + int(data[1]&15)%8
	data = data[3:]
	for at := 500 * time.Millisecond; len(data) >= 8 && len(p.acts) < 64; data = data[8:] {
		at += time.Duration(data[0]) * 10 * time.Millisecond
		a := act{at: at, do: reportsOne + actKind(data[1])%(actKinds-reportsOne), who: int(data[2]>>4)%(p.hostile+1) - 1,
			whom: int(data[2]&15)%(p.honest+1) - 1, long: time.Duration(data[3]) * 16 * time.Millisecond,
			salt: uint64(binary.BigEndian.Uint32(data[4:]))}
		if data[1] >= 240 && at < 20*time.Second { // a fault, then quiet enough for it to be distinguished from the next
			rng := rand.New(rand.NewPCG(a.salt, 4))
			at += p.fault(rng, at, max(0, a.whom))
			if data[1]&1 == 0 {
				at += 5 * time.Second
			}
			continue
		}
		p.acts = append(p.acts, a)
	}
	p.sort()
	return p
}
