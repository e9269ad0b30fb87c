package client

import (
	"bytes"
	"context"
	"sync"
	"testing"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/server"
	"github.com/fabricd/fabricd/internal/guard"
	"github.com/fabricd/fabricd/internal/status"
)

// A broken endpoint is one of a node with a mistake in one call.
type broken struct {
	attach.NodeEndpoint
	in string
}

func (b broken) mistake(call string) {
	if b.in == call {
		panic("a mistake in " + call)
	}
}

func (b broken) Bind(port addr.Port) (addr.Port, error) {
	b.mistake("Bind")
	return b.NodeEndpoint.Bind(port)
}

func (b broken) Connect(ctx context.Context, to addr.Addr) (addr.Port, error) {
	b.mistake("Connect")
	return b.NodeEndpoint.Connect(ctx, to)
}

func (b broken) Ready() attach.Events {
	b.mistake("Ready")
	return b.NodeEndpoint.Ready()
}

func (b broken) TrySend(p []byte) (int, error) {
	b.mistake("Send")
	return b.NodeEndpoint.TrySend(p)
}

func (b broken) Recv(ctx context.Context, p []byte) (int, error) {
	b.mistake("Recv")
	return b.NodeEndpoint.Recv(ctx, p)
}

// A brokenSession opens such endpoints.
type brokenSession struct {
	attach.NodeSession
	in string
}

func (s brokenSession) Open() (attach.NodeEndpoint, error) {
	e, err := s.NodeSession.Open()
	return broken{e, s.in}, err
}

// A lockedBuffer is a log that is read while it is written.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) has(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Contains(l.b.Bytes(), []byte(text))
}

// TestAPanicEndsOneSession: the application that sent the request loses its session, with a log
// line that has the stack; others are not affected.
func TestAPanicEndsOneSession(t *testing.T) {
	for call, goroutine := range map[string]string{
		"Bind":    "the session's reader",
		"Connect": "a request's",
		"Ready":   "the one that follows an endpoint",
		"Send":    "a relay's, from the application",
		"Recv":    "a relay's, to the application",
	} {
		t.Run(call, func(t *testing.T) {
			guard.Catch(t) // undone when the node has ended
			var log lockedBuffer
			mistakes := make(chan string, 3)
			s := serve(t, func(o *server.Options) {
				o.Log = zerolog.New(&log)
				open := o.NewSession
				o.NewSession = func(c attach.Credentials) (attach.NodeSession, error) {
					n, err := open(c)
					if in := <-mistakes; err == nil && in != "" {
						return brokenSession{n, in}, nil
					}
					return n, err
				}
			})
			mistakes <- call
			bad := s.dial(t)
			mistakes <- ""
			good := s.dial(t)
			l, other := must(good.Open())(t), must(good.Open())(t)
			port := must(l.Bind(0))(t)
			check(t, "Listen", l.Listen(1), status.OK)
			e := must(bad.Open())(t)
			e.Bind(0)
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			switch call {
			case "Ready":
				e.Listen(1)
			case "Send", "Recv":
				go l.Accept(ctx)
				fallthrough
			default:
				e.Connect(ctx, addr.Addr{Node: 3, Port: port})
				e.Send(ctx, []byte("x"))
			}
			select {
			case <-bad.Done():
			case <-ctx.Done():
				t.Fatal("the session goes on")
			}
			eventually(t, "the log has "+goroutine+", with the stack", func() bool {
				return log.has("a mistake in "+call) && log.has("guard_test.go")
			})
			check(t, "an endpoint of another application", func() error { _, err := other.Bind(0); return err }(), status.OK)
			mistakes <- ""
			s.dial(t)
		})
	}
}
