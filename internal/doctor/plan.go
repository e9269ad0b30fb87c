package doctor

import (
	"fmt"

	"github.com/fabricd/fabricd/internal/daemon"
)

// MaxPlan bounds the connections of a plan by a node's number of ports.
const MaxPlan = 1 << 16

// A Plan is the resources that a number of connections needs on a machine.
type Plan struct {
	Connections int64 `json:"connections"`

	// Within the node: each between two attached applications.
	ShmPath      int64 `json:"channel_bytes"`             // of one connection
	ShmPaths     int64 `json:"channels_bytes"`            // of all connections, if all have a shared-memory path
	Ends         int64 `json:"channel_ends"`              // limit of an application
	UserEnds     int64 `json:"channel_ends_of_user"`      // limit of all applications of one user
	Applications int64 `json:"applications"`              // the least number that can have all these shared-memory paths
	Users        int64 `json:"users"`                     // the least number of their users
	Inside       int64 `json:"descriptors_within_node"`   // of fabricd with these applications
	Outside      int64 `json:"descriptors_between_nodes"` // of fabricd with one application, if each connection has a path

	// Between nodes.
	Unread int64 `json:"unread_bytes"`         // buffered for the receiver of a connection, at most
	Fit    int64 `json:"connections_that_fit"` // of one application, within the node's memory limit

	Lacks []string `json:"lacks"` // resources that do not suffice
}

// PlanFor returns the resources that n connections need, all within the node or all to another
// node. n is 1 to MaxPlan.
func PlanFor(n int64, costs daemon.Costs, f Facts) Plan {
	p := Plan{
		Connections: n,
		ShmPath:     costs.ShmPath, ShmPaths: n * costs.ShmPath, Ends: costs.Ends, UserEnds: costs.UserEnds,
		Applications: max(2, over(2*n, costs.Ends)), Users: over(2*n, costs.UserEnds),
		Unread: costs.Unread, Fit: costs.Fit,
		Lacks: []string{},
	}
	p.Inside = 2*n*costs.Descriptors + p.Applications*costs.Attached
	p.Outside = n*(costs.Descriptors+costs.Path) + costs.Attached
	lack := func(what string, need int64, have uint64) {
		if uint64(need) > have {
			p.Lacks = append(p.Lacks, fmt.Sprintf("%s: %d are needed, %d are there", what, need, have))
		}
	}
	if f.Memory >= 0 {
		lack("bytes for shared-memory paths", p.ShmPaths, uint64(f.Memory))
	}
	lack("connections between nodes of one application, by conn-memory", n, uint64(p.Fit))
	if f.Descriptors > 0 {
		lack("descriptors within the node", p.Inside, f.Descriptors)
		lack("descriptors for connections to other nodes", p.Outside, f.Descriptors)
	}
	lack("descriptors of one user for connections to other nodes", n*costs.Descriptors+costs.Attached, uint64(costs.UserFiles))
	lack("paths of one user", n*costs.Path, uint64(costs.UserPaths))
	return p
}

// over returns n/k, rounded up.
func over(n, k int64) int64 { return (n + k - 1) / k }
