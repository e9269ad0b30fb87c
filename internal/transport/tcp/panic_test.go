package tcp

import (
	"crypto/tls"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/internal/guard"
	"github.com/fabricd/fabricd/internal/transport"
	"github.com/fabricd/fabricd/internal/transport/transporttest"
)

// TestAPanicInAHandshakeEndsItAlone: the provider accepts the next one.
func TestAPanicInAHandshakeEndsItAlone(t *testing.T) {
	guard.Catch(t)
	var bad atomic.Bool
	var log logBuffer
	pa, pb := onSockets(t, func(c *Config) {
		identify := c.Identify
		c.Log = zerolog.New(&log)
		c.Identify = func(cs tls.ConnectionState) (transport.Identity, error) {
			id, err := identify(cs)
			if id.Node == idA.Node && bad.CompareAndSwap(true, false) {
				panic("certificate of mass destruction")
			}
			return id, err
		}
	})
	bad.Store(true)
	before := guard.Caught()
	if s, err := pa.Dial(t.Context(), pb.Addr()); err == nil {
		t.Errorf("there is a session with %v", s.Peer())
	}
	if guard.Caught() != before+1 || !strings.Contains(log.String(), "certificate of mass destruction") || !strings.Contains(log.String(), `"level":"error"`) {
		t.Errorf("%d panics caught, logged %s", guard.Caught()-before, &log)
	}
	transporttest.Connect(t, pa, pb)
}

// TestAPanicOverAFrameEndsTheSession, whichever goroutine reads it, and no other session.
func TestAPanicOverAFrameEndsTheSession(t *testing.T) {
	guard.Catch(t)
	offering(t, func(t *testing.T, out transport.SendLane, in *recvLane) {
		before := guard.Caught()
		read := make(chan error, 1)
		go func() { // ends with the session
			var err error
			for err == nil { // what has come before is read, and not offered
				_, err = in.ReadOr(make([]byte, 100), func([]byte) int { panic("frame of mass destruction") })
			}
			read <- err
		}()
		var err error
		for err == nil {
			_, err = out.Write([]byte("frame"))
		}
		var end *transport.CloseError
		if err := <-read; !errors.As(err, &end) || end.Remote || end.Code != transport.CodeProtocol || !strings.Contains(end.Reason, "frame of mass destruction") {
			t.Errorf("the reader gets %v", err)
		}
		if !errors.As(err, &end) || !end.Remote || end.Code != transport.CodeProtocol {
			t.Errorf("the writer gets %v", err)
		}
		if guard.Caught() != before+1 {
			t.Errorf("%d panics caught", guard.Caught()-before)
		}
	})
}
