package attach

import (
	"context"

	"github.com/fabricd/fabricd/internal/path"
)

// An RMAPathEndpoint is an Endpoint of this process's node whose application can send its
// operations on windows of a peer on another node straight to that node, over an RMA path.
type RMAPathEndpoint interface {
	Endpoint

	// RMAPath asks for the path on behalf of the application with that key, and waits until it is
	// made. A connection has at most one. status.NotSupp: there is none; the text gives the reason.
	// freed is called once the node holds no resource of the path any more, also if there is none.
	RMAPath(ctx context.Context, key path.Hash, freed func()) (PathSocket, error)

	// NoRMAPath reports why the application cannot use its RMA path, which then ends. used: it has
	// used the path, and the connection is reset.
	NoRMAPath(why string, used bool)

	// FarWindow finds the peer's window that contains roff, without its memory. The result is valid
	// until the next withdrawal, see [DirectEndpoint].
	FarWindow(roff int64) (PeerWindow, error)
}
