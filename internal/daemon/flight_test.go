package daemon

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestWhatHasHappenedIsKept: of a connection between two nodes, one of which is then
// killed, in their order, by the admin socket.
func TestWhatHasHappenedIsKept(t *testing.T) {
	host, node := testHost(t)
	one := startTest(t, node("one"))
	sees(t, host, 1)
	sees(t, one, 0)
	talk(t, one, host)
	c := NewClient(one.cfg.Local.AdminSocket)
	defer c.Close()
	host.Close()
	want := []string{"added", "link-up", "conn-open", "conn-closed", "link-down"}
	var got []string
	ctx, cancel := context.WithTimeout(t.Context(), testLimit)
	defer cancel()
	err := c.RecordedEvents(ctx, time.Hour, false, func(e NodeEvent) error { // the last ones are yet to come
		if got = append(got, e.Event); e.Event == "link-up" && (e.Peer != host.Self().Incarnation.String() || !strings.HasPrefix(e.Detail, "over ")) {
			t.Errorf("%+v", e)
		}
		if contains(got, want) {
			return errFound
		}
		return nil
	})
	if !errors.Is(err, errFound) {
		t.Errorf("got %v and %v, want %v among them", got, err, want)
	}
	stored := 0
	err = c.RecordedEvents(t.Context(), time.Hour, true, func(NodeEvent) error { stored++; return nil })
	if !errors.Is(err, io.EOF) || stored < len(got) {
		t.Errorf("the past alone has %d events, %v", stored, err)
	}
	if err := c.RecordedEvents(t.Context(), -time.Second, true, nil); err == nil || !strings.Contains(err.Error(), "want a duration") {
		t.Errorf("since a time to come: %v", err)
	}
}

var errFound = errors.New("all are there")

// contains reports whether want is a part of got, in its order.
func contains(got, want []string) bool {
	for _, w := range want {
		i := slices.Index(got, w)
		if i < 0 {
			return false
		}
		got = got[i+1:]
	}
	return true
}
