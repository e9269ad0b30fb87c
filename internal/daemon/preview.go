package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/engine"
	"github.com/fabricd/fabricd/internal/status"
)

// A Preview is the predicted outcome of a connect to a port by an application of this node.
type Preview struct {
	Node addr.NodeID `json:"node"`
	Name string      `json:"name"`
	Port addr.Port   `json:"port"`
	UID  uint32      `json:"uid"` // of the application's user

	// Connects: the request would be queued for an accept.
	Connects bool `json:"connects"`
	// Allowed is the decision of the port's access rule or of the listener's list, and By the one
	// that decided: its text is another node's.
	Allowed bool   `json:"allowed"`
	By      string `json:"by"`
	// Of the listener; with Waiting as large as Backlog a request is refused.
	Listening bool `json:"listening"`
	Waiting   int  `json:"waiting"`
	Backlog   int  `json:"backlog"`
}

// errNoNode refuses the name of a node that does not live.
var errNoNode = errors.New("no live node has this name or ID")

// Find returns the live node that text names, by its ID or its name: digits alone are an
// ID, whatever nodes are called.
func (all Nodes) Find(text string) (NodeInfo, error) {
	id, byID := addr.ParseNode(text)
	for _, n := range all.Nodes {
		if n.State != "removed" && (byID && n.ID == id || !byID && n.Name == text) {
			return n, nil
		}
	}
	return NodeInfo{}, fmt.Errorf("node %.80q: %w", text, errNoNode)
}

// Preview predicts the outcome of a connect to a node's port by an application of this node that a
// user runs. Another node is asked over its link.
func (d *Daemon) Preview(ctx context.Context, node string, port addr.Port, uid uint32) (Preview, error) {
	engine, _ := d.live.engineAndAgent()
	if engine == nil {
		return Preview{}, errNotYet
	}
	n, err := d.Nodes().Find(node)
	if err != nil {
		return Preview{}, err
	}
	met, err := engine.Preview(ctx, addr.Addr{Node: n.ID, Port: port}, uid)
	if err != nil {
		return Preview{}, err
	}
	return previewOf(n, port, uid, met), nil
}

func previewOf(n NodeInfo, port addr.Port, uid uint32, met engine.Preview) Preview {
	return Preview{Node: n.ID, Name: n.Name, Port: port, UID: uid,
		Connects: met.Allowed && met.Listening && met.Waiting < met.Backlog,
		Allowed:  met.Allowed, By: met.By, Listening: met.Listening, Waiting: met.Waiting, Backlog: met.Backlog}
}

// previewTimeout bounds the wait for another node's answer.
const previewTimeout = 5 * time.Second

// preview serves the request for a preview.
func (a *admin) preview(_ http.ResponseWriter, r *http.Request) (any, error) {
	port, err := strconv.ParseUint(r.FormValue("port"), 10, 16)
	if err != nil || port == 0 {
		return nil, wrong("port: %.80q: want a number from 1 to 65535", r.FormValue("port"))
	}
	uid, err := strconv.ParseUint(r.FormValue("uid"), 10, 32)
	if err != nil {
		return nil, wrong("uid: %.80q: want a user's number", r.FormValue("uid"))
	}
	ctx, cancel := context.WithTimeout(r.Context(), previewTimeout)
	defer cancel()
	p, err := a.subject.Preview(ctx, r.FormValue("node"), addr.Port(port), uint32(uid))
	switch {
	case err == nil, errors.Is(err, errNoNode):
		return p, err
	case errors.Is(err, status.NoDevice):
		return nil, coded(http.StatusNotFound, "%w", err)
	}
	return nil, coded(http.StatusBadGateway, "node %.80q: %w", r.FormValue("node"), err)
}

// Preview asks the node for the outcome of a connect to a port by an application here that a user
// runs. node is a name or an ID.
func (c *Client) Preview(ctx context.Context, node string, port addr.Port, uid uint32) (Preview, error) {
	q := url.Values{"node": {node}, "port": {strconv.Itoa(int(port))}, "uid": {strconv.FormatUint(uint64(uid), 10)}}
	return get[Preview](ctx, c, "access?"+q.Encode())
}
