package daemon

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/engine"
	"github.com/fabricd/fabricd/internal/faults"
	"github.com/fabricd/fabricd/internal/gateway/spec"
)

// maxAnswer bounds an answer that the client reads, in bytes: a cluster of
// 65,520 nodes has a node list of some 16 MiB.
const maxAnswer = 64 << 20

// A Client asks a running fabricd over its admin socket. Its methods may be
// called from any goroutine.
type Client struct {
	socket string
	http   http.Client
}

// NewClient returns a client for the admin socket at path. It connects when it
// is asked something.
func NewClient(path string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	}
	return &Client{socket: path, http: http.Client{Transport: &http.Transport{DialContext: dial}}}
}

// Close closes the client's idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Get returns the JSON answer of one of the reading endpoints: "status",
// "nodes", "health", or one of TableNames.
func (c *Client) Get(ctx context.Context, path string) (json.RawMessage, error) {
	return c.do(ctx, http.MethodGet, path, nil)
}

// Status returns the node's status.
func (c *Client) Status(ctx context.Context) (Status, error) { return get[Status](ctx, c, "status") }

// Nodes returns the nodes that the node knows.
func (c *Client) Nodes(ctx context.Context) (Nodes, error) { return get[Nodes](ctx, c, "nodes") }

// FindNode returns the ID that text is, or that of the live node with this name.
func (c *Client) FindNode(ctx context.Context, text string) (addr.NodeID, error) {
	if id, ok := addr.ParseNode(text); ok {
		return id, nil
	}
	all, err := c.Nodes(ctx)
	if err != nil {
		return 0, err
	}
	n, err := all.Find(text)
	return n.ID, err
}

// Health returns the node's health. An unhealthy node is not an error.
func (c *Client) Health(ctx context.Context) (Health, error) { return get[Health](ctx, c, "health") }

// Rows of the tables conns and links.
type (
	ConnInfo = engine.ConnInfo
	PathInfo = engine.PathInfo
	LinkInfo = engine.LinkInfo
)

// Traffic returns the connections and the links of the node.
func (c *Client) Traffic(ctx context.Context) ([]ConnInfo, []LinkInfo, error) {
	conns, err := get[struct{ Conns []ConnInfo }](ctx, c, "conns")
	if err != nil {
		return nil, nil, err
	}
	links, err := get[struct{ Links []LinkInfo }](ctx, c, "links")
	return conns.Conns, links.Links, err
}

// Ping asks the node to measure one round trip to node id.
func (c *Client) Ping(ctx context.Context, id addr.NodeID, timeout time.Duration) (time.Duration, error) {
	q := url.Values{"node": {strconv.Itoa(int(id))}, "timeout": {timeout.String()}}
	pong, err := get[Pong](ctx, c, "ping?"+q.Encode())
	return time.Duration(pong.RTTns), err
}

// LinkFaults returns the faults of the node's links; with ended those too that
// are over.
func (c *Client) LinkFaults(ctx context.Context, ended bool) ([]faults.Status, error) {
	all, err := get[LinkFaults](ctx, c, "faults?ended="+strconv.FormatBool(ended))
	return all.Faults, err
}

// AddLinkFaults breaks links of the node, by all of the rules or none. It
// returns their IDs.
func (c *Client) AddLinkFaults(ctx context.Context, rules []faults.Rule) ([]uint64, error) {
	added, err := post[LinkFaultIDs](ctx, c, "faults", rules)
	return added.IDs, err
}

// ClearLinkFaults ends the fault with id; without one (0) those called name;
// without either all of them. It returns how many that were.
func (c *Client) ClearLinkFaults(ctx context.Context, id uint64, name string) (int, error) {
	q := url.Values{"name": {name}}
	if id != 0 {
		q.Set("id", strconv.FormatUint(id, 10))
	}
	cleared, err := ask[FaultsCleared](ctx, c, http.MethodDelete, "faults?"+q.Encode(), nil)
	return cleared.Cleared, err
}

