package gossip

import (
	"errors"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

// Bounds of the members that are not proven: whoever has the key can gossip as many
// as it likes. memberlist probes every member that it believes in, one after the
// other, so that those who are made up take their turns from the others.
const (
	// maxUnproven bounds them as long as no member is proven here, which is so until
	// the host's table has come; then there are as many as proven ones, and
	// minUnproven at least, who may be on their way into the table.
	maxUnproven = 256
	minUnproven = 32
	// reuseAfter is how long one that is gone still counts: memberlist has then
	// forgotten it as well.
	reuseAfter = 5 * time.Minute
	// One that was gone is believed again after returnAfter, twice as long after each
	// time, and an hour at most.
	returnAfter    = 10 * time.Second
	returnAfterMax = time.Hour
	// maxStarts bounds the starts of one UUID, proven or not.
	maxStarts = 4

	forgetProven   = 24 * time.Hour // a member that is gone for longer is not looked for
	forgetUnproven = time.Hour
)

var (
	errTooMany   = errors.New("too many members")
	errUnproven  = errors.New("too many members that nobody has proved to be of the cluster")
	errTooSoon   = errors.New("it was gone, and nobody has proved that it is of the cluster")
	errManyTimes = errors.New("too many starts of one node")
)

// A record is what is known of another member.
type record struct {
	member Member
	seen   bool // there was a rumour about it; else memberlist was only allowed to believe in it
	gone   bool // or was never there
	proven bool // when it was last looked at
	at     time.Time
	ends   int // how often it has gone
}

// A register holds the members that memberlist may believe in.
//
// Invariant: len(records) ≤ max; starts counts the records of each UUID, and
// unproven, proven those that are not and are.
type register struct {
	max              int
	records          map[Key]*record
	starts           map[addr.UUID]int
	unproven, proven int
}

func newRegister(max int) *register {
	return &register{max: max, records: make(map[Key]*record), starts: make(map[addr.UUID]int)}
}

func (r *register) len() int { return len(r.records) }

// admit decides whether memberlist may believe that m is alive, and makes room
// for it. It never makes room for one that is not proven by dropping one that is.
func (r *register) admit(m Member, proven bool, now time.Time) error {
	k := m.Key()
	if old := r.records[k]; old != nil {
		r.setProven(old, proven)
		if !proven && old.gone && old.ends > 0 && now.Sub(old.at) < returnOf(old.ends) {
			return errTooSoon
		}
		return nil
	}
	if r.starts[k.UUID] >= maxStarts && !r.drop(now, 0, func(o *record) bool { return o.member.UUID == k.UUID }) {
		return errManyTimes
	}
	if !proven && r.unproven >= r.unprovenBound() && !r.drop(now, reuseAfter, isUnproven) {
		return errUnproven
	}
	if len(r.records) >= r.max && !r.drop(now, 0, isUnproven) &&
		!(proven && r.drop(now, 0, func(*record) bool { return true })) {
		return errTooMany
	}
	r.add(&record{member: m, gone: true, proven: proven, at: now})
	return nil
}

func isUnproven(o *record) bool { return !o.proven }

// returnOf returns after how long one that has gone so often is believed again.
func returnOf(ends int) time.Duration {
	return min(returnAfter<<min(ends-1, 10), returnAfterMax)
}

func (r *register) unprovenBound() int {
	if r.proven == 0 {
		return min(maxUnproven, r.max)
	}
	return min(max(r.proven, minUnproven), maxUnproven, r.max)
}

// saw records a rumour about m. It reports whether m is proven.
func (r *register) saw(m Member, gone bool, now time.Time) (proven bool) {
	old := r.records[m.Key()]
	if old == nil { // it was dropped while memberlist still believed in it
		old = &record{gone: true}
		if gone {
			return false
		}
		old.member = m
		r.add(old)
	}
	if gone && !old.gone {
		old.ends++
	}
	old.member, old.seen, old.gone, old.at = m, true, gone, now
	return old.proven
}

// drop drops the record for which match is true and that is gone for longest, if
// for longer than after.
func (r *register) drop(now time.Time, after time.Duration, match func(*record) bool) bool {
	var oldest *record
	for _, o := range r.records {
		if o.gone && now.Sub(o.at) >= after && match(o) && (oldest == nil || o.at.Before(oldest.at)) {
			oldest = o
		}
	}
	if oldest == nil {
		return false
	}
	r.remove(oldest)
	return true
}

// forget drops what is gone for too long.
func (r *register) forget(now time.Time) {
	for _, o := range r.records {
		bound := forgetUnproven
		if o.proven {
			bound = forgetProven
		}
		if o.gone && now.Sub(o.at) > bound {
			r.remove(o)
		}
	}
}

// setProven records whether o is proven, which changes with the host's table.
func (r *register) setProven(o *record, proven bool) {
	if o.proven != proven {
		r.count(o, -1)
		o.proven = proven
		r.count(o, 1)
	}
}

func (r *register) add(o *record) {
	r.records[o.member.Key()] = o
	r.starts[o.member.UUID]++
	r.count(o, 1)
}

func (r *register) remove(o *record) {
	delete(r.records, o.member.Key())
	if r.starts[o.member.UUID]--; r.starts[o.member.UUID] == 0 {
		delete(r.starts, o.member.UUID)
	}
	r.count(o, -1)
}

func (r *register) count(o *record, by int) {
	if o.proven {
		r.proven += by
	} else {
		r.unproven += by
	}
}
