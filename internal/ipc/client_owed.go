package ipc

import (
	"slices"

	"github.com/fabricd/fabricd/internal/path"
)

// An owed answer is one that no call waits for yet: a write that does not wait asks for it
// beside, so that a fence behind it has nothing to ask. The next call that waits for an
// answer behind it reads it.
type owed struct{ number, ticket uint64 }

// maxOwed bounds them: so many answers fit into any socket, and the peer's node does not
// wait for room.
const maxOwed = 32

// telling is r, with a wish for an answer if tells.
func telling(r path.RMARequest, tells bool) path.RMARequest {
	if tells {
		r.Flags |= path.RMATell
	}
	return r
}

// mayOwe reports whether one more answer may be owed. The caller holds send.
func (p *farPath) mayOwe() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.owed) < maxOwed
}

// owes notes an answer that no call waits for yet. The caller holds send.
func (p *farPath) owes(o owed) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.owed = append(p.owed, o)
}

// claim makes the next answer the caller's to read if it is owed. The caller holds mu.
func (p *farPath) claim() (o owed, ok bool) {
	if len(p.owed) == 0 || p.owed[0].ticket != p.reading {
		return o, false
	}
	o = p.owed[0]
	p.owed = slices.Delete(p.owed, 0, 1)
	return o, true
}

// claimFrom makes an owed answer the caller's that says that the requests up to number
// have ended. The caller holds mu.
func (p *farPath) claimFrom(number uint64) (o owed, ok bool) {
	i := slices.IndexFunc(p.owed, func(o owed) bool { return o.number >= number })
	if i < 0 {
		return o, false
	}
	o = p.owed[i]
	p.owed = slices.Delete(p.owed, i, i+1)
	return o, true
}

// giveBack makes a claimed answer, which is still the next one, owed again.
func (p *farPath) giveBack(o owed) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.owed = slices.Insert(p.owed, 0, o)
	p.turn.Broadcast()
}
