package daemon

import (
	"errors"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/internal/faults"
	"github.com/fabricd/fabricd/internal/faults/inject"
	"github.com/fabricd/fabricd/internal/transport/stream"
)

// TestControlRulesLeaveSessionsAlone: a rule on the control plane is for control
// sessions and lifelines. What comes to the same port for the TCP provider is of
// a link, which no such rule holds up.
func TestControlRulesLeaveSessionsAlone(t *testing.T) {
	for name, r := range map[string]faults.Rule{
		"delay":     {Delay: faults.Duration(time.Minute)},
		"rate":      {Rate: 1000},
		"cut":       {Cut: true},
		"hold":      {Hold: true, For: faults.Duration(time.Minute)},
		"half open": {HalfOpen: true},
	} {
		t.Run(name, func(t *testing.T) {
			inner, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			plane := faults.NewPlane(faults.Options{Seed: 1})
			plane.SetSelf(0)
			r.On = faults.Control
			if _, err := plane.Add(r); err != nil {
				t.Fatal(err)
			}
			layer := inject.New(plane)
			defer layer.Close()
			s := newPortDemux(inner, zerolog.Nop(), func() {})
			s.provider()
			control := layer.Listener(s, faults.Control) // as the daemon does
			defer control.Close()
			go func() { // until control is closed
				for {
					c, err := control.Accept()
					if err != nil {
						return
					}
					go c.Read(make([]byte, 1)) // as membership does, until the layer is closed
				}
			}()
			timer := time.AfterFunc(2*time.Second, func() { s.other.Close() })
			defer timer.Stop()
			c, err := net.Dial("tcp", inner.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err := c.Write(clientHello(t, stream.ALPN)); err != nil {
				t.Fatal(err)
			}
			handed, err := s.other.Accept()
			if err != nil {
				t.Fatal("the provider gets no session under this rule on control")
			}
			handed.Close()
		})
	}
}

// TestHalfOpenControlIsRefused: what comes for membership is refused as soon as
// it has shown that.
func TestHalfOpenControlIsRefused(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	plane := faults.NewPlane(faults.Options{Seed: 1})
	plane.SetSelf(0)
	if _, err := plane.Add(faults.Rule{On: faults.Control, HalfOpen: true}); err != nil {
		t.Fatal(err)
	}
	layer := inject.New(plane)
	defer layer.Close()
	s := newPortDemux(inner, zerolog.Nop(), func() {})
	s.provider()
	control := layer.Listener(s, faults.Control)
	defer control.Close()
	c, err := net.Dial("tcp", inner.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write(clientHello(t, "fabricd-control/1")); err != nil {
		t.Fatal(err)
	}
	taken, err := control.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if n, err := taken.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("membership read %d bytes, %v: want a reset", n, err)
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the dialer gets %v, want a reset", err)
	}
}
