package chaos

import (
	"fmt"
	"net"
	"testing"
)

// TestALocalLabTakesPortsThatAreFree has another cluster of the machine listen at every
// address, as fabricd does unless it is configured otherwise.
func TestALocalLabTakesPortsThatAreFree(t *testing.T) {
	m := newMachine(fabricdExe, ownName(0), nil, 0)
	taken := m.place(0)
	l, err := net.Listen("tcp4", fmt.Sprintf("0.0.0.0:%d", taken.data))
	if err == nil { // else a cluster runs here
		defer l.Close()
	}
	u, err := net.ListenPacket("udp4", fmt.Sprintf("0.0.0.0:%d", taken.gossip+2))
	if err == nil {
		defer u.Close()
	}
	if err := m.open(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
	for node := range 3 {
		p := m.place(node)
		if p.data < taken.data+4 || p.gossip != p.data+1 {
			t.Errorf("node %d has the ports %d and %d; two pairs from %d on are taken", node, p.data, p.gossip, taken.data)
		}
		l, err := net.Listen("tcp4", fmt.Sprintf("%s:%d", p.bind, p.data))
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
	}
}
