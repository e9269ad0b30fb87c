package server

import (
	"testing"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/ring"
	"github.com/fabricd/fabricd/internal/status"
)

// A pairedEnd is an endpoint that knows its other end, and nothing else.
type pairedEnd struct {
	attach.NodeEndpoint
	self, peer any
}

func (pairedEnd) Ready() attach.Events              { return 0 }
func (pairedEnd) Via(path, why string)              {}
func (e pairedEnd) Pair() (self, peer any, ok bool) { return e.self, e.peer, true }

// A request for a shared-memory path may run concurrently with the endpoint's close, which does not
// wait for it: nothing stays charged, and no descriptor open.
func TestShmPathOfAnEndpointThatIsBeingClosed(t *testing.T) {
	p := pairs{ends: make(map[any]*endpoint)}
	user := newAccount("the user", Limits{}.withDefaults(4), nil)
	var ends [2]*endpoint
	for i := range ends {
		of := &session{account: newSessionAccount(SessionLimits(), user)}
		ends[i] = &endpoint{s: of, ep: pairedEnd{self: i, peer: 1 - i}}
	}
	for _, e := range ends {
		p.enter(e)
	}
	if _, other, err := p.ask(ends[0], ring.Default); other != ends[1] || err != nil {
		t.Fatal(other, err)
	}
	p.leave(ends[1])
	if _, _, err := p.ask(ends[1], ring.Default); status.Of(err) != status.Reset {
		t.Errorf("SHM_PATH after the close: %v", err)
	}
	p.leave(ends[0])
	if a, b := ends[0].pairing, ends[1].pairing; !user.idle() || len(p.ends) != 0 || a != (pairing{}) || b != (pairing{}) {
		t.Errorf("left are %v, %d ends, %v and %v", user.used, len(p.ends), a, b)
	}
}
