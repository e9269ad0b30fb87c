package quic

import (
	"crypto/tls"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/internal/guard"
	"github.com/fabricd/fabricd/internal/test/testca"
	"github.com/fabricd/fabricd/internal/test/transporttest"
	"github.com/fabricd/fabricd/internal/transport"
)

// TestAPanicInAHandshakeEndsItAlone: on the provider's goroutines and on those of
// quic-go. The provider accepts the next one.
func TestAPanicInAHandshakeEndsItAlone(t *testing.T) {
	guard.Catch(t)
	for name, trap := range map[string]func(c *Config, spring func()){
		"identify": func(c *Config, spring func()) {
			identify := c.Identify
			c.Identify = func(cs tls.ConnectionState) (transport.Identity, error) {
				spring()
				return identify(cs)
			}
		},
		"verify": func(c *Config, spring func()) {
			base := c.ServerTLS
			c.ServerTLS = func() *tls.Config {
				tc := base()
				verify := tc.VerifyConnection
				tc.VerifyConnection = func(cs tls.ConnectionState) error {
					spring()
					return verify(cs)
				}
				return tc
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			ca, log := testca.New(), &logBuffer{}
			cfg := member(ca, idB)
			cfg.Log = zerolog.New(log)
			armed := make(chan bool, 1)
			armed <- true
			trap(&cfg, func() {
				select {
				case <-armed:
					panic("certificate of mass destruction")
				default:
				}
			})
			a, b := listen(t, member(ca, idA)), listen(t, cfg)
			defer b.Close()
			defer a.Close()
			before := guard.Caught()
			if s, err := a.Dial(t.Context(), b.Addr()); err == nil {
				t.Errorf("there is a session with %v", s.Peer())
			}
			if guard.Caught() != before+1 || !strings.Contains(log.String(), "certificate of mass destruction") || !strings.Contains(log.String(), `"level":"error"`) {
				t.Errorf("%d panics caught, logged %s", guard.Caught()-before, log)
			}
			transporttest.Connect(t, a, b)
		})
	}
}
