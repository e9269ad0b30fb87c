package membership

import (
	"cmp"
	"slices"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/membership/control"
	"github.com/fabricd/fabricd/membership/verdict"
)

const (
	// maxLifeless bounds the sessions without an incarnation in all, those of nodes that
	// live aside, and maxLifelessEach those of one node.
	maxLifeless     = 64
	maxLifelessEach = 2
	// lifelessGrace is how long an honest node may take to ask for an incarnation.
	lifelessGrace = 250 * time.Millisecond
)

// controlSessions are the open control sessions of an agent. Owned by the loop.
type controlSessions struct {
	open     map[verdict.SessionID]*control.Session
	lastID   verdict.SessionID
	openings map[verdict.SessionID]opening // of sessions that others have opened
	swept    time.Time                     // when they were last looked at

	lossReports    map[verdict.SessionID]uint64 // numbers of the last loss reports
	lastLossReport uint64                       // number of the last one sent

	refusal string // the text of the last refusal of a session
}

// An opening is how far a node has come on its session with this host.
type opening struct {
	at    time.Time
	asked bool // for an incarnation

	second   time.Time // in which requests are counted
	requests int
}

func newControlSessions() controlSessions {
	return controlSessions{
		open:        make(map[verdict.SessionID]*control.Session),
		openings:    make(map[verdict.SessionID]opening),
		lossReports: make(map[verdict.SessionID]uint64),
	}
}

// add gives a session its ID.
func (c *controlSessions) add(s *control.Session) verdict.SessionID {
	c.lastID++
	c.open[c.lastID] = s
	return c.lastID
}

// remove forgets a session that has ended.
func (c *controlSessions) remove(id verdict.SessionID) {
	delete(c.open, id)
	delete(c.openings, id)
	delete(c.lossReports, id)
}

// makeRoom ends a session that serves no incarnation if the node has too many of those,
// or all nodes together have (speaks: it serves one): the oldest one, and first one that has not even asked
// for an incarnation. So a session that asks at once is served, whatever others keep open.
func (c *controlSessions) makeRoom(node addr.UUID, speaks func(verdict.SessionID) bool) {
	var all, own []verdict.SessionID
	for id := range c.openings {
		s := c.open[id]
		if s == nil || speaks(id) {
			continue
		}
		all = append(all, id)
		if s.Peer().UUID == node {
			own = append(own, id)
		}
	}
	switch {
	case len(own) >= maxLifelessEach:
		c.endOldest(own)
	case len(all) >= maxLifeless:
		c.endOldest(all)
	}
}

// endOldest ends one of the sessions. One that is so young that an honest node's
// would not have asked yet is the last to be chosen.
func (c *controlSessions) endOldest(of []verdict.SessionID) {
	rank := func(id verdict.SessionID) int {
		switch o := c.openings[id]; {
		case o.asked:
			return 1
		case time.Since(o.at) < lifelessGrace:
			return 2
		}
		return 0
	}
	id := slices.MinFunc(of, func(x, y verdict.SessionID) int { // they are numbered as they were opened
		return cmp.Or(cmp.Compare(rank(x), rank(y)), cmp.Compare(x, y))
	})
	c.open[id].Abort()
	delete(c.openings, id) // it is not to be chosen again
}

// maxRequests bounds the requests of a session in a second that cost the host a
// table each, a write or a line to every member. An honest node asks for an incarnation
// again four times a second at most.
const maxRequests = 16

// mayAsk counts a message that asks for something. It reports false if there were
// enough in this second.
func (c *controlSessions) mayAsk(id verdict.SessionID, m verdict.Message) bool {
	o, ok := c.openings[id]
	if !ok {
		return true // it has been chosen to end
	}
	switch m.(type) {
	case verdict.Join, verdict.Resume:
		o.asked = true
	case verdict.Sync:
	default:
		return true
	}
	if now := time.Now(); now.Sub(o.second) >= time.Second {
		o.second, o.requests = now, 0
	}
	o.requests++
	c.openings[id] = o
	return o.requests <= maxRequests
}
