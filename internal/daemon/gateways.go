package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fabricd/fabricd/internal/audit"
	"github.com/fabricd/fabricd/internal/engine"
	"github.com/fabricd/fabricd/internal/gateway/spec"
	"github.com/fabricd/fabricd/internal/status"
)

// Gateways carry the connections of applications that do not know the fabric. They are
// applications themselves, which a daemon does not import: Options.Gateways makes them.
type Gateways interface {
	// Set makes lines the gateways of the configuration, and does not touch those that
	// are among them already.
	Set(lines []spec.Gateway)
	// Run runs one until ctx ends. report must not block. The error is the reason that it could
	// not start.
	Run(ctx context.Context, line spec.Gateway, report func(spec.Event)) error
	// List returns those that run.
	List() []spec.Status
	// Close resets the connections of all and waits for them.
	Close()
}

// GatewayConfig are the gateways of a configuration, by their settings.
type GatewayConfig struct {
	lines map[spec.Kind][]spec.Gateway
	wrong map[spec.Kind]error // of settings whose lines cannot be parsed
}

// Lines returns the lines of all kinds.
func (c GatewayConfig) Lines() (all []spec.Gateway) {
	for _, kind := range spec.Kinds() {
		all = append(all, c.lines[kind]...)
	}
	return all
}

// gatewaySettings are lists of lines. checkGateways checks each line, so that its report names the
// wrong one.
func gatewaySettings() []Setting {
	of := func(kind spec.Kind, usage, allowed string) Setting {
		return Setting{string(kind), usage, allowed,
			func(c *Config, s string) bool {
				c.Gateways.set(kind, s)
				return true
			},
			func(c *Config) string {
				var texts []string
				for _, g := range c.Gateways.lines[kind] {
					texts = append(texts, g.String())
				}
				return strings.Join(texts, ",")
			}}
	}
	return []Setting{
		of(spec.Expose, "TCP and Unix addresses that this node serves as services of the fabric",
			"NAME=TARGET, like 'db=localhost:5432 from web-1', separated by commas, or nothing"),
		of(spec.Forward, "TCP and Unix addresses of this machine that lead to services of the fabric",
			"LISTEN=NAME, like '127.0.0.1:15432=db wait 30s', separated by commas, or nothing"),
		of(spec.SOCKS, "addresses of this machine where a SOCKS5 proxy leads to names below .fabric",
			"a port of loopback, host:port or the path of a Unix socket, separated by commas, or nothing"),
		of(spec.HTTPProxy, "addresses of this machine where an HTTP proxy leads to names below .fabric, by CONNECT",
			"a port of loopback, host:port or the path of a Unix socket, separated by commas, or nothing"),
	}
}

// set takes the lines of one setting.
func (c *GatewayConfig) set(kind spec.Kind, text string) {
	lines, wrong := maps.Clone(c.lines), maps.Clone(c.wrong) // a Config is copied, and its maps are not
	if lines == nil {
		lines, wrong = make(map[spec.Kind][]spec.Gateway), make(map[spec.Kind]error)
	}
	delete(lines, kind)
	delete(wrong, kind)
	for _, item := range split(text) {
		g, err := spec.Parse(kind, item)
		if err != nil {
			wrong[kind] = err
			break
		}
		lines[kind] = append(lines[kind], g)
	}
	c.lines, c.wrong = lines, wrong
}

// checkGateways reports the errors in the gateways.
func (c *Config) checkGateways(values map[string]value, report func(key, text, allowed string)) {
	for _, kind := range spec.Kinds() {
		if err := c.Gateways.wrong[kind]; err != nil {
			report(string(kind), values[string(kind)].text, err.Error())
		}
	}
	if kind, err := spec.Check(c.Gateways.Lines(), c.Name); err != nil {
		report(string(kind), values[string(kind)].text, err.Error())
	}
}

// openGateways starts the gateways of the configuration.
func (d *Daemon) openGateways(context.Context) error {
	if d.opts.Gateways == nil {
		return nil
	}
	g := d.opts.Gateways(d, d.log)
	d.live.set(func(p *parts) { p.gateways = g })
	g.Set(d.cfg.Gateways.Lines())
	return nil
}

// closeGateways ends them.
func (d *Daemon) closeGateways() {
	if g := d.live.get().gateways; g != nil {
		g.Close()
	}
}

// takeGateways makes those of c the node's, where they have changed.
func (d *Daemon) takeGateways(c Config) {
	if g := d.live.get().gateways; g != nil {
		g.Set(c.Gateways.Lines())
	}
}

