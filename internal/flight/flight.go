// Package flight records what has happened to a node: the ends of its links, paths and
// connections with their causes, and the verdicts about nodes. It keeps the last of
// them in bounded memory, for the moment in which somebody asks what happened.
package flight

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

// A Kind says what an event is about.
type Kind uint8

const (
	// Cluster: nodes that come and go, and links to them.
	Cluster Kind = iota
	// Conn: connections and their paths. An application can make as many as it likes:
	// they push out only each other.
	Conn
	kinds
)

const (
	// Kept is how many events of each kind are kept at most.
	Kept = 2048
	// maxDetail bounds the text of an event, in bytes. With it all events together
	// take 1.5 MiB at most.
	maxDetail = 256
)

// An Event is one thing that has happened.
type Event struct {
	Seq    uint64 // counts the events of a recorder, from 1
	Time   time.Time
	Event  string    // a word, like link-down
	Peer   addr.Life // whom it concerns; the zero Life: nobody in particular
	Detail string
}

// A Recorder keeps events. Its methods may be called from any goroutine, and hold a lock
// for no longer than it takes to copy an event. A nil one records nothing.
type Recorder struct {
	now func() time.Time

	mu   sync.Mutex // guards the fields below
	seq  uint64
	ring [kinds][]Event
	next [kinds]int // where the next one goes, once the ring is full
}

// New returns a recorder whose events have the times of now.
func New(now func() time.Time) *Recorder { return &Recorder{now: now} }

// Note records an event.
func (r *Recorder) Note(k Kind, event string, peer addr.Life, detail string) {
	if r == nil {
		return
	}
	if len(detail) > maxDetail {
		detail = strings.ToValidUTF8(detail[:maxDetail], "")
	}
	detail = strings.Clone(detail) // not what it is a part of
	at := r.now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seq++
	e := Event{r.seq, at, event, peer, detail}
	if len(r.ring[k]) < Kept {
		r.ring[k] = append(r.ring[k], e)
		return
	}
	r.ring[k][r.next[k]] = e
	r.next[k] = (r.next[k] + 1) % Kept
}

// Since returns the events that are kept, in order: those behind seq whose time is not
// before from.
func (r *Recorder) Since(seq uint64, from time.Time) []Event {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	var all []Event
	for _, ring := range r.ring {
		for _, e := range ring {
			if e.Seq > seq && !e.Time.Before(from) {
				all = append(all, e)
			}
		}
	}
	r.mu.Unlock()
	slices.SortFunc(all, func(a, b Event) int { return int(a.Seq) - int(b.Seq) })
	return all
}
