package daemon

import (
	"context"
	"fmt"

	"github.com/fabricd/fabricd/internal/engine"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/membership"
	"github.com/fabricd/fabricd/membership/trust"
)

// leases are the engine's questions to membership about signed leases. Membership reports this
// node's incarnation to the engine before its start has returned, so questions meanwhile wait for that.
type leases struct {
	ctx   context.Context // of the daemon
	ready chan struct{}   // closed when agent is set
	agent *membership.Agent
}

func newLeases(ctx context.Context) *leases {
	return &leases{ctx: ctx, ready: make(chan struct{})}
}

// of returns the agent to ask, once; nil: membership has failed to start.
func (l *leases) of(agent *membership.Agent) {
	l.agent = agent
	close(l.ready)
}

// get returns the agent, nil if ctx has ended before there is one.
func (l *leases) get() *membership.Agent {
	select {
	case <-l.ready:
		return l.agent
	case <-l.ctx.Done():
		return nil
	}
}

// own is engine.Self.Lease.
func (l *leases) own() []byte {
	if agent := l.get(); agent != nil {
		return agent.Lease()
	}
	return nil
}

// prove is engine.Config.ProveLease.
func (l *leases) prove(lease []byte, peer engine.Peer, proved transport.Identity) error {
	agent := l.get()
	if agent == nil {
		return fmt.Errorf("%w: this node ends", status.NoDevice)
	}
	return agent.CheckLease(lease, peer.UUID, trust.Pin(proved.Key), peer.Epoch, peer.Incarnation)
}
