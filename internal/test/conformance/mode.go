// Package conformance is the contract of SCIF's user-mode calls as a table:
// one row for each call and state or argument, with the result that SCIF gives
// it. The rows stand on package fabric alone and run in every API mode of a
// node (embedded, attached), over every provider, and on one node.
//
// Its tests print how many rows of each call hold, how many are missing, and the same
// of the errors that SCIF's header documents.
package conformance

import (
	"context"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric"
)

// A Mode is one way for applications to reach two nodes of a cluster.
type Mode struct {
	Name string

	// Pairs are the kinds of connections to try. Those inside one node do not
	// depend on the provider.
	Pairs []Pair

	// Has lists the features, needed by some rows, that this mode has.
	Has feature

	// Settles is how long a connection must have no room before it is full: the buffers
	// between the two ends pass sent bytes on for a while.
	Settles time.Duration

	// Start starts a cluster of two nodes, which ends with tb. A connect waits
	// for connectTimeout to be accepted; 0 is the node's default.
	Start func(tb testing.TB, connectTimeout time.Duration) Site
}

// A Site is a running cluster of two nodes, 0 and 1.
type Site interface {
	// App returns a new application on a node that is alive. It ends with the
	// site or with Node.Close. admin lets it bind ports below fabric.AdminEnd.
	App(node int, admin bool) *fabric.Node

	// Ready brings a new connection, whose ends are a and b, to the state in which the
	// API mode's rows expect it. No bytes that it sends remain to be received.
	Ready(ctx context.Context, a, b *fabric.Endpoint) error

	// Kill ends a node as a crash does, Restart starts it again.
	Kill(node int)
	Restart(node int)
	// Stop ends a node in order.
	Stop(node int)
	// Evict has the others remove a node, which is alive.
	Evict(node int)

	// Hold holds up the transfers between the nodes until release is called. It is for
	// API modes that have Held.
	Hold() (release func())
	// Process starts an application in a process of its own, which listens at two
	// ports. It accepts every connection to the first, registers a page at offset 0 of
	// it, and sends back the first 4 bytes that it receives; the second accepts none.
	// kill ends the process with SIGKILL. It is for API modes that have Processes.
	Process(node int) (accepts, waits fabric.Addr, kill func())
}

// A Pair is the place of the two ends of a row's connections.
type Pair string

const (
	Across   Pair = "across nodes"
	SameNode Pair = "same node"
	SameApp  Pair = "same app"
)
