package gossip

import (
	"errors"
	"fmt"
)

// A Doubt is one member's notice to all others that it receives nothing from a member that it watches.
// It is a report without a proof: each receiver checks by itself. SPEC.md 6 has its
// bytes.
type Doubt struct {
	From  Key // the sender
	About Key
}

const (
	noticeDoubt = 2

	// maxDoubts bounds the doubts that wait to be taken; further ones are dropped.
	maxDoubts = 256
)

func (d Doubt) append(b []byte) []byte {
	e := beginNotice(b, noticeDoubt)
	putKey(&e, d.From)
	putKey(&e, d.About)
	return e.Encoded()
}

func parseDoubt(b []byte) (Doubt, error) {
	d := openNotice(b, noticeDoubt)
	doubt := Doubt{From: takeKey(&d), About: takeKey(&d)}
	if !d.Whole() {
		return Doubt{}, fmt.Errorf("%w of %d bytes", errNotice, len(b))
	}
	return doubt, nil
}

// SendDoubt reports to the members in to that this one doubts about, in a packet to each
// that may be lost. Those that are not known are left out. The errors are those of the
// socket.
func (g *Gossip) SendDoubt(about Key, to []Key) error {
	b := Doubt{From: g.self, About: about}.append(nil)
	var errs []error
	for _, k := range to {
		if to, known := g.addressOf(k); known && k != about {
			errs = append(errs, g.list.SendToAddress(to, b))
		}
	}
	return errors.Join(errs...)
}

// TakeDoubts returns the doubts since the last TakeDoubts, in the order in which they have come.
// Both members are known; any member may have sent it.
func (g *Gossip) TakeDoubts() []Doubt { return takeNotices(g.queue, &g.queue.doubts) }

// receiveDoubt takes a doubt. One that is malformed, about this member, or of or about
// a stranger is dropped.
func (g *Gossip) receiveDoubt(b []byte) {
	d, err := parseDoubt(b)
	if err != nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	from, about := g.members.records[d.From], g.members.records[d.About]
	if !g.closed && d.About != g.self && from != nil && from.seen && about != nil {
		putNotice(g.queue, &g.queue.doubts, maxDoubts, d)
	}
}
