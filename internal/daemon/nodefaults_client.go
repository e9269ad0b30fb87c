package daemon

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
)

// AddNodeFault asks the node for a fault and returns its ID. A crash, and the
// end of a freeze, may take the answer with it.
func (c *Client) AddNodeFault(ctx context.Context, f NodeFault) (uint64, error) {
	body, err := json.Marshal(f)
	if err != nil {
		return 0, err
	}
	added, err := decodeAnswer[clientNodeFault](c.do(ctx, http.MethodPost, "faults/node", body))
	return added.ID, err
}

// NodeFaults returns the faults of the node itself.
func (c *Client) NodeFaults(ctx context.Context) ([]NodeFaultReport, error) {
	list, err := decodeAnswer[NodeFaults](c.do(ctx, http.MethodGet, "faults/node", nil))
	return list.NodeFaults, err
}

// ClearNodeFaults ends one fault of the node itself, or all with ID 0, and
// returns how many that were.
func (c *Client) ClearNodeFaults(ctx context.Context, id uint64) (int, error) {
	path := "faults/node"
	if id != 0 {
		path += "?id=" + strconv.FormatUint(id, 10)
	}
	cleared, err := decodeAnswer[NodeFaultCleared](c.do(ctx, http.MethodDelete, path, nil))
	return cleared.Cleared, err
}
