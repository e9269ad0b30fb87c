package services

import (
	"cmp"
	"maps"
	"slices"

	"github.com/fabricd/fabricd/fabric/addr"
)

// A Book holds the lists of lives, MaxCluster services in all and as many lives at most.
// The zero Book is empty.
type Book struct {
	lists map[addr.Life]List
	total int // services of all of them
}

// Put takes a list, in place of the one before it. It reports whether that was new; an
// earlier list, and one for which there is no room, is passed over.
func (b *Book) Put(l List) bool {
	old, known := b.lists[l.Life]
	total := b.total - len(old.Services) + len(l.Services)
	if l.Seq < old.Seq || total > MaxCluster || !known && len(b.lists) >= MaxCluster {
		return false
	}
	if b.lists == nil {
		b.lists = make(map[addr.Life]List)
	}
	b.lists[l.Life], b.total = l, total
	return !known || !old.same(l)
}

// Remove forgets a life.
func (b *Book) Remove(life addr.Life) {
	b.total -= len(b.lists[life].Services)
	delete(b.lists, life)
}

// Of returns the list of a life, that with no number if there is none.
func (b *Book) Of(life addr.Life) List {
	l := b.lists[life]
	l.Life = life
	return l
}

// Lists returns all lists, by node. The caller owns the slice.
func (b *Book) Lists() []List {
	return slices.SortedFunc(maps.Values(b.lists), func(x, y List) int { return cmp.Compare(x.Life.Node, y.Life.Node) })
}

// Retain forgets the lives for which keep is false.
func (b *Book) Retain(keep func(addr.Life) bool) {
	for life := range b.lists {
		if !keep(life) {
			b.Remove(life)
		}
	}
}
