package daemon

import (
	"io"
	"net/http"

	"github.com/fabricd/fabricd/internal/faults"
	"github.com/fabricd/fabricd/internal/faults/failpoint"
)

// LinkFaults is the answer to a request for the faults of a node's links.
type LinkFaults struct {
	// Faults are the rules that have ended, if asked for, then the active ones, each with its
	// effect counters.
	Faults []faults.Status `json:"faults"`
}

// LinkFaultIDs is the answer to a request that adds faults.
type LinkFaultIDs struct {
	IDs []uint64 `json:"ids"` // in the order of the rules
}

// FaultsCleared is the answer to a request that ends faults.
type FaultsCleared struct {
	Cleared int `json:"cleared"`
}

// LinkFaults returns the faults of links, with ended those too that are over.
func (d *Daemon) LinkFaults(ended bool) ([]faults.Status, error) {
	if d.links == nil {
		return nil, errFaultsOff
	}
	return d.links.plane.List(ended), nil
}

// AddLinkFaults adds faults of links, all at one moment or none.
func (d *Daemon) AddLinkFaults(rules []faults.Rule) ([]uint64, error) {
	if d.links == nil {
		return nil, errFaultsOff
	}
	ids, err := d.links.plane.AddAll(rules)
	for i := range ids {
		d.log.Warn().Str("op", "faults").Uint64("fault", ids[i]).Str("name", rules[i].Name).Stringer("does", rules[i]).Msg("link fault added")
	}
	return ids, err
}

// ClearLinkFaults ends the fault with id; without one those called name; without either all. It
// returns their number: to end a fault that does not exist is no error.
func (d *Daemon) ClearLinkFaults(id uint64, name string) (n int, err error) {
	if d.links == nil {
		return 0, errFaultsOff
	}
	switch {
	case id != 0:
		if d.links.plane.Remove(id) {
			n = 1
		}
	case name != "":
		n = d.links.plane.RemoveNamed(name)
	default:
		n = d.links.plane.Clear()
	}
	d.log.Warn().Str("op", "faults").Uint64("fault", id).Str("name", name).Int("count", n).Msg("link faults cleared")
	return n, nil
}

// linkFaultRoutes adds the requests about faults of links.
func (a *admin) linkFaultRoutes(mux *http.ServeMux) {
	a.on(mux, "GET /v1/faults", func(_ http.ResponseWriter, r *http.Request) (any, error) {
		all, err := a.subject.LinkFaults(r.FormValue("ended") == "true")
		return LinkFaults{rows(all)}, err
	})
	a.on(mux, "POST /v1/faults", a.addLinkFaults)
	a.on(mux, "DELETE /v1/faults", func(_ http.ResponseWriter, r *http.Request) (any, error) {
		id, err := faultID(r)
		if err != nil {
			return nil, err
		}
		n, err := a.subject.ClearLinkFaults(id, r.FormValue("name"))
		return FaultsCleared{n}, err
	})
}

func (a *admin) addLinkFaults(w http.ResponseWriter, r *http.Request) (any, error) {
	beginBody(w)
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, wrong("faults: %w", err)
	}
	if _, off := a.subject.LinkFaults(false); off != nil {
		return nil, off
	}
	rules, err := faults.Decode(text)
	if err != nil {
		return nil, wrong("%w", err)
	}
	ids, err := a.subject.AddLinkFaults(rules)
	return LinkFaultIDs{ids}, err
}

// ParseNodeFault reads a fault of a node itself from JSON and checks it.
func ParseNodeFault(text []byte) (NodeFault, error) { return failpoint.Parse(text) }

// A NodeFaultStep is a step of the protocol at which a node can be broken.
type NodeFaultStep = failpoint.StepInfo

// NodeFaultSteps returns all of them, in the order in which a node's incarnation meets
// them.
func NodeFaultSteps() []NodeFaultStep { return failpoint.Steps() }
