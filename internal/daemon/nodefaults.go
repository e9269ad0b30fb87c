package daemon

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/internal/faults/failpoint"
)

// A NodeFault is a fault of one node, in the form in which the admin interface
// carries it.
type NodeFault = failpoint.Fault

// A NodeFaultReport is a NodeFault that a node holds, and its outcome.
type NodeFaultReport = failpoint.Report

// NodeFaults is the answer to a list of them.
type NodeFaults struct {
	NodeFaults []NodeFaultReport `json:"node_faults"`
}

// NodeFaultCleared is the answer to an end of node faults.
type NodeFaultCleared struct {
	Cleared int `json:"cleared"`
}

// NewFaults returns the faults of a node of this process, none yet; nil unless
// the configuration enables them.
func NewFaults(c Config) *failpoint.Node {
	if !c.EnableFaults {
		return nil
	}
	return failpoint.New(&failpoint.Process{})
}

// takeNodeFaults makes the node's faults, if the configuration enables them.
func (d *Daemon) takeNodeFaults() {
	if !d.cfg.EnableFaults {
		return
	}
	if d.nodeFaults = d.opts.Faults; d.nodeFaults == nil {
		d.nodeFaults = NewFaults(d.cfg)
	}
}

// errFaultsOff refuses faults at a node that was not started for them.
var errFaultsOff = errors.New("faults are off at this node: start it with --enable-faults to test with them")

// AddNodeFault begins a fault of this node, or arms it, and returns its ID.
func (d *Daemon) AddNodeFault(f NodeFault) (uint64, error) {
	if d.nodeFaults == nil {
		return 0, errFaultsOff
	}
	id, err := d.nodeFaults.Add(f)
	if err == nil {
		d.log.Warn().Str("op", "faults").Uint64("fault", id).Stringer("does", f).Msg("node fault added")
	}
	return id, err
}

// NodeFaults returns the faults of this node.
func (d *Daemon) NodeFaults() ([]NodeFaultReport, error) {
	if d.nodeFaults == nil {
		return nil, errFaultsOff
	}
	return d.nodeFaults.List(), nil
}

// ClearNodeFaults ends one fault of this node, or all with ID 0, and returns how
// many that were.
func (d *Daemon) ClearNodeFaults(id uint64) (n int, err error) {
	if d.nodeFaults == nil {
		return 0, errFaultsOff
	}
	if id == 0 {
		n, err = d.nodeFaults.ClearAll()
	} else if err = d.nodeFaults.Clear(id); err == nil {
		n = 1
	}
	if n > 0 {
		d.log.Warn().Str("op", "faults").Int("count", n).Msg("node faults cleared")
	}
	return n, err
}

// nodeFaulter is the part of a subject that has node faults.
type nodeFaulter interface {
	AddNodeFault(NodeFault) (uint64, error)
	NodeFaults() ([]NodeFaultReport, error)
	ClearNodeFaults(id uint64) (int, error)
}

// nodeFaultRoutes adds the requests about node faults.
func (a *admin) nodeFaultRoutes(mux *http.ServeMux, s nodeFaulter) {
	mux.HandleFunc("GET /v1/faults/node", func(w http.ResponseWriter, r *http.Request) {
		list, err := s.NodeFaults()
		if err != nil {
			a.refuse(w, faultStatus(err), "%v", err)
			return
		}
		if list == nil {
			list = []NodeFaultReport{} // an empty list in JSON, not null
		}
		a.answer(w, http.StatusOK, NodeFaults{list})
	})
	mux.HandleFunc("POST /v1/faults/node", func(w http.ResponseWriter, r *http.Request) { a.addNodeFault(w, r, s) })
	mux.HandleFunc("DELETE /v1/faults/node", func(w http.ResponseWriter, r *http.Request) {
		id, err := faultID(r.FormValue("id"))
		if err != nil {
			a.refuse(w, http.StatusBadRequest, "%v", err)
			return
		}
		n, err := s.ClearNodeFaults(id)
		if err != nil {
			a.refuse(w, faultStatus(err), "%v", err)
			return
		}
		a.answer(w, http.StatusOK, NodeFaultCleared{n})
	})
}

func (a *admin) addNodeFault(w http.ResponseWriter, r *http.Request, s nodeFaulter) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(adminTimeout)) // as in answer
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, failpoint.MaxFault+1))
	if err != nil {
		a.refuse(w, http.StatusBadRequest, "fault: %v", err)
		return
	}
	f, err := failpoint.Parse(body)
	if err != nil {
		a.refuse(w, http.StatusBadRequest, "%v", err)
		return
	}
	id, err := s.AddNodeFault(f)
	if err != nil {
		a.refuse(w, faultStatus(err), "%v", err)
		return
	}
	a.answer(w, http.StatusOK, map[string]uint64{"id": id})
}

// faultID reads the ID of a fault; empty means all.
func faultID(text string) (uint64, error) {
	if text == "" {
		return 0, nil
	}
	id, err := strconv.ParseUint(text, 10, 64)
	if err != nil || id == 0 {
		return 0, &failpoint.FieldError{Field: "id", Value: text, Allowed: "want the number of a fault"}
	}
	return id, nil
}

func faultStatus(err error) int {
	switch {
	case errors.Is(err, errFaultsOff):
		return http.StatusForbidden
	case errors.Is(err, failpoint.ErrNoFault):
		return http.StatusNotFound
	}
	return http.StatusConflict
}

// diskEvery is the time between two looks at the state directory.
const diskEvery = time.Second

// tendDisk looks after the state directory until the node ends: it says when
// that cannot be written, and when it can again.
func (d *Daemon) tendDisk() {
	log := d.log.With().Str("op", "state").Logger()
	said := false
	for sleep(d.ctx, diskEvery) {
		err := d.state.Tend()
		said = sayTrouble(log, said, err)
	}
}

// sayTrouble logs a change of the disk's state and returns whether it is bad.
func sayTrouble(log zerolog.Logger, said bool, err error) bool {
	switch {
	case err != nil && !said:
		log.Error().Err(err).Msg("the state directory cannot be written; what must be stored is refused until it can")
	case err == nil && said:
		log.Info().Msg("the state directory can be written again")
	}
	return err != nil
}

// clientNodeFault is the answer to an addition.
type clientNodeFault struct {
	ID uint64 `json:"id"`
}

// decodeAnswer decodes the answer that do returned.
func decodeAnswer[T any](text json.RawMessage, err error) (T, error) {
	var v T
	if err != nil {
		return v, err
	}
	return v, json.Unmarshal(text, &v)
}
