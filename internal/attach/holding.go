package attach

import "github.com/fabricd/fabricd/internal/status"

// A HoldingEndpoint can hold connect requests until its application knows whether it can serve
// them. An endpoint of this process has it.
type HoldingEndpoint interface {
	// Hold makes a listening endpoint hold its requests: Accept returns the endpoint of one whose
	// requester still waits. Nothing but Settle, Peer and the close may be called on that.
	Hold()
	// Settle grants the request that an endpoint holds, and waits for the requester's
	// confirmation; with a code other than status.OK it refuses it, as the close does. On another
	// endpoint it does nothing.
	Settle(code status.Code) error
	// HungUp is closed when the requester has given up, or has ended its connection.
	HungUp() <-chan struct{}
}

// A SplicingEndpoint lends the socket of its path. An endpoint of an attached application has it.
type SplicingEndpoint interface {
	// Plain reports whether received bytes (in) come, or sent ones go, through a path without TLS.
	Plain(in bool) bool
	// Splice waits until move has taken received bytes from the path's socket, or written sent ones
	// to it: it returns EAGAIN if it cannot yet. Where it moves none a Recv or a Send has to follow.
	Splice(in bool, move func(fd int) error)
}
