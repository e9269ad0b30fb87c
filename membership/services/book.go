package services

import (
	"cmp"
	"maps"
	"slices"

	"github.com/fabricd/fabricd/fabric/addr"
)

// A Book holds the lists of incarnations, MaxCluster services in all and as many incarnations at most.
// The zero Book is empty.
type Book struct {
	lists map[addr.Incarnation]List
	total int // services of all of them
}

// Put takes a list, in place of the one before it. It reports whether that was new; an
// earlier list, and one for which there is no room, is passed over.
func (b *Book) Put(l List) bool {
	old, known := b.lists[l.Incarnation]
	total := b.total - len(old.Services) + len(l.Services)
	if l.Seq < old.Seq || total > MaxCluster || !known && len(b.lists) >= MaxCluster {
		return false
	}
	if b.lists == nil {
		b.lists = make(map[addr.Incarnation]List)
	}
	b.lists[l.Incarnation], b.total = l, total
	return !known || !old.same(l)
}

// Remove forgets an incarnation.
func (b *Book) Remove(incarnation addr.Incarnation) {
	b.total -= len(b.lists[incarnation].Services)
	delete(b.lists, incarnation)
}

// Of returns the list of an incarnation, that with no number if there is none.
func (b *Book) Of(incarnation addr.Incarnation) List {
	l := b.lists[incarnation]
	l.Incarnation = incarnation
	return l
}

// Lists returns all lists, by node. The caller owns the slice.
func (b *Book) Lists() []List {
	return slices.SortedFunc(maps.Values(b.lists), func(x, y List) int { return cmp.Compare(x.Incarnation.Node, y.Incarnation.Node) })
}
