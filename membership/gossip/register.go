package gossip

import (
	"bytes"
	"errors"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

// Bounds of the members that are not proven: a member with the key can gossip as many as it likes.
// memberlist probes, one after the other, every member that it believes in, so that made-up ones
// take their turns from the others. So as soon as one is proven here, because the host's table has
// come, it believes in proven ones only. The others are unproven: the last ones are remembered, for
// one may be the host.
const (
	maxUnproven = 256 // remembered
	maxTrusted  = 64  // of them, that memberlist may believe in as long as none is proven
	// reuseAfter is how long one of those still counts when it is gone: memberlist
	// has then forgotten it as well.
	reuseAfter = 5 * time.Minute
	// unprovenKeeps is how long one is remembered at least, when others come, and
	// unprovenLasts how long without another report of it.
	unprovenKeeps = 10 * time.Second
	unprovenLasts = time.Minute
	// maxStarts bounds the starts of one UUID, proven or not.
	maxStarts = 4

	forgetProven   = 24 * time.Hour // a member that is gone for longer is not looked for
	forgetUnproven = time.Hour
)

var (
	errTooMany    = errors.New("too many members")
	errUnproven   = errors.New("no node there has proved that it is of the cluster")
	errManyStarts = errors.New("too many starts of one node")
)

// A record is the knowledge about another member.
type record struct {
	member  Member
	proven  bool      // when it was last looked at
	trusted bool      // memberlist may believe in it
	seen    bool      // there was gossip about it
	gone    bool      // or was never there
	at      time.Time // of the last change, and of the last report while unproven
}

// A register holds the members that there is gossip about.
//
// Invariant: len(records) ≤ max; starts counts the records of each UUID; proven,
// unproven and onTrust count those that are, those that are not, and those that are
// trusted all the same.
type register struct {
	max                       int
	records                   map[Key]*record
	starts                    map[addr.UUID]int
	proven, unproven, onTrust int
}

func newRegister(max int) *register {
	return &register{max: max, records: make(map[Key]*record), starts: make(map[addr.UUID]int)}
}

func (r *register) len() int { return len(r.records) }

// admit decides whether memberlist may believe that m is alive. It returns the
// changes that come of it if it may not.
func (r *register) admit(m Member, proven bool, now time.Time) (changes []Change, err error) {
	o := r.records[m.Key()]
	if o == nil {
		if changes, err = r.makeRoom(m, proven, now); err != nil {
			return nil, err
		}
		o = &record{member: m, proven: proven, gone: true, at: now}
		r.add(o)
	}
	r.setProven(o, proven)
	if r.mayTrust(o, now) {
		r.count(o, -1)
		o.trusted = true
		r.count(o, 1)
		return changes, nil
	}
	return append(changes, o.recordUnproven(m, now)...), errUnproven
}

// makeRoom makes room for a record of m. It never drops one that is proven for one
// that is not.
func (r *register) makeRoom(m Member, proven bool, now time.Time) (changes []Change, err error) {
	if r.starts[m.UUID] >= maxStarts {
		gone := r.oldest(now, 0, func(o *record) bool { return o.gone && o.member.UUID == m.UUID })
		if gone == nil {
			return nil, errManyStarts
		}
		r.remove(gone)
	}
	idle := func(o *record) bool { return !o.proven && (o.gone || !o.trusted) }
	var victim *record
	switch {
	case !proven && r.unproven >= maxUnproven:
		if victim = r.oldest(now, unprovenKeeps, idle); victim == nil {
			return nil, errUnproven
		}
	case len(r.records) >= r.max:
		victim = r.oldest(now, 0, idle)
		if victim == nil && proven {
			victim = r.oldest(now, 0, func(o *record) bool { return o.gone })
		}
		if victim == nil {
			return nil, errTooMany
		}
	}
	if victim != nil {
		r.remove(victim)
		changes = victim.end()
	}
	return changes, nil
}

// mayTrust reports whether memberlist may believe in o.
func (r *register) mayTrust(o *record, now time.Time) bool {
	switch {
	case o.proven:
		return true
	case r.proven > 0:
		return false
	case o.trusted || r.onTrust < maxTrusted:
		return true
	}
	forgotten := r.oldest(now, reuseAfter, func(o *record) bool { return o.gone && o.trusted && !o.proven })
	if forgotten == nil {
		return false
	}
	r.remove(forgotten)
	return true
}

// recordUnproven records gossip about a member that is alive, which memberlist is not to believe.
func (o *record) recordUnproven(m Member, now time.Time) []Change {
	if o.trusted {
		return nil // memberlist handles it
	}
	kind := Updated
	switch {
	case o.gone:
		kind = Seen
	case m.Address == o.member.Address && m.Meta.equal(o.member.Meta):
		o.at = now
		return nil
	}
	o.member, o.seen, o.gone, o.at = m, true, false, now
	return []Change{{Kind: kind, Member: m}}
}

// end returns the last change about a record that is dropped.
func (o *record) end() []Change {
	if o.gone {
		return nil
	}
	return []Change{{Kind: Gone, Member: o.member}}
}

func (m Meta) equal(o Meta) bool {
	x, _ := m.Append(nil)
	y, _ := o.Append(nil)
	return bytes.Equal(x, y)
}

// saw records memberlist's opinion of m. It reports whether m is proven.
func (r *register) saw(m Member, gone bool, now time.Time) (proven bool) {
	o := r.records[m.Key()]
	if o == nil {
		return false // dropped for want of room
	}
	o.member, o.seen, o.gone, o.at = m, true, gone, now
	return o.proven
}

// oldest returns the record for which match is true and that has not changed for
// longest, if for as long as after.
func (r *register) oldest(now time.Time, after time.Duration, match func(*record) bool) (oldest *record) {
	for _, o := range r.records {
		if now.Sub(o.at) >= after && (oldest == nil || o.at.Before(oldest.at)) && match(o) {
			oldest = o
		}
	}
	return oldest
}

// forget drops members that are gone for too long, and unproven ones whose report is not repeated.
func (r *register) forget(now time.Time) (changes []Change) {
	for _, o := range r.records {
		bound := forgetProven
		switch {
		case !o.gone && o.trusted:
			continue
		case !o.trusted:
			bound = unprovenLasts
		case !o.proven:
			bound = forgetUnproven
		}
		if now.Sub(o.at) > bound {
			r.remove(o)
			changes = append(changes, o.end()...)
		}
	}
	return changes
}

// setProven records whether o is proven, which changes with the host's table.
func (r *register) setProven(o *record, proven bool) {
	r.count(o, -1)
	o.proven = proven
	r.count(o, 1)
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
	switch {
	case o.proven:
		r.proven += by
	case o.trusted:
		r.unproven, r.onTrust = r.unproven+by, r.onTrust+by
	default:
		r.unproven += by
	}
}
