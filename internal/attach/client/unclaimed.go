package client

import (
	"slices"

	"github.com/fabricd/fabricd/internal/path"
)

// An unclaimed answer has no waiting call: a write that does not wait requests it nevertheless, so
// that a later fence need not send a request. The next call that waits for a later answer reads it.
type unclaimed struct{ number, ticket uint64 }

// maxUnclaimed bounds them: this many answers fit into any socket, so that the peer's node does not
// block on a full one.
const maxUnclaimed = 32

// answering returns r, with a request for an answer if answer.
func answering(r path.RMARequest, answer bool) path.RMARequest {
	if answer {
		r.Flags |= path.RMAWantAnswer
	}
	return r
}

// roomForUnclaimed reports whether one more answer may be unclaimed. The caller holds send.
func (p *farPath) roomForUnclaimed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.unclaimed) < maxUnclaimed
}

// leave records an answer that no call waits for yet. The caller holds send.
func (p *farPath) leave(o unclaimed) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unclaimed = append(p.unclaimed, o)
}

// claim lets the caller read the next answer if it is unclaimed. The caller holds mu.
func (p *farPath) claim() (o unclaimed, ok bool) {
	if len(p.unclaimed) == 0 || p.unclaimed[0].ticket != p.reading {
		return o, false
	}
	o = p.unclaimed[0]
	p.unclaimed = slices.Delete(p.unclaimed, 0, 1)
	return o, true
}

// claimFrom lets the caller read an unclaimed answer which shows that the requests up to number
// have ended. The caller holds mu.
func (p *farPath) claimFrom(number uint64) (o unclaimed, ok bool) {
	i := slices.IndexFunc(p.unclaimed, func(o unclaimed) bool { return o.number >= number })
	if i < 0 {
		return o, false
	}
	o = p.unclaimed[i]
	p.unclaimed = slices.Delete(p.unclaimed, i, i+1)
	return o, true
}

// giveBack makes a claimed answer, which is still the next one, unclaimed again.
func (p *farPath) giveBack(o unclaimed) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unclaimed = slices.Insert(p.unclaimed, 0, o)
	p.changed.Broadcast()
}
