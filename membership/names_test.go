package membership

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/membership/services"
	"github.com/fabricd/fabricd/membership/verdict"
)

// A server has the services of a node of a world, and those reported to it.
type server struct {
	mu       sync.Mutex // guards the fields below
	own      []services.Service
	reported map[addr.Incarnation][]services.Service
	times    int
}

func (s *server) config(c *Config) {
	c.Serves = func() []services.Service {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.own
	}
	c.OnServices = func(incarnation addr.Incarnation, list []services.Service) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.reported == nil {
			s.reported = make(map[addr.Incarnation][]services.Service)
		}
		s.reported[incarnation] = list
		s.times++
	}
}

// serve makes the node serve names, each at a port of its own.
func (s *server) serve(a *Agent, names ...string) {
	var list []services.Service
	for i, n := range names {
		list = append(list, services.Service{Name: n, Port: addr.Port(40000 + i)})
	}
	s.mu.Lock()
	s.own = list
	s.mu.Unlock()
	a.ServesAnew()
}

// known returns the services of incarnations, as "incarnation name name; incarnation name".
func (s *server) known() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []string
	for incarnation, list := range s.reported {
		if len(list) == 0 {
			continue
		}
		text := incarnation.String()
		for _, x := range list {
			text += " " + x.Name
		}
		all = append(all, text)
	}
	slices.Sort(all)
	return strings.Join(all, "; ")
}

func TestServicesAreReported(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var s [4]server
		h := w.host(s[1].config)
		s[1].serve(h.a, "early")
		two := w.join(2, s[2].config)
		time.Sleep(2 * time.Second)
		s[2].serve(two.a, "db", "web")
		time.Sleep(time.Second)
		w.join(3, s[3].config)
		time.Sleep(2 * time.Second)
		one, twoIncarnation := h.a.Self().Incarnation, two.a.Self().Incarnation
		if got, want := s[3].known(), fmt.Sprintf("%v early; %v db web", one, twoIncarnation); got != want {
			t.Errorf("a node that comes later knows %q, want %q", got, want)
		}
		s[2].serve(two.a, "db")
		s[1].serve(h.a)
		time.Sleep(time.Second)
		for i, want := range []string{1: fmt.Sprintf("%v db", twoIncarnation), 2: "", 3: fmt.Sprintf("%v db", twoIncarnation)} {
			if got := s[i].known(); i > 0 && got != want {
				t.Errorf("node %d knows %q within a second, want %q", i, got, want)
			}
		}
	})
}

// While the host is away announced services stay; changes meanwhile are announced when it
// is back. A node that is lost takes its services with it.
func TestServicesAndTheHostsAbsence(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var s [4]server
		w.host()
		w.join(2, s[2].config)
		w.join(3, s[3].config)
		s[2].serve(w.node(2).a, "db", "web")
		time.Sleep(2 * time.Second)
		incarnation := w.node(2).incarnation()
		if got, want := s[3].known(), fmt.Sprintf("%v db web", incarnation); got != want {
			t.Fatalf("node 3 knows %q, want %q", got, want)
		}
		w.kill(w.node(1))
		time.Sleep(5 * time.Second)
		s[2].serve(w.node(2).a, "web")
		time.Sleep(5 * time.Second)
		if got, want := s[3].known(), fmt.Sprintf("%v db web", incarnation); got != want {
			t.Errorf("without a host node 3 knows %q, want still %q", got, want)
		}
		w.again(1)
		w.within(10*time.Second, "the change is reported", func() bool { return s[3].known() == fmt.Sprintf("%v web", incarnation) })
		w.kill(w.node(2))
		w.within(5*time.Second, "the loss is known", func() bool {
			return !slices.ContainsFunc(w.node(3).a.Nodes(), func(n Node) bool { return n.Incarnation == incarnation })
		})
		if known := w.node(3).a.names.book.Lists(); len(known) != 0 {
			t.Errorf("node 3 holds %v of an incarnation that is over", known)
		}
	})
}

