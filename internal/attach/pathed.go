package attach

import (
	"context"
	"os"

	"github.com/fabricd/fabricd/internal/path"
)

// A PathSocket is one end of a path, made by the nodes of both ends.
type PathSocket struct {
	File      *os.File     // the TCP socket, the caller's
	Client    bool         // this end opens TLS
	Plaintext bool         // no TLS
	Binding   path.Binding // that both ends send first
	Peer      path.Hash    // of the key of the application at the other end
}

// A PathEndpoint is an Endpoint of this process's node whose connection can have a
// path: a socket of its own between the two applications.
type PathEndpoint interface {
	Endpoint

	// Path asks for the connection's path for an application with that key, and
	// waits until it is made. There is at most one in the life of a connection.
	// status.NotSupp: there will be none; another error: it may be asked for again, in a
	// second or more. The text says why. freed is called, once, when the node holds nothing of
	// the path any more, also when there is none.
	Path(ctx context.Context, key path.Hash, freed func()) (PathSocket, error)

	// OnPath calls fn whenever the peer asks for a path and this end has not.
	OnPath(fn func())

	// HungUp is closed when the connection has ended from the peer's side.
	HungUp() <-chan struct{}

	// NoPath says why the application cannot use its path, which ends; used, that it
	// has: then the connection is reset.
	NoPath(why string, used bool)
}
