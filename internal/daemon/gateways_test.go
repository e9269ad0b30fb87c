package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/audit"
	"github.com/fabricd/fabricd/internal/gateway/spec"
	"github.com/fabricd/fabricd/internal/observe"
)

// A gatewaySubject runs gateways that carry nothing.
type gatewaySubject struct {
	*fakeSubject
	fails error
}

func (s *gatewaySubject) Gateways() []spec.Status { return nil }

func (s *gatewaySubject) RunGateway(ctx context.Context, _ spec.Gateway, report func(spec.Event)) error {
	if s.fails != nil {
		return s.fails
	}
	report(spec.Event{Event: spec.Started})
	report(spec.Event{Event: spec.Waiting})
	<-ctx.Done()
	return nil
}

// lines are those of an audit log.
type lines chan audit.Event

func (l lines) Write(text []byte) (int, error) {
	var e audit.Event
	err := json.Unmarshal(text, &e)
	l <- e
	return len(text), err
}

func (l lines) Close() error { return nil }

// next checks the next line's result.
func (l lines) next(t *testing.T, want string) {
	t.Helper()
	select {
	case e := <-l:
		if e.Event != audit.Command || e.Command != "POST /v1/gateways" || e.Text != "forward 127.0.0.1:15432=db" || e.Result != want || e.UID == nil {
			t.Errorf("line %+v, want the result %q", e, want)
		}
	case <-time.After(10 * time.Second):
		t.Fatalf("no line with the result %q", want)
	}
}

// A gateway of a command is a line when it has started, and one when it has ended. One that
// cannot start is one line.
func TestGatewaysOfCommandsAreAudited(t *testing.T) {
	got := make(lines, 10)
	log := audit.New(audit.Config{At: "three", Out: got, Log: zerolog.Nop()})
	s := &gatewaySubject{fakeSubject: newFakeSubject()}
	c, _ := serveAudited(t, s, log)
	line, err := spec.Parse(spec.Forward, "15432=db")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	err = c.RunGateway(ctx, line, func(ev spec.Event) error {
		if ev.Event == spec.Waiting {
			got.next(t, "started")
			cancel()
		}
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	got.next(t, "ok")
	s.fails = errors.New("no port")
	if err := c.RunGateway(t.Context(), line, nil); err == nil {
		t.Error("it has started")
	}
	got.next(t, "forward: no port")
	if err := log.Close(); err != nil || len(got) > 0 {
		t.Errorf("%d more lines, %v", len(got), err)
	}
}

// stuckGateways has a gateway that waits, and one that listens.
type stuckGateways struct{}

func (stuckGateways) Set([]spec.Gateway) {}
func (stuckGateways) Close()             {}

func (stuckGateways) Run(context.Context, spec.Gateway, func(spec.Event)) error { return nil }

func (stuckGateways) List() []spec.Status {
	return []spec.Status{
		{Kind: spec.Forward, Line: "127.0.0.1:15432=db", State: spec.Waiting, Detail: "address already in use"},
		{Kind: spec.Expose, Line: "web=localhost:80", State: spec.Listening},
	}
}

func TestAGatewayThatWaitsIsAFinding(t *testing.T) {
	host, _ := testHost(t)
	host.live.set(func(p *parts) { p.gateways = stuckGateways{} })
	all := observe.Findings(host.observe(time.Now()))
	want := observe.Finding{Severity: observe.Broken, Kind: observe.KindGateway, Node: addr.NoNode,
		Text: "gateway forward 127.0.0.1:15432=db is waiting: address already in use"}
	if i := slices.Index(all, want); i < 0 || slices.ContainsFunc(all[i+1:], func(f observe.Finding) bool { return f.Kind == want.Kind }) {
		t.Errorf("%+v, want only %+v of this kind", all, want)
	}
}
