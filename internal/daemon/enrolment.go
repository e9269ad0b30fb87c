package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/audit"
	"github.com/fabricd/fabricd/membership"
	"github.com/fabricd/fabricd/membership/trust"
)

// Bounds of an administrator's texts about a node, in bytes.
const (
	maxNodeName = 64 // a name, an ID or a UUID
	maxReason   = 256
)

// How an identity is that no incarnation has now.
const (
	stateAway   = "away"
	stateBanned = "banned"
)

// An Enrolled is one identity of the cluster, as `fabricd nodes enrolled --json`
// shows it.
type Enrolled struct {
	UUID  string `json:"uuid"`
	Name  string `json:"name"`
	State string `json:"state"` // banned, away, or of its incarnation: alive, suspect, leaving or removed
	// ID and Generation are of its incarnation; left out if it has none.
	ID         *addr.NodeID    `json:"id,omitempty"`
	Generation addr.Generation `json:"generation,omitempty"`

	Labels []string   `json:"labels,omitempty"`
	Key    string     `json:"key"`              // hash of its public key
	Serial string     `json:"serial,omitempty"` // of its newest certificate
	Token  string     `json:"token,omitempty"`  // ID of the token that it joined with
	Since  time.Time  `json:"since"`            // when it joined
	Until  time.Time  `json:"until"`            // end of its newest certificate
	NewKey bool       `json:"new_key,omitempty"`
	Banned *time.Time `json:"banned,omitempty"`
	Reason string     `json:"reason,omitempty"` // of the ban
}

// Enrolment is the output of `fabricd nodes enrolled --json`.
type Enrolment struct {
	Nodes []Enrolled `json:"nodes"`
}

// A NodeAction is the answer to a request that removes, bans or allows a node.
type NodeAction struct {
	Node Enrolled `json:"node"`
	// Changed is false if the node was banned, or allowed, already.
	Changed bool `json:"changed"`
	// TookMS is the time from the request until it held at every node.
	TookMS float64 `json:"took_ms"`
}

// Enrolled returns the cluster's identities, in order of their names. Only the
// host knows any.
func (d *Daemon) Enrolled() (Enrolment, error) {
	agent, err := d.hostAgent()
	if err != nil {
		return Enrolment{}, err
	}
	all := Enrolment{Nodes: []Enrolled{}}
	for _, e := range agent.Enrolments() {
		all.Nodes = append(all.Nodes, d.enrolled(e))
	}
	return all, nil
}

// hostAgent returns the agent of a host.
func (d *Daemon) hostAgent() (*membership.Agent, error) {
	_, agent := d.live.engineAndAgent()
	switch {
	case agent == nil:
		return nil, errNotYet
	case d.cfg.Role != RoleHost:
		return nil, errors.New("this node is not the host; ask the host's fabricd")
	}
	return agent, nil
}

// enrolled adds the state of its incarnation to membership's record of an identity.
func (d *Daemon) enrolled(e membership.Enrolment) Enrolled {
	x := Enrolled{
		UUID: e.UUID.String(), Name: e.Name, State: stateAway, Labels: e.Labels, Key: pinText(e.Key), Serial: e.Serial,
		Since: e.Since.UTC(), Until: e.Until.UTC(), NewKey: e.NewKey, Reason: e.Reason,
	}
	if e.Token != (trust.TokenID{}) {
		x.Token = e.Token.String()
	}
	if n, ok := d.nodeList.incarnation(e.UUID); ok {
		x.ID, x.Generation, x.State = &n.Incarnation.Node, n.Incarnation.Generation, n.State.String()
	}
	if !e.Banned.IsZero() {
		x.Banned, x.State = new(e.Banned.UTC()), stateBanned
	}
	return x
}

// Act removes a node (ends its incarnation and forgets its identity), bans it (ends it and keeps its
// identity out; again: changes the reason, if there is one) or allows it (lifts a ban; with NewKey
// the identity may also come with another key), and measures that.
func (d *Daemon) Act(ctx context.Context, action string, r NodeRequest) (NodeAction, error) {
	agent, err := d.hostAgent()
	if err != nil {
		return NodeAction{}, err
	}
	before, known := agent.Enrolled(r.Node)
	began, changed := time.Now(), true
	var after membership.Enrolment
	switch action {
	case "remove":
		after, err = agent.RemoveNode(ctx, r.Node)
	case "ban":
		changed = before.Banned.IsZero()
		after, err = agent.BanNode(ctx, r.Node, cmp.Or(r.Reason, before.Reason))
	case "allow":
		changed = !before.Banned.IsZero() || r.NewKey && !before.NewKey
		after, err = agent.AllowNode(ctx, r.Node, r.NewKey)
	}
	if err != nil {
		return NodeAction{}, err
	}
	return NodeAction{Node: d.enrolled(after), Changed: !known || changed, TookMS: float64(time.Since(began).Microseconds()) / 1000}, nil
}

