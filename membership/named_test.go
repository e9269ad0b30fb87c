package membership

import (
	"strconv"
	"strings"
	"testing"

	"github.com/fabricd/fabricd/membership/control"
	"github.com/fabricd/fabricd/membership/trust"
)

// TestDigitsAloneAreAnID: a node that has the ID or the UUID of another one as its name
// does not get what an operator decides about that one.
func TestDigitsAloneAreAnID(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.cluster(4)
		host := w.node(1).a
		victim := strconv.Itoa(int(w.node(2).incarnation().Node))
		if err := host.enroller.change(func(all enrolments) error { // as a release without the rule did
			all.byName("n3").Name = victim
			all.byName("n4").Name = w.node(2).st.Identity().Node.String()
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		want := w.node(2).st.Identity().Node
		for _, text := range []string{victim, "0" + victim, want.String(), "n2"} {
			if e, ok := host.Enrolled(text); !ok || e.UUID != want {
				t.Errorf("%q is %s, %v, want n2", text, e.Name, ok)
			}
			if e, err := host.AllowNode(t.Context(), text, false); err != nil || e.UUID != want {
				t.Errorf("allow %q: %s, %v, want n2", text, e.Name, err)
			}
		}
		if e, err := host.BanNode(t.Context(), victim, ""); err != nil || e.UUID != want {
			t.Errorf("ban %q: %s, %v, want n2", victim, e.Name, err)
		}
		for _, id := range []string{"60000", "00"} {
			if _, err := host.BanNode(t.Context(), id, ""); err == nil {
				t.Errorf("ban %q: no error", id)
			}
		}
		if _, err := host.BanNode(t.Context(), "60000", ""); err == nil || !strings.Contains(err.Error(), "by its name") {
			t.Errorf("ban of an ID that no node has: %v", err)
		}
	})
}

// TestTheHostRefusesANameOfDigits: to one that enrols or renames itself; a node that
// was enrolled with such a name comes back.
func TestTheHostRefusesANameOfDigits(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.cluster(3)
		d := w.node(1).a.enroller
		_, err := d.admit(make(enrolments), trust.Pin{1}, "6", trust.TokenRecord{}, w.node(1).a.cfg.Now())
		refusedName(t, "enrols", err)
		node := w.node(2).st.Identity().Node
		id := trust.Identity{Node: node, Key: d.get(node).Key}
		_, err = d.vouch(id, "6")
		refusedName(t, "renames itself", err)
		if err := d.change(func(all enrolments) error { all[node].Name = "6"; return nil }); err != nil {
			t.Fatal(err)
		}
		if _, err := d.vouch(id, "6"); err != nil {
			t.Errorf("enrolled as 6: %v", err)
		}
		if got := d.get(node).Name; got != "6" {
			t.Errorf("its name is %q", got)
		}
	})
}

func refusedName(t *testing.T, what string, err error) {
	t.Helper()
	if r, ok := err.(*control.RefusedError); !ok || r.Code != control.CodeName || !strings.Contains(r.Error(), "digits alone") {
		t.Errorf("%s: %v, want a refusal of the name", what, err)
	}
}
