package membership

import (
	"github.com/fabricd/fabricd/membership/gossip"
	"github.com/fabricd/fabricd/membership/verdict"
)

// lossReportPurpose names the secret of a control session that proves a loss report
// (membership/gossip/SPEC.md 6). It is part of the protocol.
const lossReportPurpose = "deaf"

// sendLossReport reports to the host, beside its session, that nothing of it arrives.
func (a *Agent) sendLossReport(x verdict.SendLossReport) {
	s := a.sessions.open[x.Session]
	if s == nil {
		return
	}
	secret, err := s.Secret(lossReportPurpose)
	if err == nil {
		a.sessions.lastLossReport++
		err = a.gossip.SendLossReport(gossip.Key{UUID: x.Host, Epoch: x.Epoch}, secret, a.sessions.lastLossReport)
	}
	if err != nil {
		a.log.Debug().Err(err).Msg("the loss report to the host is not sent")
	}
}

// onLossReport takes a node's report that it receives nothing from this host, if the node's
// session proves it and it is newer than all before: an old one can be sent again.
func (a *Agent) onLossReport(w gossip.LossReport) {
	if a.host == nil {
		return
	}
	n, ok := a.living(w.From)
	if !ok {
		return
	}
	for id, s := range a.sessions.open {
		if p := s.Peer(); p.UUID != w.From.UUID || p.Epoch != w.From.Epoch || w.Number <= a.sessions.lossReports[id] {
			continue
		}
		if secret, err := s.Secret(lossReportPurpose); err != nil || !w.Proves(secret) {
			continue
		}
		a.sessions.lossReports[id] = w.Number
		a.feedHost(verdict.LossReport{Incarnation: n.Incarnation})
		return
	}
	a.log.Debug().Stringer("peer", w.From.UUID).Msg("a loss report that is not proved, or an old one, is dropped")
}
