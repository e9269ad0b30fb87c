// Package portmap is the port table of one node: the bound ports, the privilege to bind them, and
// the port that Bind chooses. It also has the queue of requests at a listening port. It knows no
// endpoint.
package portmap

import (
	"iter"
	"math/bits"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/status"
)

const (
	ports    = 1 << 16
	wordBits = 64
	words    = ports / wordBits
	groups   = words / wordBits
)

// A Table counts the holders of each port of one node. Listeners, connectors and accepted endpoints
// share it. The zero Table has every port free. It is not safe for concurrent use.
type Table struct {
	used [words]uint64  // one bit a port
	full [groups]uint64 // one bit a word of used: all its ports are in use
	refs map[addr.Port]int

	// Invariant: a port's bit in used is set exactly if refs[port] > 0.
}

// New returns a table with every port free.
func New() *Table { return new(Table) }

// CheckPrivilege returns status.Access for a port below addr.AdminEnd that a caller without
// privilege names. scif_bind checks it before everything else, the endpoint's state included.
func CheckPrivilege(port addr.Port, admin bool) error {
	if 0 < port && port < addr.AdminEnd && !admin {
		return status.Access
	}
	return nil
}

// Bind takes port, with one holder, and returns it. Port 0 takes the lowest free port from
// addr.FirstEphemeral, and if there is none the lowest from addr.ReservedEnd. The error is
// status.Access for a port below addr.AdminEnd without admin, status.Invalid for a port in use, and
// status.NoSpace if no port is left to choose.
func (t *Table) Bind(port addr.Port, admin bool) (addr.Port, error) {
	return t.BindAllowed(port, admin, nil)
}

// BindAllowed is Bind, but chooses only ports that allowed permits; nil permits all.
func (t *Table) BindAllowed(port addr.Port, admin bool, allowed func(addr.Port) bool) (addr.Port, error) {
	if err := CheckPrivilege(port, admin); err != nil {
		return 0, err
	}
	if port == 0 {
		var ok bool
		if port, ok = t.choose(allowed); !ok {
			return 0, status.NoSpace
		}
	} else if t.refs[port] > 0 {
		return 0, status.Invalid
	}
	if t.refs == nil {
		t.refs = make(map[addr.Port]int)
	}
	t.refs[port] = 1
	t.mark(port)
	return port, nil
}

// Retain adds a holder to a bound port: an endpoint accepted from it.
func (t *Table) Retain(port addr.Port) {
	if t.refs[port] == 0 {
		panic("BUG: portmap: Retain of a free port")
	}
	t.refs[port]++
}

// Release removes a holder from a bound port and reports whether it was the last one. The port can
// then be bound again at once.
func (t *Table) Release(port addr.Port) (free bool) {
	n := t.refs[port]
	if n == 0 {
		panic("BUG: portmap: Release of a free port")
	}
	if n > 1 {
		t.refs[port] = n - 1
		return false
	}
	delete(t.refs, port)
	t.clear(port)
	return true
}

// Holders returns the number of holders of port; 0 is a free port.
func (t *Table) Holders(port addr.Port) int { return t.refs[port] }

// Len returns how many ports are bound.
func (t *Table) Len() int { return len(t.refs) }

// Bound returns the bound ports, ascending.
func (t *Table) Bound() iter.Seq[addr.Port] {
	return func(yield func(addr.Port) bool) {
		for w, set := range t.used {
			for ; set != 0; set &= set - 1 {
				if !yield(addr.Port(w*wordBits + bits.TrailingZeros64(set))) {
					return
				}
			}
		}
	}
}

// choose returns the lowest free port that is allowed: from addr.FirstEphemeral,
// else from addr.ReservedEnd.
func (t *Table) choose(allowed func(addr.Port) bool) (addr.Port, bool) {
	for _, first := range []addr.Port{addr.FirstEphemeral, addr.ReservedEnd} {
		for p, ok := t.lowestFree(first); ok; p, ok = t.lowestFree(p + 1) {
			if allowed == nil || allowed(p) {
				return p, true
			}
			if p == ports-1 {
				break
			}
		}
	}
	return 0, false
}

// lowestFree returns the lowest free port from first on.
func (t *Table) lowestFree(first addr.Port) (addr.Port, bool) {
	w := int(first) / wordBits
	if open := ^t.used[w] &^ (1<<(first%wordBits) - 1); open != 0 {
		return addr.Port(w*wordBits + bits.TrailingZeros64(open)), true
	}
	w++
	for g := w / wordBits; g < groups; g++ {
		open := ^t.full[g]
		if g == w/wordBits {
			open &^= 1<<(w%wordBits) - 1
		}
		if open != 0 {
			w := g*wordBits + bits.TrailingZeros64(open)
			return addr.Port(w*wordBits + bits.TrailingZeros64(^t.used[w])), true
		}
	}
	return 0, false
}

func (t *Table) mark(port addr.Port) {
	w := int(port) / wordBits
	t.used[w] |= 1 << (port % wordBits)
	if t.used[w] == ^uint64(0) {
		t.full[w/wordBits] |= 1 << (w % wordBits)
	}
}

func (t *Table) clear(port addr.Port) {
	w := int(port) / wordBits
	t.used[w] &^= 1 << (port % wordBits)
	t.full[w/wordBits] &^= 1 << (w % wordBits)
}
