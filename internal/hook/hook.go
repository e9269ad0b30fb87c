// Package hook gives packages of this module access to unexported parts of the public API.
// They are unexported because no program can name their types. Each function is set while
// the package that it names is initialised.
package hook

import (
	"github.com/fabricd/fabricd/internal/attach"
)

var (
	// Node returns the *fabric.Node of a session.
	Node func(attach.Session) any
	// Session returns a new session on a node, which must be up, of a *fabrictest.Cluster.
	// A server of the attach protocol needs no more of a node.
	Session func(cluster any, node int, cred attach.Credentials) attach.NodeSession
	// Endpoint returns the endpoint of a *fabric.Listener or *fabric.Conn. It does not know of the
	// Conn's deadlines.
	Endpoint func(of any) attach.Endpoint
)
