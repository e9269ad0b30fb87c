package engine

import (
	"fmt"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/flight"
)

// noteOpen records that an application has the connection. From now on its end is an event too.
func (c *conn) noteOpen() {
	label := fmt.Sprintf("%v to %v", c.ep.LocalAddr(), c.ep.RemoteAddr())
	c.mu.Lock()
	c.label = label
	over := c.failed
	c.mu.Unlock()
	c.note("conn-open", "")
	if over { // its end came before
		c.noteEnd()
	}
}

// note records an event of a connection that an application has had.
func (c *conn) note(event, why string) {
	c.mu.Lock()
	label := c.label
	c.mu.Unlock()
	if label == "" {
		return
	}
	if why != "" {
		label += ": " + why
	}
	c.link.n.cfg.Record.Note(flight.Conn, event, c.link.peer.Incarnation, "", label)
}

// noteEnd records the end of a connection, with its cause if it was lost.
func (c *conn) noteEnd() {
	if why := c.why(); why != "" {
		c.note("conn-reset", why)
		return
	}
	c.note("conn-closed", "")
}

// noteLink records an event of a link, or of the attempt to have one.
func (n *Node) noteLink(event string, peer addr.Incarnation, format string, args ...any) {
	n.cfg.Record.Note(flight.Link, event, peer, "", fmt.Sprintf(format, args...))
}
