package chaos

import (
	"context"
	"net/netip"
	"time"

	"github.com/fabricd/fabricd/internal/lab/scenario"
)

// A site is where the processes of a real lab run: this machine, namespaces of
// it, or containers. The cluster owns it and calls it from several goroutines,
// but for one node from one at a time.
type site interface {
	// check refuses actions that the site does not support; it is called before
	// anything is started.
	check(ctx context.Context, s *scenario.Schedule) error
	// open makes the resources of the nodes, and close removes them; close is called
	// once, also after an open that failed.
	open(ctx context.Context, nodes int) error
	close(ctx context.Context) error

	// place returns the addresses on which a node's fabricd listens.
	place(node int) place
	// start starts fabricd with args: a daemon, an application, or a command that ends
	// by itself.
	start(ctx context.Context, s *node, name string, args ...string) (child, error)
	// path returns the path of a file in the node's directory as the node's
	// processes see it.
	path(s *node, name string) string

	// breaks reports whether an action is a fault of the network that the kernel puts in
	// place here, and breakNetwork does it.
	breaks(a scenario.Action) bool
	breakNetwork(ctx context.Context, a scenario.Action) (effect, error)
	// breakPaths breaks paths that are there, by the kernel. It is called only where
	// scenarios may say so.
	breakPaths(ctx context.Context, a scenario.Action, paths []pathEnds) (effect, error)
	// squeeze takes processor time or memory from the processes of a node.
	squeeze(ctx context.Context, s *node, a scenario.Action) (effect, error)

	// enter makes a goroutine that does nothing else see a node's network, to its
	// end.
	enter(node int) error
}

// A place is where a node's fabricd listens for others.
type place struct {
	bind         netip.Addr
	advertise    netip.Addr
	data, gossip uint16
}

// A child is a process of a node.
type child interface {
	pid() int // on this machine
	running() bool
	frozen() bool           // it stands still
	ended() <-chan struct{} // closed when it has ended
	code() int              // its exit status, minus the signal; once it has ended
	kill(ctx context.Context) error
	stop(ctx context.Context) error // until it stands still
	cont(ctx context.Context) error
	terminate(ctx context.Context, limit time.Duration) error
	log() string // file with its output; complete once it has ended
}

// An effect is a fault that is in place.
type effect interface {
	// undo takes it back and returns its count and a description. A second call does nothing.
	undo(ctx context.Context) (fired uint64, proof string, err error)
}

// done is an effect that was instant, or that is its own undoing.
type done struct {
	fired uint64
	proof string
	err   error
}

func (d done) undo(context.Context) (uint64, string, error) { return d.fired, d.proof, d.err }
