package hostile

import (
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/wire"
)

// TestUnconfirmedConnectsHoldUpNobody has the bad node ask for connections and
// never confirm the grant. An honest request to the same port is accepted soon.
func TestUnconfirmedConnectsHoldUpNobody(t *testing.T) {
	r := newRig(t)
	listener, port := r.listen(16)
	l := r.link()
	for i := range wire.ConnID(4) {
		l.open(frames(wire.Connect{Conn: i + 1, From: 9, To: port}))
	}
	go func() {
		for {
			if _, _, err := listener.Accept(within(t)); err != nil {
				return
			}
		}
	}()
	ep, err := r.honest.NewSession(attach.Credentials{UID: 1000}).Open()
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	_, err = ep.Connect(within(t), addr.Addr{Node: victimID, Port: port})
	if took := time.Since(began); err != nil || took > 2*time.Second {
		t.Errorf("an honest connect takes %v: %v", took, err)
	}
	listener.Close()
}
