package stream

import (
	"crypto/tls"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/internal/guard"
	"github.com/fabricd/fabricd/internal/test/transporttest"
	"github.com/fabricd/fabricd/internal/transport"
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
