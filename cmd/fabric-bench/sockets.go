package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
)

// The anchors beside quic-go alone: stream sockets with Go's own packages, one
// for each channel.
const (
	rawTCP  = "raw-tcp"  // TCP over the loopback interface
	rawTLS  = "raw-tls"  // the same with crypto/tls
	rawUnix = "raw-unix" // Unix sockets
)

// sockets is an anchor: a listener, and a responder for every connection.
type sockets struct {
	name     string
	listener net.Listener
	settings *tls.Config // nil: no TLS
	dir      string      // of a Unix socket; empty: none
	running  sync.WaitGroup

	mu    sync.Mutex // guards the fields below
	conns map[net.Conn]struct{}
	err   error // the first of a responder
	ended bool
}

func startSockets(name string) (_ *sockets, err error) {
	s := &sockets{name: name, conns: make(map[net.Conn]struct{})}
	switch name {
	case rawUnix:
		if s.dir, err = os.MkdirTemp("", "fabric-bench-"); err != nil {
			return nil, err
		}
		s.listener, err = net.Listen("unix", filepath.Join(s.dir, "s"))
	default:
		if name == rawTLS {
			if s.settings, err = tlsSettings(); err != nil {
				return nil, err
			}
		}
		s.listener, err = net.Listen("tcp", "127.0.0.1:0")
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", name, err), os.RemoveAll(s.dir))
	}
	s.running.Go(s.accept)
	return s, nil
}

// tlsSettings returns settings for both ends, which are in this process.
func tlsSettings() (*tls.Config, error) {
	cert, err := selfSigned()
	return &tls.Config{
		Certificates:           []tls.Certificate{cert},
		MinVersion:             tls.VersionTLS13,
		NextProtos:             []string{"fabric-bench"},
		SessionTicketsDisabled: true,
		InsecureSkipVerify:     true, // both ends are in this process
	}, err
}

func (s *sockets) about() (provider, security string) { return s.name, secured(s.name) }

func (s *sockets) traffic(context.Context) (int64, error) { return 0, errNoMeter }

func (s *sockets) processes() []int { return nil }

func (s *sockets) dial(ctx context.Context, _ int) (*channel, error) {
	a := s.listener.Addr()
	var d net.Dialer
	conn, err := d.DialContext(ctx, a.Network(), a.String())
	if err != nil {
		return nil, err
	}
	if s.settings != nil {
		conn = tls.Client(conn, s.settings)
	}
	// A first byte, so that the responder is there and the handshake is over.
	if err := knock(conn); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &channel{ReadWriter: conn, close: conn.Close, abort: func() { conn.Close() }}, nil
}

// knock sends a byte and waits for the one that answers it.
func knock(conn net.Conn) error {
	if _, err := conn.Write([]byte{1}); err != nil {
		return err
	}
	_, err := conn.Read(make([]byte, 1))
	return err
}

// accept runs until the listener is closed.
func (s *sockets) accept() {
	for {
		conn, err := s.listener.Accept()
		if err != nil {
			return
		}
		if s.settings != nil {
			conn = tls.Server(conn, s.settings)
		}
		s.mu.Lock()
		if s.ended {
			conn.Close()
		}
		s.conns[conn] = struct{}{}
		s.running.Go(func() { s.respond(conn) })
		s.mu.Unlock()
	}
}

func (s *sockets) respond(conn net.Conn) {
	_, err := conn.Read(make([]byte, 1))
	if err == nil {
		_, err = conn.Write([]byte{1})
	}
	if err == nil {
		err = (&responder{rw: conn}).run()
	}
	conn.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, conn)
	if s.err == nil && !s.ended {
		s.err = err
	}
}

// close implements side.
func (s *sockets) close() error {
	s.mu.Lock()
	s.ended = true
	for conn := range s.conns {
		conn.Close() // its responder ends and removes it
	}
	s.mu.Unlock()
	err := s.listener.Close()
	s.running.Wait()
	if s.dir != "" {
		err = errors.Join(err, os.RemoveAll(s.dir))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Join(s.err, err)
}
