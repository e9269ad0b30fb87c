package attach

import (
	"context"
	"os"

	"github.com/fabricd/fabricd/internal/path"
)

// A PathSocket is one end of a path, made by the nodes of both ends.
type PathSocket struct {
	File      *os.File     // owned by the caller
	Client    bool         // this end is the TLS client
	Plaintext bool         // no TLS
	Binding   path.Binding // both ends send it first
	Peer      path.Hash    // of the key of the application at the other end
}

// A PathEndpoint is an Endpoint of this process's node whose connection can have a
// path: a socket of its own between the two applications.
type PathEndpoint interface {
	Endpoint

	// Path asks for the connection's path on behalf of the application with that key, and waits
	// until it is made. A connection has at most one. status.NotSupp: there will be none; another
	// error: the caller may ask again after a second or more. The text gives the reason. freed is
	// called once the node holds no resource of the path any more, also if there is no path.
	Path(ctx context.Context, key path.Hash, freed func()) (PathSocket, error)

	// PathRest takes the bytes that the path's socket has no room for, in order: the node sends them
	// when the connection closes, before the socket's end. The caller keeps b. Of one path
	// it takes path.RestMost at most; an error gives up those taken before, as nil does.
	PathRest(b []byte) error

	// OnPath calls fn whenever the peer asks for a path that this end has not asked for.
	OnPath(fn func())

	// HungUp is closed when the peer's side has ended the connection.
	HungUp() <-chan struct{}

	// NoPath reports why the application cannot use its path, which then ends. used: it has used
	// the path, and the connection is reset.
	NoPath(why string, used bool)
}

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
