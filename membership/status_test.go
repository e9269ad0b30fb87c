package membership

import "testing"

// TestTheStateOfTheHostHasTheLatestDial while the session is lost: it names what an operator can
// mend, such as the host of another cluster at the host's address.
func TestTheStateOfTheHostHasTheLatestDial(t *testing.T) {
	for _, c := range []struct{ session, dial, want string }{
		{"", "", ""},
		{"", "no answer", "no answer"},
		{"lost: silent", "", "lost: silent"},
		{"lost", "signed by another CA", "lost; the latest dial: signed by another CA"},
		{"reachable", "no answer", "reachable"},
	} {
		if got := hostDetail(c.session, c.dial); got != c.want {
			t.Errorf("session %q, dial %q: %q, want %q", c.session, c.dial, got, c.want)
		}
	}
}
