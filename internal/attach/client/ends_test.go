package client

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/internal/status"
)

// TestOnlyTheApplicationsCloseIsAnEnd ends a writer's connection in every way that an application
// has, and checks the end that its peer reads after the last byte.
func TestOnlyTheApplicationsCloseIsAnEnd(t *testing.T) {
	for name, c := range map[string]struct {
		end   func(s *service, e *endpoint)
		cause string // "": a good end
	}{
		"closed":                    {func(_ *service, e *endpoint) { e.Close() }, ""},
		"closed before its session": {func(_ *service, e *endpoint) { e.Close(); e.c.Close() }, ""},
		"its session closed":        {func(_ *service, e *endpoint) { e.c.Close() }, attach.CauseDetached},
		"aborted":                   {func(_ *service, e *endpoint) { e.Abort("tired of it\n") }, "tired of it"},
		"its process dead": {func(_ *service, e *endpoint) {
			e.data.close() // a kernel closes descriptors in any order
			if sp := e.shmPath.Load(); sp != nil {
				sp.room.Close()
				sp.data.Close()
			}
			e.c.conn.Close()
		}, attach.CauseDied},
		"its process dead, the session first": {func(_ *service, e *endpoint) {
			e.c.conn.Close()
			e.shut()
		}, attach.CauseDied},
		"its node ended": {func(s *service, _ *endpoint) { s.end() }, "gone"},
	} {
		for way, join := range map[string]func(*testing.T, *service) (attach.Endpoint, attach.Endpoint){
			"data socket": func(t *testing.T, s *service) (attach.Endpoint, attach.Endpoint) {
				return connect(t, s.dial(t), s.dial(t))
			},
			"shared-memory path": func(t *testing.T, s *service) (attach.Endpoint, attach.Endpoint) { return overShmPath(t, s) },
		} {
			t.Run(name+"/"+way, func(t *testing.T) {
				s := serve(t, nil)
				a, b := join(t, s)
				ctx, cancel := context.WithTimeout(context.Background(), limit)
				defer cancel()
				if _, err := a.Send(ctx, []byte("last words")); err != nil {
					t.Fatal(err)
				}
				var got []byte
				p := make([]byte, 64)
				if c.cause != "gone" || way == "shared-memory path" {
					n, err := b.Recv(ctx, p)
					if err != nil {
						t.Fatal(err)
					}
					got = p[:n]
				}
				c.end(s, a.(*endpoint))
				rest, err := io.ReadAll(reader{ctx, b})
				if got = append(got, rest...); c.cause != "gone" && string(got) != "last words" {
					t.Errorf("%q arrived", got)
				}
				if good := err == nil; good != (c.cause == "") || !good && (!errors.Is(err, status.Reset) || !strings.Contains(err.Error(), c.cause)) {
					t.Errorf("ended with %v, want the cause %q", err, c.cause)
				}
				if c.cause == "" {
					return
				}
				eventually(t, "a send fails for that cause", func() bool {
					_, err := b.TrySend(p)
					return errors.Is(err, status.Reset) && strings.Contains(err.Error(), c.cause)
				})
			})
		}
	}
}

// TestACloseIsOneThoughTheSessionEndsBehindIt: a C program sends CLOSE and exits without waiting
// for the answer.
func TestACloseIsOneThoughTheSessionEndsBehindIt(t *testing.T) {
	s := serve(t, nil)
	for range 30 {
		c := attachRaw(t, s)
		peer, far, data := c.accepted(s.dial(t))
		io.WriteString(data, "last words")
		data.Close()
		c.send(proto.Header{Op: proto.OpClose, Endpoint: far, Request: 900}, nil, nil)
		c.conn.Close()
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		if got, err := io.ReadAll(reader{ctx, peer}); string(got) != "last words" || err != nil {
			t.Errorf("%q and %v", got, err)
		}
		cancel()
	}
}

// TestAConnectionThatNobodyTakesIsReset is about an ACCEPT whose caller gave up before the answer
// came.
func TestAConnectionThatNobodyTakesIsReset(t *testing.T) {
	s := serve(t, nil)
	a, b := connect(t, s.dial(t), s.dial(t))
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	e := a.(*endpoint)
	e.c.abandon(e.id)
	if _, err := b.Recv(ctx, make([]byte, 1)); !errors.Is(err, status.Reset) || errors.Is(err, io.EOF) || !strings.Contains(err.Error(), proto.CauseNotTaken) {
		t.Errorf("%v, want a reset", err)
	}
}