// Gateways returns the gateways that run.
func (d *Daemon) Gateways() []spec.Status {
	g := d.live.get().gateways
	if g == nil {
		return []spec.Status{}
	}
	list := g.List()
	node, _ := d.live.engineAndAgent()
	if node == nil {
		return list
	}
	barred := node.BarredServices()
	for i := range list {
		if s := &list[i]; s.Kind == spec.Expose && s.State == spec.Listening && slices.ContainsFunc(barred, func(b engine.Named) bool { return b.Name == s.Listen }) {
			s.State, s.Detail = spec.Barred, engine.WhyBarred
		}
	}
	return list
}

// RunGateway runs a gateway until ctx ends, and reports its events.
func (d *Daemon) RunGateway(ctx context.Context, line spec.Gateway, report func(spec.Event)) error {
	g := d.live.get().gateways
	if g == nil {
		return fmt.Errorf("%w: this node runs no gateways", status.NotSupp)
	}
	return g.Run(ctx, line, report)
}

// A GatewayRequest asks for a gateway that runs as long as the request is open.
type GatewayRequest struct {
	Kind spec.Kind `json:"kind"`
	Line string    `json:"line"` // as in the configuration
}

// gatewayRoutes adds the requests about gateways.
func (a *admin) gatewayRoutes(mux *http.ServeMux) {
	a.on(mux, "GET /v1/gateways", func(http.ResponseWriter, *http.Request) (any, error) {
		return map[string]any{"gateways": a.subject.Gateways()}, nil
	})
	mux.HandleFunc("POST /v1/gateways", func(w http.ResponseWriter, r *http.Request) {
		if err := a.runGateway(w, r); err != nil {
			a.refuse(w, err)
		}
	})
}

// runGateway runs a gateway until its reader goes away, and streams its events, one JSON object per
// line. An error of its start is the answer instead.
func (a *admin) runGateway(w http.ResponseWriter, r *http.Request) error {
	var req GatewayRequest
	if err := decode(w, r, &req); err != nil {
		return err
	}
	if !slices.Contains(spec.Kinds(), req.Kind) {
		return wrong("kind: %q: want one of %v", req.Kind, spec.Kinds())
	}
	line, err := spec.Parse(req.Kind, req.Line)
	if err != nil {
		return wrong("%s: %w", req.Kind, err)
	}
	about(w, func(e *audit.Event) { e.Text = string(line.Kind) + " " + line.String() })
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	// The body's deadline would end the request: that its client goes away is read, too.
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // as in send
	events := newGatewayEvents()
	over := make(chan error, 1)
	go func() { over <- a.subject.RunGateway(ctx, line, events.add) }() // ends with ctx, and is waited for
	if err := a.streamGateway(w, events, over, cancel); err != nil {
		return coded(http.StatusConflict, "%s: %w", line.Kind, err)
	}
	return nil
}

// streamGateway sends events until the gateway is over or its reader is gone. The error is
// that of one that could not start.
func (a *admin) streamGateway(w http.ResponseWriter, events *gatewayEvents, over <-chan error, cancel func()) error {
	out := json.NewEncoder(w)
	control := http.NewResponseController(w)
	for sent := 0; ; sent++ {
		select {
		case err := <-over:
			if sent > 0 {
				return nil // the answer has begun: its end reports the error
			}
			return err
		case ev := <-events.queue:
			if sent == 0 { // it has started
				w.Header().Set("Content-Type", "application/x-ndjson")
				about(w, func(e *audit.Event) {
					started := *e
					started.Result = "started"
					a.audit.Write(started)
				})
			}
			// A stopped terminal must not end the gateway that it shows: later events are counted,
			// and a reader that is gone fails the write.
			_ = control.SetWriteDeadline(time.Time{}) // as in send
			if out.Encode(ev) != nil || control.Flush() != nil {
				cancel()
				<-over
				return nil
			}
		}
	}
}

// gatewayEvents queues events for their reader. If it is slow, the latest are lost,
// and counted.
type gatewayEvents struct {
	queue chan spec.Event
	mu    sync.Mutex // guards lost
	lost  int
}

// maxGatewayEvents is how many may wait.
const maxGatewayEvents = 256

func newGatewayEvents() *gatewayEvents {
	return &gatewayEvents{queue: make(chan spec.Event, maxGatewayEvents)}
}

// add takes an event without blocking.
func (e *gatewayEvents) add(ev spec.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	ev.Lost = e.lost
	select {
	case e.queue <- ev:
		e.lost = 0
	default:
		e.lost++
	}
}
