package fabric

import (
	"fmt"

	"github.com/fabricd/fabricd/internal/access"
	"github.com/fabricd/fabricd/internal/status"
)

// A ListenOption changes how [Endpoint.Listen] and [Node.Listen] listen.
type ListenOption func(*listening)

// listening holds the settings of ListenOptions.
type listening struct {
	limited bool // Allow was given
	allow   []string
	backlog int // 0: none was given
	service string
	named   bool // Service was given
}

// Backlog lets n requests wait for Accept, from 1 to [MaxBacklog]; more are refused.
// It is for [Node.Listen]: [Endpoint.Listen] takes the number itself, and fails with
// EINVAL if an option gives another one.
func Backlog(n int) ListenOption {
	return func(l *listening) {
		l.backlog = n
		if n < 1 || n > MaxBacklog {
			l.backlog = -1
		}
	}
}

// listeningOf returns the settings of opts.
func listeningOf(opts []ListenOption) (l listening) {
	for _, o := range opts {
		o(&l)
	}
	return l
}

// Allow lets only these callers connect to a listener: "all", "none", "host"
// (applications on the cluster's host), "local" (those on this node), the name
// of a node, "node:NAME", or "label:WORD" for nodes that have the label. At
// most 64, over all options. Names and labels are those of the cluster's node
// table, which nodes cannot choose for themselves.
//
// The access rules of the node hold too: a caller must be allowed by both.
// Others get ECONNREFUSED, and the listener sees nothing of them.
func Allow(callers ...string) ListenOption {
	return func(l *listening) {
		l.limited = true
		l.allow = append(l.allow, callers...)
	}
}

// callers returns the peers that may connect, nil without a limit.
func (l *listening) callers() ([]access.Subject, error) {
	if !l.limited {
		return nil, nil
	}
	list, err := access.ParseSubjects(l.allow)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", status.Invalid, err)
	}
	return list, nil
}

// A Peer is the application at the other end of a connection. The cluster
// vouches for its node, with the name and the labels that it had when the
// connection was made, and that node vouches for its user.
type Peer struct {
	Node       NodeID
	Generation Generation
	Name       string   // of the node
	Labels     []string // of the node, given by the host; the caller owns them
	// UID is the user that runs the application, as a number of its own
	// machine or container; -1 if it is not known. A connector knows that of a
	// peer on its own node only.
	UID int64
}

// Peer returns the node and the user at the other end of the connection, also after the peer
// has closed or was lost. It asks the node, which takes a moment; a connection
// between two nodes costs no message.
//
// Errors: ENOTCONN before a connection, EBADF after Close, EOPNOTSUPP from a
// node that is too old to know.
func (e *Endpoint) Peer() (Peer, error) {
	p, err := e.ep.Peer()
	if err != nil {
		return Peer{}, e.fail("peer", err)
	}
	peer := Peer{Node: p.Incarnation.Node, Generation: p.Incarnation.Generation, Name: p.Name, Labels: append([]string(nil), p.Labels...), UID: -1}
	if p.UID != access.UnknownUID {
		peer.UID = int64(p.UID)
	}
	return peer, nil
}

// Peer is [Endpoint.Peer] of the connection's endpoint.
func (c *Conn) Peer() (Peer, error) {
	return c.ep.Peer()
}