// A NodeRequest names a node: by its name, its ID or its UUID.
type NodeRequest struct {
	Node   string `json:"node"`
	Reason string `json:"reason,omitempty"`  // of a ban, for people
	NewKey bool   `json:"new_key,omitempty"` // allow: it may come with another key
}

// check returns an error if the request for an action is wrong.
func (r NodeRequest) check(action string) error {
	switch {
	case r.Node == "" || len(r.Node) > maxNodeName:
		return fmt.Errorf("node: %.64q: want a name, an ID or a UUID", r.Node)
	case len(r.Reason) > maxReason:
		return fmt.Errorf("reason: %d bytes: want %d at most", len(r.Reason), maxReason)
	case r.Reason != "" && action != "ban":
		return errors.New("reason: only a ban has one")
	case r.NewKey && action != "allow":
		return errors.New("new_key: only allow has it")
	}
	return nil
}

func (a *admin) enrolmentRoutes(mux *http.ServeMux) {
	a.on(mux, "GET /v1/nodes/enrolled", func(http.ResponseWriter, *http.Request) (any, error) { return a.subject.Enrolled() })
	for _, action := range []string{"remove", "ban", "allow"} {
		a.on(mux, "POST /v1/nodes/"+action, forAll(taking(func(w http.ResponseWriter, r *http.Request, req NodeRequest) (any, error) {
			return a.nodeAction(w, r, action, req)
		})))
	}
}

// nodeAction serves one request that removes, bans or allows a node.
func (a *admin) nodeAction(w http.ResponseWriter, r *http.Request, action string, req NodeRequest) (any, error) {
	if err := req.check(action); err != nil {
		return nil, wrong("%w", err)
	}
	about(w, func(e *audit.Event) { e.Name, e.Text = req.Node, req.Reason })
	done, err := a.subject.Act(r.Context(), action, req)
	if err != nil {
		return nil, err
	}
	about(w, func(e *audit.Event) { e.Node, e.Name = done.Node.UUID, done.Node.Name })
	a.log.Warn().Str("op", action).Str("name", done.Node.Name).Str("uuid", done.Node.UUID).Str("reason", req.Reason).
		Bool("changed", done.Changed).Float64("took_ms", done.TookMS).Msg("an administrator has decided about a node")
	return done, nil
}

// Enrolled asks the host for the cluster's identities, banned ones included.
func (c *Client) Enrolled(ctx context.Context) (Enrolment, error) {
	return get[Enrolment](ctx, c, "nodes/enrolled")
}

// RemoveNode asks the host to end a node's incarnation and to forget its
// identity, and waits at most timeout until that holds everywhere.
func (c *Client) RemoveNode(ctx context.Context, node string, timeout time.Duration) (NodeAction, error) {
	return c.nodeAction(ctx, "remove", NodeRequest{Node: node}, timeout)
}

// BanNode asks the host to end a node's incarnation and to keep its identity
// out, and waits at most timeout until that holds everywhere.
func (c *Client) BanNode(ctx context.Context, node, reason string, timeout time.Duration) (NodeAction, error) {
	return c.nodeAction(ctx, "ban", NodeRequest{Node: node, Reason: reason}, timeout)
}

// AllowNode asks the host to lift a ban; with newKey the identity may come with
// another key.
func (c *Client) AllowNode(ctx context.Context, node string, newKey bool, timeout time.Duration) (NodeAction, error) {
	return c.nodeAction(ctx, "allow", NodeRequest{Node: node, NewKey: newKey}, timeout)
}

func (c *Client) nodeAction(ctx context.Context, action string, req NodeRequest, timeout time.Duration) (NodeAction, error) {
	q := url.Values{"timeout": {timeout.String()}}
	return post[NodeAction](ctx, c, "nodes/"+action+"?"+q.Encode(), req)
}
