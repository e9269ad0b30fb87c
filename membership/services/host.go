package services

import (
	"cmp"
	"slices"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
)

// A Host decides which lists of members enter the host's book, and when it sends them
// to the others. The zero Host has received no list. It has one record for each incarnation,
// and callers remove incarnations that are over: the number of members bounds it.
type Host struct {
	Book
	records map[addr.Incarnation]*record
	count   uint64
}

// A record is the last list of one incarnation.
type record struct {
	order     uint64 // of the incarnations, by their first list
	announced List   // whole
	list      List   // the part of it that the incarnation may serve
	pace      pace
	pending   bool // it is not in the book, or was not sent to the members
	cut       bool // the last list sent was shorter than the incarnation's own
}

// Bars reports whether an incarnation may not serve a name.
type Bars func(incarnation addr.Incarnation, name string) bool

// without returns the list without the names that bars names; nil bars none.
func (l List) without(bars Bars) List {
	if bars != nil {
		l.Services = slices.DeleteFunc(slices.Clone(l.Services), func(s Service) bool { return bars(l.Incarnation, s.Name) })
	}
	return l
}

// Take takes a list of the incarnation that its sender has, without the names that bars names. It
// is sent when Due returns it, unless a later one has come by then. An earlier one is passed
// over.
func (h *Host) Take(l List, bars Bars) {
	t := h.records[l.Incarnation]
	if t == nil {
		if h.records == nil {
			h.records = make(map[addr.Incarnation]*record)
		}
		h.count++
		t = &record{order: h.count}
		h.records[l.Incarnation] = t
	}
	if l.Seq > t.announced.Seq {
		t.announced, t.list, t.pending = l, l.without(bars), true
	}
}

// Recheck has an incarnation serve the services that bars allows now.
func (h *Host) Recheck(incarnation addr.Incarnation, bars Bars) {
	if t := h.records[incarnation]; t != nil {
		if list := t.announced.without(bars); !list.same(t.list) {
			t.list, t.pending = list, true
		}
	}
}

// RecheckAll is Recheck for all incarnations.
func (h *Host) RecheckAll(bars Bars) {
	for incarnation := range h.records {
		h.Recheck(incarnation, bars)
	}
}

// Barred returns the names in an incarnation's last list that it may not serve.
func (h *Host) Barred(incarnation addr.Incarnation) []string {
	if t := h.records[incarnation]; t != nil {
		return t.announced.missing(t.list)
	}
	return nil
}

// Remove forgets an incarnation. The members learn of its end by itself.
func (h *Host) Remove(incarnation addr.Incarnation) {
	h.Book.Remove(incarnation)
	delete(h.records, incarnation)
	h.resendCut()
}

// resendCut has lists sent again that were cut off: there may be room for more of them. It
// reports whether there are some.
func (h *Host) resendCut() (some bool) {
	for _, t := range h.records {
		if !t.pending && len(h.Of(t.list.Incarnation).Services) < len(t.list.Services) {
			t.pending, some = true, true
		}
	}
	return some
}

// Due puts into the book the lists that may be sent now, and returns them, cut to the
// available room. next is when there will be more; zero: after the next change.
func (h *Host) Due(now time.Time) (lists []List, next time.Time) {
	var all []*record
	for _, t := range h.records {
		if t.pending {
			all = append(all, t)
		}
	}
	slices.SortFunc(all, func(a, b *record) int { return cmp.Compare(a.order, b.order) })
	for _, t := range all {
		if !t.pace.ready(now) {
			if next.IsZero() || t.pace.at().Before(next) {
				next = t.pace.at()
			}
			continue
		}
		t.pending = false
		l := t.list
		room := MaxCluster - h.total + len(h.Of(l.Incarnation).Services)
		l.Services = l.Services[:min(len(l.Services), room)]
		before := h.total
		put := h.Put(l)
		cut := len(l.Services) < len(t.announced.Services)
		put, t.cut = put || cut || t.cut, cut // the incarnation itself is to be notified
		if h.total < before && h.resendCut() {
			next = now // some may have been looked at before this one
		}
		if put {
			t.pace.take(now)
			lists = append(lists, l)
		}
	}
	return lists, next
}
