package client

import (
	"errors"
	"io"
	"testing"
	"time"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/internal/attach/server"
	"github.com/fabricd/fabricd/internal/status"
)

// A leavingSession is a node's session that takes long to close its windows.
type leavingSession struct {
	*fakeSession
	closing, closed chan struct{}
}

func (s leavingSession) CloseWindows() {
	close(s.closing)
	<-s.closed
}

// TestWindowsAreClosedBeforeTheApplicationIsNotified ends the server: until the node has
// closed the windows of a session its application is answered as before.
func TestWindowsAreClosedBeforeTheApplicationIsNotified(t *testing.T) {
	leaving := leavingSession{closing: make(chan struct{}), closed: make(chan struct{})}
	s := serve(t, func(o *server.Options) {
		begin := o.NewSession
		o.NewSession = func(c attach.Credentials) (attach.NodeSession, error) {
			sess, err := begin(c)
			leaving.fakeSession = sess.(*fakeSession)
			return leaving, err
		}
	})
	c := attachRaw(t, s)
	c.ask(proto.OpSelf, 0, nil, nil, &proto.SelfBody{}) // until its session is served, the end of the server ends it at once
	s.end()
	<-leaving.closing
	if h, text := c.ask(proto.OpOpen, 0, nil, nil, &proto.EndpointBody{}); h.Code != status.OK {
		t.Errorf("OPEN while the windows close: %v (%s)", h.Code, text)
	}
	close(leaving.closed)
	c.conn.SetReadDeadline(time.Now().Add(5 * time.Second))
	if n, err := c.conn.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("the application is not notified of the end: %d bytes, %v", n, err)
	}
}
