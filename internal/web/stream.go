package web

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/fabricd/fabricd/internal/observe"
)

const (
	// streamsMost bounds the pages that are kept up to date at once.
	streamsMost = 16
	// streamEvery is the time between two states of one stream.
	streamEvery = time.Second
	// streamWrite is how long a browser may take to read one state.
	streamWrite = 10 * time.Second
)

// A state is the content of the page.
type state struct {
	observe.Snapshot
	Findings []observe.Finding `json:"findings"`
}

// streams serves the states of a node as server-sent events, one a second, until the
// reader goes away or the node ends.
type streams struct {
	snapshot func() observe.Snapshot
	watched  func(context.Context)
	free     chan struct{} // a token per stream
}

func newStreams(snapshot func() observe.Snapshot, watched func(context.Context)) *streams {
	return &streams{snapshot: snapshot, watched: watched, free: make(chan struct{}, streamsMost)}
}

func (s *streams) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	select {
	case s.free <- struct{}{}:
		defer func() { <-s.free }()
	default:
		w.Header().Set("Retry-After", "10")
		http.Error(w, fmt.Sprintf("%d pages are open, as many as a node keeps up to date", streamsMost), http.StatusServiceUnavailable)
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	watching.Go(func() { s.watched(ctx) })
	s.serve(ctx, w)
}

// serve sends states until ctx ends, or the reader stops reading.
func (s *streams) serve(ctx context.Context, w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/event-stream")
	control := http.NewResponseController(w)
	tick := time.NewTicker(streamEvery)
	defer tick.Stop()
	for {
		// It fails only on a connection that is gone, and then the write does too.
		_ = control.SetWriteDeadline(time.Now().Add(streamWrite))
		if s.send(w) != nil || control.Flush() != nil {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// send writes one state.
func (s *streams) send(w http.ResponseWriter) error {
	now := s.snapshot()
	text, err := json.Marshal(state{now, observe.Findings(now)})
	if err != nil {
		panic("BUG: web: a state has no JSON: " + err.Error())
	}
	_, err = fmt.Fprintf(w, "event: state\ndata: %s\n\n", text)
	return err
}
