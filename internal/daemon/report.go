package daemon

import (
	"sync/atomic"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/engine"
	"github.com/fabricd/fabricd/membership"
	"github.com/fabricd/fabricd/membership/services"
)

// A reporter passes the observations of the engine's links about their peers to membership. Those
// before membership runs are dropped: there are no peers yet.
type reporter struct {
	agent atomic.Pointer[membership.Agent]
}

// to begins to report to agent.
func (r *reporter) to(agent *membership.Agent) {
	r.agent.Store(agent)
	agent.ServesAnew() // it may have asked before
}

func (r *reporter) report(incarnation addr.Incarnation, e engine.Evidence) {
	if agent := r.agent.Load(); agent != nil {
		agent.Report(incarnation, evidenceOf(e))
	}
}

// servesAnew notifies membership that the node serves other names.
func (r *reporter) servesAnew() {
	if agent := r.agent.Load(); agent != nil {
		agent.ServesAnew()
	}
}

// servicesOf and namedOf translate between two packages that do not know each other.

func servicesOf(list []engine.Named) []services.Service {
	all := make([]services.Service, len(list))
	for i, s := range list {
		all[i] = services.Service(s)
	}
	return all
}

func namedOf(list []services.Service) []engine.Named {
	all := make([]engine.Named, len(list))
	for i, s := range list {
		all[i] = engine.Named(s)
	}
	return all
}

// evidenceOf translates between two packages that do not know each other.
func evidenceOf(e engine.Evidence) membership.Evidence {
	switch e {
	case engine.LinkAlive:
		return membership.LinkAlive
	case engine.LinkSilent:
		return membership.LinkSilent
	case engine.LinkReset:
		return membership.LinkReset
	case engine.LinkFenced:
		return membership.LinkFenced
	case engine.LinkRefused:
		return membership.LinkRefused
	}
	panic("BUG: daemon: unknown evidence")
}
