package daemon

import "github.com/fabricd/fabricd/internal/engine"

// Table returns the rows of one of TableNames, for the admin interface.
func (d *Daemon) Table(name string) any {
	engine, _ := d.rooms()
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
	engine, _ := d.rooms()
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
