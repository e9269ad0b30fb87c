package daemon

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/flight"
)

// recordedEvery is how often the reader of recorded events gets those that are new.
const recordedEvery = 250 * time.Millisecond

// MaxSince is the longest time that events are asked for: all that are kept.
const MaxSince = 365 * 24 * time.Hour

// Recorded returns the kept events of this node that come after the
// event seq, and not before from.
func (d *Daemon) Recorded(seq uint64, from time.Time) []flight.Event {
	return d.record.Since(seq, from)
}

// recordedEvent returns the line about a recorded event.
func recordedEvent(e flight.Event) NodeEvent {
	line := NodeEvent{Time: e.Time, Event: e.Event, Peer: incarnationOf(e), Detail: e.Detail}
	if e.Name != "" {
		line.Detail = colons(strconv.Quote(e.Name), e.Detail)
	}
	if e.Count > 1 {
		line.Count = e.Count
	}
	return line
}

// incarnationOf returns the incarnation that an event is about, empty for none.
func incarnationOf(e flight.Event) string {
	if e.Peer == (addr.Incarnation{}) {
		return ""
	}
	return e.Peer.String()
}

// colons joins the parts that are not empty.
func colons(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), ": ")
}

// recorded streams the events since a time, one JSON object per line, and then, unless
// once is asked for, new events, until the reader goes away or the node ends.
func (a *admin) recorded(w http.ResponseWriter, r *http.Request) {
	since, err := formDuration(r, "since", 0, 0, MaxSince)
	if err != nil {
		a.refuse(w, err)
		return
	}
	out := newJSONLines(w)
	look := time.NewTicker(recordedEvery)
	defer look.Stop()
	from, seq := time.Now().Add(-since), uint64(0)
	for {
		var lines []any
		for _, e := range a.subject.Recorded(seq, from) {
			seq, lines = e.Seq, append(lines, recordedEvent(e))
		}
		if !out.send(lines...) || r.FormValue("once") != "" {
			return
		}
		select {
		case <-look.C:
			from = time.Time{} // the clock may jump
		case <-r.Context().Done():
			return
		}
	}
}

// RecordedEvents calls fn for the kept events of the node within since, and then for new
// events, unless it is asked for the past alone. It returns as [Client.Events] does; the
// end of the past alone is io.EOF.
func (c *Client) RecordedEvents(ctx context.Context, since time.Duration, once bool, fn func(NodeEvent) error) error {
	q := url.Values{"since": {since.String()}}
	if once {
		q.Set("once", "true")
	}
	return streamLines(ctx, c, http.MethodGet, "events?"+q.Encode(), nil, fn)
}
