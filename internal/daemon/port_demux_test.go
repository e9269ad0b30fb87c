package daemon

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/internal/transport/stream"
	"github.com/fabricd/fabricd/membership"
)

// A silent connection keeps what is written and brings nothing.
type silent struct {
	net.Conn
	said bytes.Buffer
}

func (s *silent) Write(p []byte) (int, error) { return s.said.Write(p) }
func (s *silent) Read([]byte) (int, error)    { return 0, io.EOF }

// clientHello returns what a client says first that speaks alpn.
func clientHello(t testing.TB, alpn ...string) []byte {
	t.Helper()
	var d silent
	if err := tls.Client(&d, &tls.Config{InsecureSkipVerify: true, NextProtos: alpn}).Handshake(); err == nil {
		t.Fatal("a handshake with nobody")
	}
	return d.said.Bytes()
}

// TestShare lets a connection of each kind through one listener.
func TestShare(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := newPortDemux(l, zerolog.Nop(), func() {})
	s.provider()
	defer s.Close()
	say := func(parts ...[]byte) net.Conn {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		for _, p := range append(parts, []byte("rest")) {
			if _, err := c.Write(p); err != nil {
				t.Fatal(err)
			}
		}
		return c
	}
	for _, c := range []struct {
		name string
		p    []byte
		ours bool
	}{
		{"control", clientHello(t, "fabricd-control/1"), false},
		{"session", clientHello(t, stream.ALPN), true},
		{"one of two protocols", clientHello(t, "other", stream.ALPN), true},
		{"no protocol", clientHello(t), false},
		{"stranger", []byte("GET / HTTP/1.1"), false},
		{"an enormous record", []byte{22, 3, 1, 0xff, 0xff}, false},
		{"an empty record", []byte{22, 3, 1, 0, 0}, false},
		{"a record that is no hello", []byte{22, 3, 1, 0, 4, 2, 0, 0, 0}, false},
		{"more than a record", append([]byte{22, 3, 1, 0x40, 0, 1, 0, 0xff, 0xff}, make([]byte, maxClientHello)...), false},
	} {
		dialed := say(c.p[:len(c.p)/2], c.p[len(c.p)/2:])
		first, err := s.Accept()
		if err != nil {
			t.Fatal(err)
		}
		// As membership does: a deadline, a read, and a close if that fails.
		first.SetDeadline(time.Now().Add(time.Minute))
		got := make([]byte, len(c.p)+4)
		_, err = io.ReadFull(first, got)
		at := first
		if c.ours {
			if !errors.Is(err, membership.ErrElsewhere) {
				t.Fatalf("%s: %v, want ErrElsewhere", c.name, err)
			}
			first.SetDeadline(time.Unix(1, 0))
			first.Close()
			if at, err = s.other.Accept(); err != nil {
				t.Fatal(err)
			}
			_, err = io.ReadFull(at, got)
		}
		if want := append(bytes.Clone(c.p), "rest"...); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: read %d bytes, %v", c.name, len(got), err)
		}
		if _, err := at.Write([]byte("answer")); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		at.Close()
		if answer, err := io.ReadAll(dialed); err != nil || string(answer) != "answer" {
			t.Errorf("%s: answered %q, %v", c.name, answer, err)
		}
	}
	// What nobody accepts is closed, before the end of the provider and behind it.
	for i, close := range []func(){func() {}, func() { s.other.Close() }} {
		dialed := say(clientHello(t, stream.ALPN))
		c, err := s.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if i == 1 {
			close()
		}
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, membership.ErrElsewhere) {
			t.Fatal(err)
		}
		s.other.Close()
		dialed.SetReadDeadline(time.Now().Add(20 * time.Second))
		if _, err := io.ReadAll(dialed); err != nil && errors.Is(err, io.ErrNoProgress) {
			t.Error(err)
		} else if ne, ok := err.(net.Error); ok && ne.Timeout() {
			t.Error("a connection that nobody accepted stays open")
		}
	}
	if _, err := s.other.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("accept after close: %v", err)
	}
}

// TestConnectionsThatNobodyTakesAreSummedUp floods a provider that accepts nothing.
func TestConnectionsThatNobodyTakesAreSummedUp(t *testing.T) {
	var out bytes.Buffer
	refused := 0
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s := newPortDemux(l, zerolog.New(&out), func() { refused++ })
	s.provider()
	const more = 1000
	for range handedMax + more {
		c, peer := net.Pipe()
		defer peer.Close()
		s.other.take(c)
	}
	s.other.Close()
	if refused != more {
		t.Errorf("%d were refused, want %d", refused, more)
	}
	if lines := bytes.Count(out.Bytes(), []byte("\n")); lines > 30 || !bytes.Contains(out.Bytes(), []byte("more connections for links were refused in the last minute")) {
		t.Errorf("%d lines for %d connections:\n%s", lines, more, out.Bytes())
	}
}
