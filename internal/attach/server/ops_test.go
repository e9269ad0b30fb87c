package server

import (
	"context"
	"math"
	"testing"

	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/internal/status"
)

// Requests of every kind are bounded for any sequence of an application.
func TestEveryKindOfRequestIsBounded(t *testing.T) {
	most := bounds(newAccount("a session", SessionLimits(), nil))
	for o := range operations {
		if o.Waits() == proto.AtOnce {
			continue
		}
		if n := most[o.Waits()]; n < proto.MaxRequests || n > 1<<15 {
			t.Errorf("operation %d: %d may wait", o, n)
		}
	}
}

// TestUnknownEndpoints asks for everything on endpoints that there are not.
func TestUnknownEndpoints(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s, err := NewServer(ctx, Options{NewSession: func(attach.Credentials) (attach.NodeSession, error) { return idleSession{}, nil }})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(nil) }()
	defer func() { cancel(); <-served }()
	app, _, err := s.InProcess()
	if err != nil {
		t.Fatal(err)
	}
	defer app.Close()
	ask := func(h proto.Header, in proto.Message) status.Code {
		if err := app.Send(proto.AppendFrame(nil, h, in), nil); err != nil {
			t.Fatal(err)
		}
		p := make([]byte, proto.MaxFrame)
		n, _, err := app.Recv(p)
		if err != nil {
			t.Fatalf("operation %d: %v", h.Op, err)
		}
		answer, _, err := proto.ParseFrame(p[:n])
		if err != nil || answer.Op != h.Op|proto.OpReply || answer.Request != h.Request {
			t.Fatalf("operation %d is answered with %+v, %v", h.Op, answer, err)
		}
		return answer.Code
	}
	if code := ask(proto.Header{Op: proto.OpHello, Request: 1}, &proto.Hello{Magic: proto.Magic, Min: proto.VersionMin, Max: proto.VersionMax}); code != status.OK {
		t.Fatal(code)
	}
	request := uint64(1)
	for o, spec := range operations {
		if !spec.endpoint || spec.takesFile {
			continue
		}
		var in proto.Message
		if spec.in != nil {
			in = spec.in()
		}
		for _, ep := range []uint32{0, 77, math.MaxUint32} {
			request++
			if code := ask(proto.Header{Op: o, Endpoint: ep, Request: request}, in); code != status.BadFD {
				t.Errorf("operation %d on endpoint %d: %v, want %v", o, ep, code, status.BadFD)
			}
		}
	}
}

// An idleSession is one without nodes and endpoints.
type idleSession struct{ attach.NodeSession }

func (idleSession) Self() attach.Self     { return attach.Self{} }
func (idleSession) Done() <-chan struct{} { return nil }
func (idleSession) Close() error          { return nil }
func (idleSession) CloseWindows()         {}

// FuzzServer sends a session packets of a hostile application: it must answer or refuse each of
// them, and continue.
func FuzzServer(f *testing.F) {
	for o, spec := range operations {
		var in proto.Message
		if spec.in != nil {
			in = spec.in()
		}
		f.Add(proto.AppendFrame(nil, proto.Header{Op: o, Endpoint: 1, Request: 1}, in))
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		s := &session{}
		r, err := s.parse(p, nil, false)
		if err == nil && r.do == nil && r.Op != proto.OpCancel && operations[r.Op].do != nil {
			t.Errorf("operation %d is known and not performed", r.Op)
		}
		if err != nil && status.Of(err) != status.Protocol {
			t.Errorf("packet refused with %v, want %v", err, status.Protocol)
		}
	})
}
