package membership

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/membership/verdict"
)

// handoutPatience is how long the host waits for a node to confirm a handout. After
// that the cluster goes on without it: its session ends, and with the next one it
// gets the handout that it missed.
const handoutPatience = 5 * time.Second

// A handout is sent by the host to every node that lives, and again to each that
// gets an incarnation: the gossip keys, the CA certificates. Owned by the loop.
type handout struct {
	seq  uint64 // counts the changes of this start
	held map[verdict.SessionID]uint64
	sent time.Time     // when seq went to all, or again to those without it
	all  chan struct{} // closed when every incarnation holds seq; nil: no caller waits
	give func(verdict.SessionID)
}

func newHandout(give func(verdict.SessionID)) handout {
	return handout{held: make(map[verdict.SessionID]uint64), give: give}
}

// handOut changes the contents of h, and waits until every node that lives has them on
// disk and in use. Those that do not confirm in time are cut off.
func (a *Agent) handOut(ctx context.Context, h *handout, change func()) error {
	all := make(chan struct{})
	a.post(func() {
		change()
		h.seq++
		h.all = all
		a.giveToAll(h)
		a.checkHandout(h)
	})
	patience := time.NewTimer(handoutPatience)
	defer patience.Stop()
	select {
	case <-all:
		return nil
	case <-patience.C:
		a.goOnWithout(h)
		return nil
	case <-ctx.Done():
		return fmt.Errorf("not every node holds them%s: %w", a.pendingText(h), context.Cause(ctx))
	case <-a.ctx.Done():
		return ErrClosed
	}
}

// pendingText returns, for an error, the first of the nodes that have not confirmed h.
// It is called from outside the loop.
func (a *Agent) pendingText(h *handout) (text string) {
	const most = 5
	list, _ := ask(a, func() []addr.Incarnation { return a.pending(h) })
	for _, incarnation := range list[:min(len(list), most)] {
		text += fmt.Sprintf(", node %d does not", incarnation.Node)
	}
	if more := len(list) - most; more > 0 {
		text += fmt.Sprintf(", nor do %d more", more)
	}
	return text
}

// goOnWithout cuts the nodes off that have not confirmed h.
func (a *Agent) goOnWithout(h *handout) {
	ask(a, func() struct{} {
		sessions := a.host.Sessions()
		for _, incarnation := range a.pending(h) {
			if s := a.sessions.open[sessions[incarnation]]; s != nil {
				s.Close("you do not confirm what the host gives: connect again")
			}
			a.log.Warn().Stringer("incarnation", incarnation).Msg("the node does not confirm what it was given; the cluster goes on without that")
		}
		h.all = nil
		return struct{}{}
	})
}

// giveToAll gives h to every session that does not hold it.
func (a *Agent) giveToAll(h *handout) {
	h.sent = time.Now()
	for id := range a.sessions.open {
		if held, ok := h.held[id]; !ok || held < h.seq {
			h.give(id)
		}
	}
}

// confirmed takes a node's confirmation that it uses h up to seq.
func (a *Agent) confirmed(h *handout, id verdict.SessionID, seq uint64) {
	if _, open := a.sessions.open[id]; open && seq <= h.seq {
		h.held[id] = seq
		a.checkHandout(h)
	}
}

// checkHandout wakes the goroutine that waits, if every incarnation that is not over holds h.
func (a *Agent) checkHandout(h *handout) {
	if h.all == nil || len(a.pending(h)) > 0 {
		return
	}
	close(h.all)
	h.all = nil
}

// pending returns the incarnations that do not hold the newest of h, in order.
func (a *Agent) pending(h *handout) (list []addr.Incarnation) {
	for incarnation, id := range a.host.Sessions() {
		if held, ok := h.held[id]; !ok || held < h.seq {
			list = append(list, incarnation)
		}
	}
	slices.SortFunc(list, func(x, y addr.Incarnation) int { return cmp.Compare(x.Node, y.Node) })
	return list
}

// maintainHandout looks again, since an incarnation that did not hold h may be over, and
// repeats it to those that have not confirmed.
func (a *Agent) maintainHandout(h *handout, now time.Time) {
	if h.all == nil {
		return
	}
	if now.Sub(h.sent) >= a.timing.Resend {
		a.giveToAll(h)
	}
	a.checkHandout(h)
}
