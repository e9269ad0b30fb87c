// Package hook gives packages of this module what those of the public API keep to
// themselves, because types that no program can name are part of it. Each function is set
// while the package that it names is initialised.
package hook

import (
	"github.com/fabricd/fabricd/internal/attach"
)

var (
	// Node returns the *fabric.Node of a session.
	Node func(attach.Session) any
	// Session returns a new session on a node, which must be up, of a *fabrictest.Cluster:
	// what a server of the attach protocol needs of a node.
	Session func(cluster any, node int, cred attach.Credentials) attach.Session
)
