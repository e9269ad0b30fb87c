package membership

import (
	"errors"
	"strings"
	"testing"

	"github.com/fabricd/fabricd/membership/trust"
)

// TestTheStateOfTheHostHasTheLatestDial while the session is lost: it names what an operator can
// mend, such as the host of another cluster at the host's address.
func TestTheStateOfTheHostHasTheLatestDial(t *testing.T) {
	for _, c := range []struct{ session, dial, want string }{
		{"", "", ""},
		{"", "no answer", "no answer"},
		{"lost: silent", "", "lost: silent"},
		{"lost", "signed by another CA", "lost; the latest dial: signed by another CA"},
		{"reachable", "no answer", "reachable"},
		{"lost: node \"b\" is banned", "no host: a: refused by peer: node \"b\" is banned; b: no answer", "lost: node \"b\" is banned"},
	} {
		if got := hostDetail(c.session, c.dial); got != c.want {
			t.Errorf("session %q, dial %q: %q, want %q", c.session, c.dial, got, c.want)
		}
	}
}

// TestTheStateOfTheHostIsOneLineWithNames: what several addresses answered has separators, and
// nodes that are known have their names.
func TestTheStateOfTheHostIsOneLineWithNames(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.cluster(3)
		n, peer := w.node(2), w.node(3).st.Identity()
		id := trust.Identity{Cluster: peer.Cluster, Node: peer.Node}
		n.a.noHost(errors.Join(errors.New("first"), errors.New(id.String()+": not it")))
		n.a.view.mu.Lock()
		n.a.view.hostText = HostLost
		n.a.view.mu.Unlock()
		got := n.a.Status().HostDetail
		if want := `lost; the latest dial: first; node "n3": not it`; got != want || strings.Contains(got, "\n") {
			t.Errorf("%q, want %q", got, want)
		}
	})
}
