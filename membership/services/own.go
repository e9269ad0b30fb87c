package services

import (
	"slices"
	"time"
)

// Own is this node's services, and whether the host has their list. The zero Own
// serves nothing.
type Own struct {
	list    []Service
	seq     uint64
	pace    pace
	pending bool // the list is to be sent to the host
}

// Set takes the present services of the node.
func (o *Own) Set(list []Service) {
	if len(list) > MaxPerNode {
		list = list[:MaxPerNode]
	}
	if !slices.Equal(list, o.list) {
		o.list, o.pending = list, true
		o.seq++
	}
}

// Again means that the host does not know the list: there is another session, or this node
// has another incarnation.
func (o *Own) Again() { o.pending = o.pending || o.seq > 0 }

// Answered takes the host's list of this node. If that is about the list that the
// node has now, it returns the names that the host leaves out.
func (o *Own) Answered(l List) (barred []string, ok bool) {
	return List{Services: o.list}.missing(l), l.Seq == o.seq
}

// Due returns the list that is to be sent now, without its incarnation. If none is, next is
// when one will be; zero: when something changes.
func (o *Own) Due(now time.Time) (l List, due bool, next time.Time) {
	switch {
	case !o.pending:
		return List{}, false, time.Time{}
	case !o.pace.ready(now):
		return List{}, false, o.pace.at()
	}
	o.pending = false
	o.pace.take(now)
	return List{Seq: o.seq, Services: o.list}, true, time.Time{}
}
