package server

import (
	"testing"

	"github.com/fabricd/fabricd/internal/shm"
)

// TestQuotasAreThoseOfTheNearestToItsBound of all applications and users.
func TestQuotasAreThoseOfTheNearestToItsBound(t *testing.T) {
	s := &Server{opt: Options{User: Limits{Sessions: 4, Endpoints: 40, Windows: 8}.withDefaults(4)}, users: map[uint32]*user{}, total: newTotal(1000, 0)}
	first, _, err := s.enter(1, false)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.enter(2, false); err != nil {
		t.Fatal(err)
	}
	limits := Limits{Endpoints: 10, Windows: 8}.withDefaults(1)
	a, b := newSessionAccount(limits, first.account), newSessionAccount(limits, first.account)
	s.list(first, a, true)
	s.list(first, b, true)
	if err := a.charge(endpoints, 9); err != nil {
		t.Fatal(err)
	}
	for _, session := range []*account{a, b} { // of the user together as near as it gets
		if err := session.charge(windows, 3); err != nil {
			t.Fatal(err)
		}
	}
	got := s.Quotas()
	for name, want := range map[string]float64{"endpoints": 0.9, "windows": 0.75, "sessions": 0.25, "channels": 0, "mappings": 0} {
		if got[name] != want {
			t.Errorf("%s: %v, want %v", name, got[name], want)
		}
	}
	if got["user_descriptors"] <= 0 || got["user_descriptors"] > 0.1 || shm.Descriptors() <= 0 {
		t.Errorf("descriptors: %v", got["user_descriptors"])
	}
	s.list(first, a, false)
	if got := s.Quotas()["endpoints"]; got != 9.0/40 {
		t.Errorf("without the session: %v, want its user's", got)
	}
}
