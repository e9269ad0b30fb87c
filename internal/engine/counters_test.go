package engine

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/transport"
)

func TestCausesAreOfAFixedList(t *testing.T) {
	for cause, want := range map[string]string{
		"node removed: crashed": ResetNodeRemoved, silentFor(1500 * time.Millisecond).Error(): ResetLinkSilent,
		(&transport.CloseError{Timeout: true}).Error(): ResetLinkSilent,
		attach.CauseStopped(3):                         ResetNodeStopped, attach.CauseStopped(addr.NoNode): ResetNodeStopped,
		(&transport.CloseError{Remote: true, Reason: attach.CauseStopped(3)}).Error(): ResetNodeStopped,
		attach.CauseDied: ResetApplication, attach.CauseDetached: ResetApplication, attach.CauseAborted: ResetApplication,
		"the peer's node broke the protocol": ResetProtocol, "path silent 3.0 s": ResetPath,
		"whatever a peer says": ResetOther, "": ResetOther,
	} {
		if got := resetKind(cause); got != want {
			t.Errorf("%q is %s, want %s", cause, got, want)
		}
	}
}

func TestResultsOfConnects(t *testing.T) {
	for err, want := range map[error]string{
		nil: ConnectOK, status.Busy: ConnectBacklogFull, status.Refused: ConnectRefused, errNobodyAccepted: ConnectRefused,
		fmt.Errorf("far: %w", status.NoDevice): ConnectNoDevice, errors.New("what else"): ConnectOther,
	} {
		if got := connectResult(err); got != want {
			t.Errorf("%v is %s, want %s", err, got, want)
		}
	}
}

// Every name that is counted is there from the start, so that its rate is known.
func TestCountersBeginWithAllNames(t *testing.T) {
	c := newCounters()
	incoming, outgoing, resets := len(c.c.Incoming), len(c.c.Outgoing), len(c.c.Resets)
	for _, code := range []status.Code{status.OK, status.Refused, status.Busy} {
		c.incoming(incomingResult(code, true))
		c.incoming(incomingResult(code, false))
	}
	for _, err := range []error{nil, status.Busy, status.Refused, status.NoDevice, status.NoMemory} {
		c.outgoing(err)
	}
	for _, cause := range []string{"node removed: x", "link silent", "fabricd of node 1 stopped", "path silent", "y"} {
		c.reset(cause)
	}
	if len(c.c.Incoming) != incoming || len(c.c.Outgoing) != outgoing || len(c.c.Resets) != resets {
		t.Errorf("names were added: %v %v %v", c.c.Incoming, c.c.Outgoing, c.c.Resets)
	}
}

func TestHistogramsCountEachDurationOnce(t *testing.T) {
	h := newHistogram([]time.Duration{time.Millisecond, time.Second})
	for _, d := range []time.Duration{0, time.Millisecond, time.Millisecond + 1, time.Second, time.Hour} {
		h.observe(d)
	}
	if h.Buckets[0] != 2 || h.Buckets[1] != 2 || h.Count != 5 || h.Sum != time.Hour+time.Second+2*time.Millisecond+1 {
		t.Errorf("got %+v", h)
	}
	kept := h.clone()
	h.observe(0)
	if kept.Buckets[0] != 2 {
		t.Error("a copy changes with what it was copied from")
	}
}

func TestRoundTripsAreSmoothed(t *testing.T) {
	var trips roundTrips
	for range 100 {
		trips.add(10 * time.Millisecond)
	}
	trips.add(2 * time.Millisecond)
	if trips.smoothed != 9*time.Millisecond || trips.shortest != 2*time.Millisecond || trips.deviation < time.Millisecond {
		t.Errorf("got %+v", trips)
	}
}

func TestLossIsOfTheLastSeconds(t *testing.T) {
	var l loss
	at := func(packets, lost uint64) transport.Traffic { return transport.Traffic{Packets: packets, Lost: lost} }
	if got := l.percent(at(0, 0)); got != 0 {
		t.Errorf("of nothing: %v", got)
	}
	if got := l.percent(at(100, 3)); got != 3 {
		t.Errorf("before a look: %v, want 3", got)
	}
	l.look(at(1000, 500), lossEvery)
	l.look(at(2000, 500), 2*lossEvery)
	if got := l.percent(at(3000, 520)); got != 1 {
		t.Errorf("since the look before the last: %v, want 1", got)
	}
	if l.due(2*lossEvery+1) || !l.due(3*lossEvery) {
		t.Error("looks come at the wrong times")
	}
	if got := l.percent(at(10, 0)); got != 0 {
		t.Errorf("of a count that went back: %v", got)
	}
}
