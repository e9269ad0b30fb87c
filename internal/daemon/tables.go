package daemon

import (
	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/engine"
)

// Table returns the rows of one of TableNames, for the admin interface.
func (d *Daemon) Table(name string) any {
	engine, _ := d.live.engineAndAgent()
	if engine == nil {
		return []struct{}{}
	}
	switch name {
	case "ports":
		return rows(engine.Ports())
	case "conns":
		return rows(engine.Conns())
	case "windows":
		return rows(engine.Windows())
	case "links":
		return rows(engine.Links())
	case "services":
		return serviceRows(engine)
	}
	panic("BUG: daemon: no table " + name)
}

// rows returns s, empty instead of nil, so that JSON has [] and not null.
func rows[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}

// counts returns how much is going on.
func (d *Daemon) counts() Counts {
	c := Counts{Refused: d.refused.Load()}
	for _, n := range d.Nodes().Nodes {
		if n.State != "removed" {
			c.Nodes++
		}
	}
	engine, _ := d.live.engineAndAgent()
	if engine != nil {
		c.count(engine)
	}
	return c
}

func (c *Counts) count(engine *engine.Node) {
	c.Links, c.Conns = len(engine.Links()), len(engine.Conns())
	c.Ports, c.Windows = len(engine.Ports()), len(engine.Windows())
	c.ConnMemory, c.ConnMemoryLimit = engine.ConnMemory()
}

// A ServiceRow is a service, as `fabricd services --json` shows it.
type ServiceRow struct {
	Name        string           `json:"name"`
	Node        string           `json:"node"` // its name
	Incarnation addr.Incarnation `json:"life"`
	Address     string           `json:"address"`
	// RoundTripUS is how far away the node is; null while it is not known.
	RoundTripUS *int64 `json:"round_trip_us"`
	// State is served, or of this node's services also barred by the host.
	State string `json:"state"`
}

func serviceRows(n *engine.Node) []ServiceRow {
	all := []ServiceRow{}
	add := func(state string, s attach.Service) {
		row := ServiceRow{Name: s.Name, Node: s.Node, Incarnation: s.Incarnation, State: state, Address: addr.Addr{Node: s.Incarnation.Node, Port: s.Port}.String()}
		if us := s.RoundTrip.Microseconds(); s.RoundTrip >= 0 {
			row.RoundTripUS = &us
		}
		all = append(all, row)
	}
	for _, s := range n.Services() {
		add("served", s)
	}
	self := n.Self()
	for _, b := range n.BarredServices() {
		add("barred by the host", attach.Service{Name: b.Name, Port: b.Port, Incarnation: self.Incarnation, Node: self.Name})
	}
	return all
}
