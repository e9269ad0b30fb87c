package core

import (
	"slices"
	"testing"
	"time"

	"github.com/fabricd/fabricd/portmap"
)

// listening returns a listener at which the requests 1 to n wait. Request 7 becomes endpoint 70.
func listening(n int) *Listener[int, int] {
	l := &Listener[int, int]{Backlog: *portmap.NewBacklog[int](16)}
	for r := range n {
		l.Push(r + 1)
	}
	return l
}

// grants begins the grants that are due, and returns their requests.
func grants(l *Listener[int, int], accepting int, now time.Duration) (begun []int) {
	for r, ok := l.Due(accepting, now); ok; r, ok = l.Due(accepting, now) {
		l.Begin(10*r, now)
		begun = append(begun, r)
	}
	return begun
}

func TestEachCallThatAcceptsHasOneGrant(t *testing.T) {
	l := listening(5)
	if got := grants(l, 0, 0); got != nil {
		t.Errorf("granted %v although no call accepts", got)
	}
	if got := grants(l, 2, 0); !slices.Equal(got, []int{1, 2}) {
		t.Errorf("granted %v for two calls, want the two oldest", got)
	}
	l.End(10, true)
	if e, ok := l.Take(); !ok || e != 10 {
		t.Errorf("took %d, %v, want endpoint 10, which is confirmed", e, ok)
	}
	l.End(20, false)
	if e, ok := l.Take(); ok {
		t.Errorf("took endpoint %d, which was not confirmed", e)
	}
	if got := grants(l, 1, 0); !slices.Equal(got, []int{3}) {
		t.Errorf("granted %v for the call that is left, want request 3", got)
	}
}

// TestSilentRequestersHoldUpNoOther has a call accept among requesters of which none
// confirms, while ever more of them ask.
func TestSilentRequestersHoldUpNoOther(t *testing.T) {
	l := listening(0)
	if got := l.Patience(0); got != 0 {
		t.Errorf("a patience of %v without a grant, want 0", got)
	}
	var at []time.Duration
	for now := time.Duration(0); now <= 500*ms; now += 50 * ms {
		l.Push(int(now/ms) + 1)
		if len(grants(l, 1, now)) > 0 {
			at = append(at, now)
		}
		if want := 250*ms - now%(250*ms); l.Patience(now) != want {
			t.Errorf("at %v a patience of %v, want %v", now, l.Patience(now), want)
		}
	}
	if !slices.Equal(at, []time.Duration{0, 250 * ms, 500 * ms}) {
		t.Errorf("grants at %v, want one every 250 ms", at)
	}
}

func TestACloseEmptiesTheListener(t *testing.T) {
	l := listening(4)
	grants(l, 2, 0)
	l.End(20, true)
	waiting, granting, confirmed := l.Close()
	if !slices.Equal(waiting, []int{3, 4}) || !slices.Equal(granting, []int{10}) || !slices.Equal(confirmed, []int{20}) {
		t.Errorf("requests %v, grants %v and endpoints %v were left, want [3 4], [10], [20]", waiting, granting, confirmed)
	}
	if l.Waiting() != 0 {
		t.Errorf("%d still wait", l.Waiting())
	}
}
