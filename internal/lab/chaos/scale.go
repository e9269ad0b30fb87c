package chaos

import (
	"context"

	"github.com/fabricd/fabricd/internal/lab/scenario"
	"github.com/fabricd/fabricd/internal/lab/sim"
)

// Scale measures a simulated cluster of so many nodes with several seeds; see
// [sim.Scale]. It does not begin when ctx is done.
func Scale(ctx context.Context, nodes int, d scenario.Detection, first uint64, runs int) (sim.ScalePoint, error) {
	if err := ctx.Err(); err != nil {
		return sim.ScalePoint{}, err
	}
	return sim.Scale(nodes, d, first, runs)
}
