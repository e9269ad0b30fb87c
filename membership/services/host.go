package services

import (
	"cmp"
	"slices"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

// A Host decides what the host's book holds of what members say, and when it tells them
// of each other. The zero Host has heard nothing. It has one told for each life, and
// callers remove lives that are over: the number of members bounds it.
type Host struct {
	Book
	told  map[addr.Life]*told
	count uint64
}

// A told is what one life has said last.
type told struct {
	order uint64 // of the lives, by their first list
	list  List   // whole
	pace  pace
	owing bool // it is not in the book, or the members have not been told
}

// Take takes a list of the life that its sender has. It is told when Due says so, unless a
// later one has come by then. An earlier one is passed over.
func (h *Host) Take(l List) {
	t := h.told[l.Life]
	if t == nil {
		if h.told == nil {
			h.told = make(map[addr.Life]*told)
		}
		h.count++
		t = &told{order: h.count}
		h.told[l.Life] = t
	}
	if l.Seq > t.list.Seq {
		t.list, t.owing = l, true
	}
}

// Remove forgets a life. Its members hear of its end by itself.
func (h *Host) Remove(life addr.Life) {
	h.Book.Remove(life)
	delete(h.told, life)
	h.oweCut()
}

// oweCut has lists told again that were cut off: there may be room for more of them. It
// reports whether there are some.
func (h *Host) oweCut() (some bool) {
	for _, t := range h.told {
		if !t.owing && len(h.Of(t.list.Life).Services) < len(t.list.Services) {
			t.owing, some = true, true
		}
	}
	return some
}

// Due puts into the book what may be told now, and returns it, cut to the room that there
// is. next is when there will be more; zero: when more is said.
func (h *Host) Due(now time.Time) (lists []List, next time.Time) {
	var all []*told
	for _, t := range h.told {
		if t.owing {
			all = append(all, t)
		}
	}
	slices.SortFunc(all, func(a, b *told) int { return cmp.Compare(a.order, b.order) })
	for _, t := range all {
		if !t.pace.ready(now) {
			if next.IsZero() || t.pace.at().Before(next) {
				next = t.pace.at()
			}
			continue
		}
		t.owing = false
		l := t.list
		room := MaxCluster - h.total + len(h.Of(l.Life).Services)
		l.Services = l.Services[:min(len(l.Services), room)]
		before := h.total
		put := h.Put(l)
		if h.total < before && h.oweCut() {
			next = now // some may have been looked at before this one
		}
		if put {
			t.pace.take(now)
			lists = append(lists, l)
		}
	}
	return lists, next
}