// Events calls fn for the nodes that are there and then for every event. It
// returns when ctx is done, when fn returns an error, or when the node ends the
// stream (io.EOF).
func (c *Client) Events(ctx context.Context, fn func(NodeEvent) error) error {
	return streamLines(ctx, c, http.MethodGet, "events", nil, fn)
}

// RunGateway has the node run a gateway until ctx ends, and calls fn for each of its events. It
// returns as Events does.
func (c *Client) RunGateway(ctx context.Context, g spec.Gateway, fn func(spec.Event) error) error {
	return streamLines(ctx, c, http.MethodPost, "gateways", GatewayRequest{g.Kind, g.String()}, fn)
}

// streamLines sends a request with an answer of one JSON object per line, and calls fn for each.
func streamLines[T any](ctx context.Context, c *Client, method, path string, body any, fn func(T) error) error {
	resp, err := c.open(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20) // one node, its addresses included
	for lines.Scan() {
		var e T
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return fmt.Errorf("event: %w", err)
		}
		if err := fn(e); err != nil {
			return err
		}
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case lines.Err() != nil && !errors.Is(lines.Err(), io.ErrUnexpectedEOF):
		return lines.Err()
	}
	return io.EOF
}

// ask asks one thing, with a body unless it is nil, and returns the answer.
func ask[T any](ctx context.Context, c *Client, method, path string, body any) (T, error) {
	var v T
	text, err := c.do(ctx, method, path, body)
	if err != nil {
		return v, err
	}
	return v, json.Unmarshal(text, &v)
}

func get[T any](ctx context.Context, c *Client, path string) (T, error) {
	return ask[T](ctx, c, http.MethodGet, path, nil)
}

func post[T any](ctx context.Context, c *Client, path string, body any) (T, error) {
	return ask[T](ctx, c, http.MethodPost, path, body)
}

// do asks one thing and returns the body of a success.
func (c *Client) do(ctx context.Context, method, path string, body any) (json.RawMessage, error) {
	began := time.Now()
	resp, err := c.open(ctx, method, path, body)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, c.explain(err, began)
	}
	return bytes.TrimSpace(text), nil
}

// open sends a request and returns the beginning of a success, whose body the caller closes. The
// health of an unhealthy node is a success here.
func (c *Client) open(ctx context.Context, method, path string, body any) (*http.Response, error) {
	began := time.Now()
	var text []byte
	if body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			return nil, err
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://fabricd/v1/"+path, bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.explain(err, began)
	}
	if resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusServiceUnavailable && path == "health" {
		return resp, nil
	}
	defer resp.Body.Close()
	why, err := io.ReadAll(io.LimitReader(resp.Body, adminBody))
	if err != nil {
		return nil, c.explain(err, began)
	}
	return nil, refusal(resp.Status, why)
}

// refusal returns the error in an answer that is no success.
func refusal(status string, text []byte) error {
	var e adminError
	if json.Unmarshal(text, &e) != nil || e.Error == "" {
		return fmt.Errorf("fabricd answered %s", status)
	}
	return errors.New(e.Error)
}

// IsAbsent reports whether err is that of a socket at which no fabricd listens.
func IsAbsent(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED)
}

// explain turns a failure of a request that began at began into an error for an operator.
func (c *Client) explain(err error, began time.Time) error {
	switch {
	case IsAbsent(err):
		return fmt.Errorf("no fabricd answers at %s; is it running? (--admin or FABRIC_ADMIN names another socket): %w", c.socket, syscallCause(err))
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("%s: only the user that runs fabricd may use it: %w", c.socket, syscallCause(err))
	}
	if errors.Is(err, context.DeadlineExceeded) {
		waited := time.Since(began).Round(100 * time.Millisecond).Seconds()
		return &silentError{fmt.Sprintf("fabricd at %s did not answer within %v s", c.socket, waited), err}
	}
	if e, ok := errors.AsType[*url.Error](err); ok {
		err = e.Err // without the made-up URL
	}
	return fmt.Errorf("fabricd at %s: %w", c.socket, err)
}

// A silentError is the end of the wait for an answer; its text leaves out the cause.
type silentError struct {
	text  string
	cause error
}

func (e *silentError) Error() string { return e.text }
func (e *silentError) Unwrap() error { return e.cause }
