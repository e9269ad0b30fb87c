package daemon

import (
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

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

// LinkFaultsCleared is the answer to a request that ends faults.
type LinkFaultsCleared struct {
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

// linkFaulter is the part of a subject that has faults of links.
type linkFaulter interface {
	LinkFaults(ended bool) ([]faults.Status, error)
	AddLinkFaults(rules []faults.Rule) ([]uint64, error)
	ClearLinkFaults(id uint64, name string) (int, error)
}

// linkFaultRoutes adds the requests about faults of links.
func (a *admin) linkFaultRoutes(mux *http.ServeMux, s linkFaulter) {
	mux.HandleFunc("GET /v1/faults", func(w http.ResponseWriter, r *http.Request) {
		all, err := s.LinkFaults(r.FormValue("ended") == "true")
		a.answerFault(w, LinkFaults{rows(all)}, err)
	})
	mux.HandleFunc("POST /v1/faults", func(w http.ResponseWriter, r *http.Request) { a.addLinkFaults(w, r, s) })
	mux.HandleFunc("DELETE /v1/faults", func(w http.ResponseWriter, r *http.Request) {
		id, err := linkFaultID(r.FormValue("id"))
		if err != nil {
			a.refuse(w, http.StatusBadRequest, "%v", err)
			return
		}
		n, err := s.ClearLinkFaults(id, r.FormValue("name"))
		a.answerFault(w, LinkFaultsCleared{n}, err)
	})
}

// linkFaultID reads the ID of a fault; empty means none.
func linkFaultID(text string) (uint64, error) {
	if text == "" {
		return 0, nil
	}
	id, err := strconv.ParseUint(text, 10, 64)
	if err != nil || id == 0 {
		return 0, &faults.FieldError{Field: "id", Value: text, Want: "want the number of a fault"}
	}
	return id, nil
}

// answerFault sends an answer, or why there is none.
func (a *admin) answerFault(w http.ResponseWriter, v any, err error) {
	_, field := errors.AsType[*faults.FieldError](err)
	switch {
	case err == nil:
		a.answer(w, http.StatusOK, v)
	case errors.Is(err, errFaultsOff):
		a.refuse(w, http.StatusForbidden, "%v", err)
	case field:
		a.refuse(w, http.StatusBadRequest, "%v", err)
	default:
		a.refuse(w, http.StatusConflict, "%v", err)
	}
}

func (a *admin) addLinkFaults(w http.ResponseWriter, r *http.Request, s linkFaulter) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(adminTimeout)) // as in answer
	text, err := io.ReadAll(r.Body)
	if err != nil {
		a.refuse(w, http.StatusBadRequest, "faults: %v", err)
		return
	}
	if _, off := s.LinkFaults(false); off != nil {
		a.answerFault(w, nil, off)
		return
	}
	rules, err := faults.Decode(text)
	if err != nil {
		a.refuse(w, http.StatusBadRequest, "%v", err)
		return
	}
	ids, err := s.AddLinkFaults(rules)
	a.answerFault(w, LinkFaultIDs{ids}, err)
}

// ParseNodeFault reads a fault of a node itself from JSON and checks it.
func ParseNodeFault(text []byte) (NodeFault, error) { return failpoint.Parse(text) }

// A NodeFaultStep is a step of the protocol at which a node can be broken.
type NodeFaultStep = failpoint.StepInfo

// NodeFaultSteps returns all of them, in the order in which a node's incarnation meets
// them.
func NodeFaultSteps() []NodeFaultStep { return failpoint.Steps() }
