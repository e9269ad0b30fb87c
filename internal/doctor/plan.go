package doctor

import (
	"fmt"

	"github.com/fabricd/fabricd/internal/daemon"
)

// MaxPlan bounds the connections of a plan: a node has no more ports.
const MaxPlan = 1 << 16

// A Plan is what a number of connections takes of a machine.
type Plan struct {
	Connections int64 `json:"connections"`

	// Within the node: each between two attached applications.
	Channel      int64 `json:"channel_bytes"`             // of one
	Channels     int64 `json:"channels_bytes"`            // of all, if all have one
	Ends         int64 `json:"channel_ends"`              // that an application may have
	UserEnds     int64 `json:"channel_ends_of_user"`      // that all applications of one user may have
	Applications int64 `json:"applications"`              // so many, at least, can have all these channels
	Users        int64 `json:"users"`                     // and of so many users
	Inside       int64 `json:"descriptors_within_node"`   // of fabricd, with those of the applications
	Outside      int64 `json:"descriptors_between_nodes"` // of fabricd, with that of one application, if each has a path

	// Between nodes.
	Unread int64 `json:"unread_bytes"`         // that a connection keeps for a receiver, at most
	Fit    int64 `json:"connections_that_fit"` // of one application, with the memory that the node gives

	Lacks []string `json:"lacks"` // what there is too little of
}

// PlanFor returns what n connections take, each within the node or each to another
// one. n is 1 to MaxPlan.
func PlanFor(n int64, costs daemon.Costs, f Facts) Plan {
	p := Plan{
		Connections: n,
		Channel:     costs.Channel, Channels: n * costs.Channel, Ends: costs.Ends, UserEnds: costs.UserEnds,
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
		lack("bytes for channels", p.Channels, uint64(f.Memory))
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