// Lists of a hostile member about other incarnations are passed over; lists sent too often reach
// the others at a bounded rate, and the last one in the end; an invalid list ends its
// session.
func TestHostileServices(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var honest server
		h := w.host()
		w.join(2, honest.config)
		w.join(3)
		time.Sleep(2 * time.Second)
		victim, n := w.node(2).incarnation(), w.node(3)
		w.kill(n)
		time.Sleep(2 * time.Second)
		s, incarnation := w.mute(n)
		before := honest.reports()
		s.Send(services.List{Incarnation: victim, Seq: 1000, Services: []services.Service{{Name: "stolen", Port: 1}}})
		s.Send(services.List{Incarnation: addr.Incarnation{Node: 77, Generation: 1}, Seq: 1, Services: []services.Service{{Name: "invented", Port: 1}}})
		const changes = 500
		for i := range changes {
			s.Send(services.List{Incarnation: incarnation, Seq: uint64(i + 1), Services: []services.Service{{Name: "flaps", Port: addr.Port(i + 1)}}})
			s.Send(verdict.Ping{Incarnation: incarnation, Nonce: uint64(i)})
			time.Sleep(10 * time.Millisecond)
		}
		if times := honest.reports() - before; times > 8+2*5+1 {
			t.Errorf("%d changes in 5 s are reported %d times", changes, times)
		}
		time.Sleep(500 * time.Millisecond)
		if got, want := honest.known(), fmt.Sprintf("%v flaps", incarnation); got != want || honest.port(incarnation) != changes {
			t.Errorf("another member knows %q at port %d, want %q at %d", got, honest.port(incarnation), want, changes)
		}
		if stray, ok := ask(h.a, func() uint64 { return h.a.names.stray }); !ok || stray != 2 || h.a.Status().StrayLists != 2 {
			t.Errorf("%d lists of other incarnations were counted, want 2", stray)
		}
		if h.a.Err() != nil {
			t.Error(h.a.Err())
		}
		s.Send(services.List{Incarnation: incarnation, Seq: 9999, Services: []services.Service{{Name: "b", Port: 1}, {Name: "a", Port: 1}}})
		select {
		case <-s.Done():
		case <-time.After(time.Second):
			t.Error("a list that is none does not end the session")
		}
	})
}

func (s *server) reports() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.times
}

func (s *server) port(incarnation addr.Incarnation) addr.Port {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.reported[incarnation]) == 0 {
		return 0
	}
	return s.reported[incarnation][0].Port
}

// A rule at the host keeps nodes from serving names, whatever they are called and say: the
// others do not receive such a name, the node does, and the audit log has the rule.
func TestARuleSaysWhoMayServe(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var s [4]server
		var mu sync.Mutex // guards the fields below
		owner, barred, audited := "n2", []string(nil), map[string]int{}
		h := w.host(s[1].config, func(c *Config) {
			c.Bars = func(n Node, name string) string {
				mu.Lock()
				defer mu.Unlock()
				if name == "db" && n.Name() != owner {
					return "service:db by " + owner
				}
				return ""
			}
			c.Audit = func(e Audit) {
				mu.Lock()
				defer mu.Unlock()
				if e.Event == "serve-refused" {
					audited[e.Name+": "+e.Text]++
				}
			}
		})
		served := func(c *Config) {
			c.Barred = func(names []string) {
				mu.Lock()
				defer mu.Unlock()
				barred = names
			}
		}
		barredAre := func(want string) func() bool {
			return func() bool {
				mu.Lock()
				defer mu.Unlock()
				return strings.Join(barred, " ") == want
			}
		}
		two := w.join(2, s[2].config, served)
		w.join(3, s[3].config)
		time.Sleep(2 * time.Second)
		s[1].serve(h.a, "db")
		s[2].serve(two.a, "db", "web")
		w.within(2*time.Second, "the owner's db is reported", func() bool { return s[3].known() == fmt.Sprintf("%v db web", two.incarnation()) })

		mu.Lock()
		owner = "n3"
		mu.Unlock()
		h.a.RulesChanged()
		w.within(2*time.Second, "db is taken back", func() bool { return s[3].known() == fmt.Sprintf("%v web", two.incarnation()) })
		w.within(time.Second, "the node knows", barredAre("db"))
		n := w.node(3)
		w.kill(n)
		time.Sleep(2 * time.Second)
		evil, incarnation := w.mute(n)
		for i := range 3 { // under its own name, and then under another one
			evil.Send(services.List{Incarnation: incarnation, Seq: uint64(i + 1), Services: []services.Service{{Name: "db", Port: addr.Port(i + 1)}}})
			evil.Send(verdict.Ping{Incarnation: incarnation, Nonce: uint64(i)})
			time.Sleep(100 * time.Millisecond)
		}
		if got, want := s[2].known(), fmt.Sprintf("%v db", incarnation); got != want {
			t.Errorf("the owner serves %q, want %q", got, want)
		}
		mu.Lock()
		owner = "n2"
		mu.Unlock()
		h.a.RulesChanged()
		w.within(2*time.Second, "db is its owner's again", barredAre(""))
		evil.Send(services.List{Incarnation: incarnation, Seq: 9, Services: []services.Service{{Name: "db", Port: 9}, {Name: "evil", Port: 9}}})
		evil.Send(verdict.Ping{Incarnation: incarnation, Nonce: 9})
		time.Sleep(time.Second)
		if got, want := s[2].known(), fmt.Sprintf("%v evil", incarnation); got != want {
			t.Errorf("a member that may not serve db knows %q, want %q", got, want)
		}
		mu.Lock()
		defer mu.Unlock()
		if audited["n1: service:db by n2"] == 0 || audited["n2: service:db by n3"] == 0 || audited["n3: service:db by n2"] == 0 || len(audited) > 4 {
			t.Errorf("the audit log has %v", audited)
		}
	})
}
