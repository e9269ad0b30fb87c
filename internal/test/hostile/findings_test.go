package hostile

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

// An attack repeats one finding of the attack on the product. Its fields describe the
// attempt and the condition of success.
type attack struct {
	finding string
	tries   string
	run     func(*arena) error // an error describes the failure
	waits   bool               // it takes long and mostly waits: others may run beside it
}

// attacks are all of them, in the order in which `make attack` runs them.
var attacks = []attack{
	{"F1", "JOIN and RESUME with addresses and names that are none", attackClaims, false},
	{"F2", "two members report again and again that a healthy node has ended", attackEndReported, true},
	{"F3", "a token takes over a node's identity: UUID, lease, RESUME, HELLO", attackIdentity, false},
	{"F6", "300 identities of one token in a few seconds; sessions that never JOIN", attackSybils, false},
	{"F7", "two members say that a stopped node is reached", attackHidden, false},
	{"F8", "RESUME with HostOver in a stall of the host", attackStall, false},
	{"F9", "a member that never confirms the gossip keys", attackVeto, false},
	{"F10", "RENEW without end", attackRenewals, false},
	{"F11", "an application of another user wants the memory around a window, and to keep it", attackWindow, false},
	{"F12", "strangers: silent TCP from 256 addresses, half-open QUIC, gossip streams, log lines", attackStrangers, false},
	{"F13", "names that write to the terminal, names of others", attackNames, false},
	{"F14", "one user takes all descriptors of the daemon", attackDescriptors, false},
	{"F15", "an application of the same user opens a read-only window for writing", attackReadOnlyWindow, false},
	{"F4", "a token that was revoked, a member that was banned, a certificate that has expired", attackTakenBack, true},
	{"ban", "a node is banned while its applications talk with all others", attackBanned, false},
	{"F5", "gossip that names thousands of places for the host", attackReflection, false},
}

// An arena is where an attack runs.
type arena struct {
	f        *fleet
	w        *witness
	expiring *holdings // of a member that never renews, from the beginning; nil: F4 begins with one
	notes    []string
	ends     []func() // they end everything that the attack has started
}

// note records an event for the timeline.
func (a *arena) note(format string, args ...any) {
	a.notes = append(a.notes, fmt.Sprintf(format, args...))
}

// bad returns a member that lives and ends with the attack.
func (a *arena) bad(name string) (*badMember, *badSession, error) {
	b, s, err := a.f.bad(name)
	if err == nil {
		a.ends = append(a.ends, b.close)
	}
	return b, s, err
}

// enrolled returns a member that has enrolled and has no incarnation.
func (a *arena) enrolled(name string) (*badMember, error) {
	token, err := a.f.token(1)
	if err != nil {
		return nil, err
	}
	b, err := a.f.enrol(token, name)
	if err == nil {
		a.ends = append(a.ends, b.close)
	}
	return b, err
}

// An outcome is the result of an attack.
type outcome struct {
	Finding string        `json:"finding"`
	Tries   string        `json:"tries"`
	Notes   []string      `json:"notes,omitempty"`
	Took    time.Duration `json:"took_ns"`
	Held    bool          `json:"held"`
	Broken  string        `json:"broken,omitempty"`
	Seen    seen          `json:"honest_applications"`
	Deaths  int           `json:"daemons_died"`
}

// try runs an attack, ends its processes and sessions, and checks its effect on honest
// nodes and applications.
func (a *arena) try(x attack) outcome {
	a.w.take()
	a.notes, a.ends = nil, nil
	began := time.Now()
	err := x.run(a)
	for i := len(a.ends) - 1; i >= 0; i-- {
		a.ends[i]()
	}
	time.Sleep(200 * time.Millisecond) // by now honest nodes have received every report about it
	o := outcome{Finding: x.finding, Tries: x.tries, Notes: a.notes, Took: time.Since(began), Seen: a.w.take()}
	for _, m := range a.f.honest() {
		if !m.running() {
			o.Deaths++
		}
	}
	err = errors.Join(err, a.f.check(), o.Seen.err())
	if o.Held = err == nil; !o.Held {
		o.Broken = strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	return o
}

// TestFinding runs each attack against a fleet of its own.
func TestFinding(t *testing.T) {
	for _, x := range attacks {
		t.Run(x.finding, func(t *testing.T) {
			if x.waits {
				t.Parallel()
			}
			f := newFleet(t, 3)
			a := &arena{f: f, w: f.watch()}
			o := a.try(x)
			for _, n := range o.Notes {
				t.Log(n)
			}
			if !o.Held {
				t.Errorf("%s: %s: %s", x.finding, x.tries, o.Broken)
			}
		})
	}
}

// during returns a context that ends after d.
func during(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), d)
}

// goesOn returns an error if m is not the incarnation that it was.
func (m *machine) goesOn(as addr.Incarnation) error {
	st, err := m.status()
	if err != nil {
		return fmt.Errorf("%s: %w", m.name, err)
	}
	if incarnationOf(st) != as {
		return fmt.Errorf("%s lived as %v, and is now %v", m.name, as, incarnationOf(st))
	}
	return nil
}
