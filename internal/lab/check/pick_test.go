package check_test

import (
	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/lab/history"
)

// The records that the wrong histories pick from a right one.

// followed fits a receive before another one.
func followed(e *edit) func(rec, *received) bool {
	return func(_ rec, b *received) bool {
		return b.To > b.From && find(e, 0, func(_ rec, c *received) bool { return c.ConnEnd == b.ConnEnd && c.From == b.To && c.To > c.From }) >= 0
	}
}

// sentAgain reports whether more is sent after b.
func sentAgain(e *edit, b *history.Sent) bool {
	return find(e, 0, func(_ rec, c *history.Sent) bool { return c.ConnEnd == b.ConnEnd && c.From == b.To }) >= 0
}

// closesAfter reports whether b is the last that an end receives before it reads
// the peer's orderly end.
func closesAfter(e *edit, b *received) bool {
	eof := find(e, 0, func(_ rec, c *closed) bool { return c.ConnEnd == b.ConnEnd && c.How == history.HowEOF }) >= 0
	more := find(e, 0, func(_ rec, c *received) bool { return c.ConnEnd == b.ConnEnd && c.From >= b.To }) >= 0
	return eof && !more && b.To > b.From
}

// opAfter reports whether more operations follow.
func opAfter(e *edit, b *history.RMA) bool {
	return find(e, 0, func(_ rec, c *history.RMA) bool { return c.ConnEnd == b.ConnEnd && c.Op == b.Op+1 }) >= 0
}

// lastOp reports whether no operation follows.
func lastOp(e *edit, b *history.RMADone) bool {
	return find(e, 0, func(_ rec, c *history.RMADone) bool { return c.ConnEnd == b.ConnEnd && c.Op == b.Op+1 }) < 0
}

// removedAt fits the event that notifies a source of an end.
func removedAt(s history.Source, l addr.Incarnation) func(rec, *event) bool {
	return func(r rec, b *event) bool { return b.What == history.EventRemoved && r.Source == s && b.Subject == l }
}

// survivorCall fits the end of a call whose caller is notified of the loss later.
func survivorCall(e *edit) func(rec, *ret) bool {
	return func(r rec, b *ret) bool {
		return lostCall(r, b) && find(e, 0, removedAt(r.Source, b.Peer)) >= 0
	}
}

// survivorReset fits the end of a connection at the side that is notified of the loss later.
func survivorReset(e *edit) func(rec, *closed) bool {
	return func(r rec, b *closed) bool {
		i := find(e, 0, func(x rec, o *history.Opened) bool { return o.ConnEnd == b.ConnEnd })
		return isReset(r, b) && i >= 0 && find(e, 0, removedAt(r.Source, body[*history.Opened](e, i).Remote)) >= 0
	}
}

// removedThenAdded fits a removal that is followed by the next generation.
func removedThenAdded(e *edit) func(rec, *event) bool {
	return func(r rec, b *event) bool {
		return isRemoved(r, b) && find(e, 0, func(x rec, c *event) bool {
			return c.What == history.EventAdded && x.Source == r.Source && c.Subject == addr.Incarnation{Node: b.Subject.Node, Generation: b.Subject.Generation + 1}
		}) >= 0
	}
}

// writtenScan returns a scan that found words of a writer.
func writtenScan(e *edit) int {
	return find(e, 0, func(_ rec, b *history.Scan) bool { return len(b.Writers) > 0 })
}

// lastCount returns the last count of resources.
func lastCount(e *edit) map[string]int64 {
	return body[*history.Resources](e, find[*history.Resources](e, -1, nil)).Count
}

// clearKills makes all kills harmless, so that they excuse nothing.
func clearKills(e *edit) {
	for _, r := range e.records {
		if f, ok := r.Body.(*history.Fault); ok {
			f.Harm = history.HarmNone
		}
		if p, ok := r.Body.(*history.Process); ok && p.Did == history.DidKill {
			p.Did = history.DidTerminate
		}
	}
}

// quietEnd returns the end of a connection between two nodes that are never killed, as the host and
// the last connections of the run have.
func quietEnd(e *edit, how string) int {
	killed := map[int]bool{}
	for _, r := range e.records {
		if p, ok := r.Body.(*history.Process); ok && isKill(r, p) {
			killed[p.Target.Node] = true
		}
	}
	last := find(e, -1, func(_ rec, b *history.Fault) bool { return b.Harm == history.HarmRemove })
	limit := e.records[last].At + 21*sec
	for i, r := range e.records { // long after the last kill, of whichever node
		if _, ok := r.Body.(*history.Note); ok {
			limit = e.records[i].At
		}
	}
	return find(e, 0, func(r rec, b *closed) bool {
		o := find(e, 0, func(_ rec, o *history.Opened) bool { return o.ConnEnd == b.ConnEnd })
		if b.How != how || o < 0 {
			return false
		}
		peer := int(body[*history.Opened](e, o).Remote.Node)
		return !killed[r.Source.Node] && !killed[peer] || e.records[o].At > limit
	})
}
