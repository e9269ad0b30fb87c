package membership

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/membership/gossip"
	"github.com/fabricd/fabricd/membership/trust"
	"github.com/fabricd/fabricd/membership/verdict"
)

// A Status is a picture of an agent, for operators.
type Status struct {
	Cluster       addr.UUID
	Role          string // "host" or "node"
	Self          Node
	Term          uint64 // the highest host term accepted
	HostReachable bool
	HostDetail    string // the state of the path to the host, for people
	Alone         bool   // the host is lost: this node decides for itself
	Detection     gossip.Profile
	Nodes         int // others in the table
	Gossiping     int // others in gossip
	GossipHealth  int // 0 is well; see gossip.Gossip.Health
	Lifelines     int
	Sessions      int // control sessions
	// StrayLists are lists of services that this host has passed over: of an incarnation that was not
	// their sender's.
	StrayLists uint64
}

// Status returns a picture of the agent.
func (a *Agent) Status() Status {
	id := a.cfg.State.Identity()
	s := Status{
		Cluster:      id.Cluster,
		Role:         string(id.Role),
		Detection:    a.cfg.Detection,
		Gossiping:    len(a.gossip.Members()),
		GossipHealth: a.gossip.Health(),
	}
	a.view.mu.Lock()
	defer a.view.mu.Unlock()
	s.Self, s.Term, s.Alone = a.view.self, a.view.term, a.view.alone
	s.HostDetail = withNames(hostDetail(a.view.hostText, a.view.noHost), id.Cluster, a.view.nodes)
	s.HostReachable = strings.HasPrefix(s.HostDetail, verdict.HostReachable)
	s.Nodes, s.Lifelines, s.Sessions = len(a.view.nodes), a.view.lifelines, len(a.view.sessions)
	s.StrayLists = a.view.stray
	return s
}

// oneLine returns the text of an error on one line, with a separator between joined ones.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// withNames returns text with the names of nodes in the place of their identities.
func withNames(text string, cluster addr.UUID, nodes []Node) string {
	for _, n := range nodes {
		if !strings.Contains(text, n.UUID.String()) {
			continue
		}
		name := fmt.Sprintf("node %q", n.Name())
		for _, host := range []bool{true, false} {
			text = strings.ReplaceAll(text, trust.Identity{Cluster: cluster, Node: n.UUID, Host: host}.String(), name)
		}
	}
	return text
}

// hostDetail joins the state of the session with the host, and why the latest dial of the host failed,
// unless that failed for the reason that the state has.
func hostDetail(session, dial string) string {
	if session == "" || dial == "" || strings.HasPrefix(session, verdict.HostReachable) {
		return cmp.Or(session, dial)
	}
	if why, has := strings.CutPrefix(session, verdict.HostLost+": "); has && strings.Contains(dial, why) {
		return session
	}
	return session + "; the latest dial: " + dial
}

// Queues are the lengths of an agent's queues.
type Queues struct {
	// Sessions is how full the fullest queue of messages for another node's control session is: 1
	// is full.
	Sessions   float64
	DiskWrites int // of leases and members, which the disk has not taken
	Inbox      int // what waits for the loop, of MaxInbox
	Events     int // events that OnEvent has not been called with, of MaxEvents
}

// Queues returns the lengths of the agent's queues.
func (a *Agent) Queues() Queues {
	q := Queues{DiskWrites: a.disk.waiting(), Inbox: len(a.inbox), Events: a.events.waiting()}
	a.view.mu.Lock()
	all := a.view.sessions // replaced when it changes, never changed
	a.view.mu.Unlock()
	for _, s := range all {
		q.Sessions = max(q.Sessions, s.Fill())
	}
	return q
}
