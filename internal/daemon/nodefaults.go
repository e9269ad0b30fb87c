package daemon

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/internal/faults"
	"github.com/fabricd/fabricd/internal/faults/failpoint"
	"github.com/fabricd/fabricd/internal/wait"
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

// NodeFaultID is the answer to a request that adds one.
type NodeFaultID struct {
	ID uint64 `json:"id"`
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
// many that were; those that had ended before do not count.
func (d *Daemon) ClearNodeFaults(id uint64) (n int, err error) {
	if d.nodeFaults == nil {
		return 0, errFaultsOff
	}
	if id == 0 {
		n, err = d.nodeFaults.ClearAll()
	} else {
		n, err = d.nodeFaults.Clear(id)
	}
	if n > 0 {
		d.log.Warn().Str("op", "faults").Int("count", n).Msg("node faults cleared")
	}
	return n, err
}

// nodeFaultRoutes adds the requests about node faults.
func (a *admin) nodeFaultRoutes(mux *http.ServeMux) {
	a.on(mux, "GET /v1/faults/node", func(http.ResponseWriter, *http.Request) (any, error) {
		list, err := a.subject.NodeFaults()
		return NodeFaults{rows(list)}, err
	})
	a.on(mux, "POST /v1/faults/node", func(w http.ResponseWriter, r *http.Request) (any, error) {
		beginBody(w)
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, failpoint.MaxFault+1))
		if err != nil {
			return nil, wrong("fault: %w", err)
		}
		f, err := failpoint.Parse(body)
		if err != nil {
			return nil, wrong("%w", err)
		}
		id, err := a.subject.AddNodeFault(f)
		return NodeFaultID{id}, err
	})
	a.on(mux, "DELETE /v1/faults/node", func(_ http.ResponseWriter, r *http.Request) (any, error) {
		id, err := faultID(r)
		if err != nil {
			return nil, err
		}
		n, err := a.subject.ClearNodeFaults(id)
		return FaultsCleared{n}, err
	})
}

// faultID reads the ID of a fault in a request; 0: it has none.
func faultID(r *http.Request) (uint64, error) {
	text := r.FormValue("id")
	if text == "" {
		return 0, nil
	}
	id, err := strconv.ParseUint(text, 10, 64)
	if err != nil || id == 0 {
		return 0, &faults.FieldError{Field: "id", Value: text, Want: "want the number of a fault"}
	}
	return id, nil
}

// diskEvery is the time between two looks at the state directory.
const diskEvery = time.Second

// maintainDisk maintains the state directory until the node ends: it logs when
// that cannot be written, and when it can again.
func (d *Daemon) maintainDisk() {
	log := d.log.With().Str("op", "state").Logger()
	said := false
	for wait.For(d.tasks.ctx.Done(), diskEvery) {
		err := d.state.Maintain()
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

// AddNodeFault asks the node for a fault and returns its ID. A crash, and the
// end of a freeze, may take the answer with it.
func (c *Client) AddNodeFault(ctx context.Context, f NodeFault) (uint64, error) {
	added, err := post[NodeFaultID](ctx, c, "faults/node", f)
	return added.ID, err
}

// NodeFaults returns the faults of the node itself.
func (c *Client) NodeFaults(ctx context.Context) ([]NodeFaultReport, error) {
	list, err := get[NodeFaults](ctx, c, "faults/node")
	return list.NodeFaults, err
}

// ClearNodeFaults ends one fault of the node itself, or all with ID 0, and
// returns how many that were.
func (c *Client) ClearNodeFaults(ctx context.Context, id uint64) (int, error) {
	path := "faults/node"
	if id != 0 {
		path += "?id=" + strconv.FormatUint(id, 10)
	}
	cleared, err := ask[FaultsCleared](ctx, c, http.MethodDelete, path, nil)
	return cleared.Cleared, err
}
