package services

import (
	"fmt"
	"slices"

	"github.com/fabricd/fabricd/fabric/addr"
)

// Bounds.
const (
	MaxPerNode = 64    // names that one node serves
	MaxCluster = 4_096 // names that are held of all nodes
)

// A Service is a name and the port of the endpoint that serves it.
type Service struct {
	Name string // as addr.ValidService has it
	Port addr.Port
}

// A List is all services of one incarnation. It must not be changed.
type List struct {
	Incarnation addr.Incarnation
	// Seq counts the lists of an incarnation. A later one replaces an earlier one, and one with
	// the same number too: the host may hold more or less of it.
	Seq      uint64
	Services []Service // by name, none twice, at most MaxPerNode
}

// Check reports the error in a list from elsewhere; nil: none.
func (l List) Check() error {
	if len(l.Services) > MaxPerNode {
		return fmt.Errorf("%d services, at most %d", len(l.Services), MaxPerNode)
	}
	for i, s := range l.Services {
		switch {
		case !addr.ValidService(s.Name):
			return fmt.Errorf("the service %.80q: want a name", s.Name)
		case s.Port == 0:
			return fmt.Errorf("the service %s on port 0", s.Name)
		case i > 0 && s.Name <= l.Services[i-1].Name:
			return fmt.Errorf("the service %s is not behind %s", s.Name, l.Services[i-1].Name)
		}
	}
	return nil
}

// missing returns the names of l that m does not have.
func (l List) missing(m List) (names []string) {
	for _, s := range l.Services {
		if !slices.ContainsFunc(m.Services, func(o Service) bool { return o.Name == s.Name }) {
			names = append(names, s.Name)
		}
	}
	return names
}

// same reports whether two lists are equal, but for their numbers.
func (l List) same(m List) bool {
	return l.Incarnation == m.Incarnation && slices.Equal(l.Services, m.Services)
}
