package membership

import (
	"encoding/json"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/membership/control"
	"github.com/fabricd/fabricd/membership/state"
	"github.com/fabricd/fabricd/membership/verdict"
)

// bansPerFrame is how many identities one BANS frame carries.
const bansPerFrame = 128

// loadBans reads the bans of this node's last run: it does so also while
// there is no host.
func (a *Agent) loadBans() {
	var list []addr.UUID
	if b := a.cfg.State.Secret(state.SecretBans); len(b) > 0 && json.Unmarshal(b, &list) != nil {
		a.log.Warn().Msg("the list of banned nodes cannot be read; the host sends it again")
	}
	if a.enroller != nil {
		list = a.enroller.known.Load().banned()
	}
	a.setBans(list)
}

func (a *Agent) setBans(list []addr.UUID) {
	bans := make(map[addr.UUID]bool, len(list))
	for _, u := range list {
		bans[u] = true
	}
	a.view.mu.Lock()
	defer a.view.mu.Unlock()
	a.view.bans = bans
}

// keptOut refuses a node that an operator has banned.
func (a *Agent) keptOut(node addr.UUID) error {
	a.view.mu.Lock()
	defer a.view.mu.Unlock()
	if a.view.bans[node] {
		return control.Refusef(control.CodeBanned, "node %s is banned", node)
	}
	return nil
}

// takeBansOfHost uses the host's own list, after a change, and sends it to all.
func (a *Agent) takeBansOfHost() {
	list := a.enroller.known.Load().banned()
	a.setBans(list)
	for id := range a.sessions.open {
		a.sendBans(id)
	}
}

// sendBans sends the list of banned nodes on a session.
func (a *Agent) sendBans(id verdict.SessionID) {
	s := a.sessions.open[id]
	if s == nil {
		return
	}
	list := a.enroller.known.Load().banned()
	for first := true; first || len(list) > 0; first = false {
		part := list[:min(len(list), bansPerFrame)]
		list = list[len(part):]
		_ = s.Send(control.Bans{First: first, Last: len(list) == 0, Nodes: part}) // a new session gets them anew
	}
}

// takeBans uses the list that the host sent, and ends the sessions and lifelines of
// this node with those on it.
func (a *Agent) takeBans(b control.Bans) {
	if b.First {
		a.banned = nil
	}
	if a.banned = append(a.banned, b.Nodes...); !b.Last || len(a.banned) > MaxNodes {
		return
	}
	list := a.banned
	a.banned = nil
	a.setBans(list)
	text, err := json.Marshal(list)
	if err == nil {
		err = a.cfg.State.PutSecret(state.SecretBans, text)
	}
	if err != nil {
		a.log.Warn().Err(err).Msg("the list of banned nodes is not on disk; the host sends it again after a restart")
	}
	for _, u := range list {
		a.cutOff(u, "banned")
	}
}
