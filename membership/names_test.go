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
)

// A server is what a node of a world serves, and has heard that others serve.
type server struct {
	mu    sync.Mutex // guards the fields below
	own   []services.Service
	heard map[addr.Life][]services.Service
	times int
	a     *Agent
}

func (s *server) config(c *Config) {
	c.Serves = func() []services.Service {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.own
	}
	c.OnServices = func(life addr.Life, list []services.Service) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.heard == nil {
			s.heard = make(map[addr.Life][]services.Service)
		}
		s.heard[life] = list
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

// hears returns what lives serve, as "life name name; life name".
func (s *server) hears() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []string
	for life, list := range s.heard {
		if len(list) == 0 {
			continue
		}
		text := life.String()
		for _, x := range list {
			text += " " + x.Name
		}
		all = append(all, text)
	}
	slices.Sort(all)
	return strings.Join(all, "; ")
}

func TestServicesAreTold(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var s [4]server
		h := w.host(s[1].config)
		s[1].serve(h.a, "early")
		two := w.join(2, s[2].config)
		time.Sleep(2 * time.Second)
		s[2].serve(two.a, "db", "web")
		time.Sleep(time.Second)
		three := w.join(3, s[3].config)
		time.Sleep(2 * time.Second)
		one, twoLife := h.a.Self().Life, two.a.Self().Life
		if got, want := s[3].hears(), fmt.Sprintf("%v early; %v db web", one, twoLife); got != want {
			t.Errorf("a node that comes later hears %q, want %q", got, want)
		}
		s[2].serve(two.a, "db")
		s[1].serve(h.a)
		time.Sleep(time.Second)
		for i, want := range []string{1: fmt.Sprintf("%v db", twoLife), 2: "", 3: fmt.Sprintf("%v db", twoLife)} {
			if got := s[i].hears(); i > 0 && got != want {
				t.Errorf("node %d hears %q within a second, want %q", i, got, want)
			}
		}
		_ = three
	})
}
