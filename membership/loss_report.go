package membership

import (
	"github.com/fabricd/fabricd/membership/gossip"
	"github.com/fabricd/fabricd/membership/verdict"
)

// deafPurpose is what the secret is for with which a node proves to the host that it
// is that node which does not hear it (membership/gossip/SPEC.md 6).
const deafPurpose = "deaf"

// sayDeaf tells the host beside its session that nothing of it arrives.
func (a *Agent) sayDeaf(x verdict.SayDeaf) {
	s := a.sessions[x.Session]
	if s == nil {
		return
	}
	secret, err := s.Secret(deafPurpose)
	if err == nil {
		a.lastWord++
		err = a.gossip.TellDeaf(gossip.Key{UUID: x.Host, Epoch: x.Epoch}, secret, a.lastWord)
	}
	if err != nil {
		a.log.Debug().Err(err).Msg("the host is not told that it is not heard")
	}
}

// hearDeaf takes the word of a node that it does not hear us, if it is that node's
// and newer than all before on its session: anybody can send an old one again.
func (a *Agent) hearDeaf(w gossip.Word) {
	if a.host == nil {
		return
	}
	n, ok := a.living(w.From)
	if !ok {
		return
	}
	for id, s := range a.sessions {
		if p := s.Peer(); p.UUID != w.From.UUID || p.Epoch != w.From.Epoch || w.Number <= a.words[id] {
			continue
		}
		if secret, err := s.Secret(deafPurpose); err != nil || !w.Proves(secret) {
			continue
		}
		a.words[id] = w.Number
		a.feedHost(verdict.Deaf{Life: n.Life})
		return
	}
	a.log.Debug().Stringer("peer", w.From.UUID).Msg("a word that is not proved, or an old one, is dropped")
}
