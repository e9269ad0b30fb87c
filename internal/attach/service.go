package attach

import (
	"context"
	"fmt"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/status"
)

// Bounds of services.
const (
	// MaxServices is the largest number of names that the endpoints of one node serve.
	MaxServices = 64
	// MaxCandidates is the largest number of endpoints that Resolve returns.
	MaxCandidates = 64
)

// A Service is an endpoint of a live node that listens and serves a name.
type Service struct {
	Name        string
	Incarnation addr.Incarnation
	Port        addr.Port
	Node        string // the node's name
	// RoundTrip is the latest measurement on the links to the node: 0 for this node, negative if
	// unknown.
	RoundTrip time.Duration
}

// A Directory is a session's view of service names. The other nodes report them; a report does not
// authenticate the server.
type Directory interface {
	// Services returns the services of this node and of all live ones, by name, and
	// then by node. The caller owns the slice.
	Services() ([]Service, error)

	// Resolve returns the endpoints that serve a name, in the order in which to try them: this
	// node's, then the nearest, then those of unknown distance in any order. There is at least one,
	// and at most MaxCandidates; else the error is status.NoDevice. With node, an ID or a name,
	// only endpoints of that node count. Without a service it returns that node, with port 0. The
	// wait for the node ends with ctx.
	Resolve(ctx context.Context, service, node string) ([]Service, error)

	// NotifyServices makes the session send to ch, without blocking, after every
	// change of Services. stop ends that.
	NotifyServices(ch chan<- struct{}) (stop func())
}

// Failure returns an error with a code and the complete text.
func Failure(code status.Code, format string, args ...any) error {
	return &failure{code, fmt.Sprintf(format, args...)}
}

type failure struct {
	code status.Code
	text string
}

func (e *failure) Error() string { return e.text }
func (e *failure) Unwrap() error { return e.code }
