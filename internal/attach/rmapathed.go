package attach

import (
	"context"

	"github.com/fabricd/fabricd/internal/path"
)

// An RMAPathEndpoint is an Endpoint of this process's node whose operations on the
// windows of a peer on another node can go from the application straight to that node: by
// an RMA path.
type RMAPathEndpoint interface {
	Endpoint

	// RMAPath asks for the path for an application with that key, and waits until it
	// is made. There is at most one in the life of a connection. status.NotSupp: there
	// is none, and the text says why.
	RMAPath(ctx context.Context, key path.Hash) (PathSocket, error)

	// NoRMAPath says why the application cannot use its RMA path, which ends; used,
	// that it has: then the connection is reset.
	NoRMAPath(why string, used bool)

	// FarWindow finds the peer's window that roff is in, without memory. What it tells
	// holds until the next withdrawal, see [DirectEndpoint].
	FarWindow(roff int64) (PeerWindow, error)
}
