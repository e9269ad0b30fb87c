// Package flight records the past events of a node: the ends of its links, paths and
// connections with their causes, and the verdicts about nodes. It keeps the last of
// them in bounded memory for later questions.
package flight

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

// A Kind is the subject of an event.
type Kind uint8

const (
	// Cluster: nodes that come and go.
	Cluster Kind = iota
	// Link: links to nodes. Those that are alike are counted together.
	Link
	// Conn: connections and their paths. An application can make as many as it likes:
	// they push out only each other.
	Conn
	// Failed: failed attempts of nodes and applications. Those that are alike
	// are counted together.
	Failed
	kinds
)

const (
	// Kept is how many events of each kind are kept at most.
	Kept = 1024
	// maxDetail bounds the text of an event, in bytes. With it all events together
	// take 2 MiB at most.
	maxDetail = 256
	// alike is for how long an event is counted with one like it.
	alike = time.Minute
	// different is how many events of one name a node can have in that time: one more
	// takes the place of the last of them, whatever its detail.
	different = 8
)

// An Event is one thing that has happened, Count times up to Time.
type Event struct {
	Seq    uint64 // number of the latest call of Note that it counts, from 1
	Time   time.Time
	Event  string           // a word, like link-down
	Peer   addr.Incarnation // the node that the event concerns; zero: none in particular
	Name   string           // of the peer, if that is known
	Detail string
	Count  uint64
}

// A Recorder keeps events. Its methods may be called from any goroutine, and hold a lock
// for no longer than it takes to copy an event. A nil one records nothing.
type Recorder struct {
	now func() time.Time

	mu    sync.Mutex // guards the fields below
	seq   uint64
	ring  [kinds][]Event
	next  [kinds]int // where the next one goes, once the ring is full
	count map[string]uint64
}

// New returns a recorder whose events have the times of now.
func New(now func() time.Time) *Recorder {
	return &Recorder{now: now, count: make(map[string]uint64)}
}

// Note records an event. Its word is one of a fixed list.
func (r *Recorder) Note(k Kind, event string, peer addr.Incarnation, name, detail string) {
	if r == nil {
		return
	}
	e := Event{Time: r.now(), Event: event, Peer: peer, Name: cut(name), Detail: cut(detail), Count: 1}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seq++
	r.count[event]++
	e.Seq = r.seq
	if k == Link || k == Failed {
		if old := like(r.ring[k], e); old != nil {
			e.Count += old.Count
			*old = e
			return
		}
	}
	if len(r.ring[k]) < Kept {
		r.ring[k] = append(r.ring[k], e)
		return
	}
	r.ring[k][r.next[k]] = e
	r.next[k] = (r.next[k] + 1) % Kept
}

// cut returns a text of its own, of bounded length.
func cut(text string) string {
	if len(text) > maxDetail {
		text = strings.ToValidUTF8(text[:maxDetail], "")
	}
	return strings.Clone(text)
}

// like returns the event that e is counted with, nil if it is one of its own.
func like(ring []Event, e Event) *Event {
	var last *Event
	others := 0
	for i := range ring {
		old := &ring[i]
		if old.Peer.Node != e.Peer.Node || old.Event != e.Event || e.Time.Sub(old.Time) > alike {
			continue
		}
		if old.Peer == e.Peer && old.Name == e.Name && old.Detail == e.Detail {
			return old
		}
		if others++; last == nil || old.Seq > last.Seq {
			last = old
		}
	}
	if others < different {
		return nil
	}
	return last
}

// Count returns how often an event of that word was recorded, kept or not.
func (r *Recorder) Count(event string) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.count[event]
}

// Since returns the events that are kept, in order: those behind seq whose time is not
// before from.
func (r *Recorder) Since(seq uint64, from time.Time) []Event {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if seq == r.seq {
		return nil
	}
	var all []Event
	for _, ring := range r.ring {
		for _, e := range ring {
			if e.Seq > seq && !e.Time.Before(from) {
				all = append(all, e)
			}
		}
	}
	return inOrder(all)
}

// Last returns the last most events of each kind, in order.
func (r *Recorder) Last(most int) []Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []Event
	for _, ring := range r.ring {
		kind := inOrder(slices.Clone(ring))
		all = append(all, kind[max(0, len(kind)-most):]...)
	}
	return inOrder(all)
}

// inOrder sorts events by when they happened last.
func inOrder(all []Event) []Event {
	slices.SortFunc(all, func(a, b Event) int { return cmp.Compare(a.Seq, b.Seq) })
	return all
}
