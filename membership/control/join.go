package control

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/fabricd/fabricd/membership/trust"
)

// join does the host's side of the one exchange of a join connection.
func (s *Server) join(l *link) error {
	f, err := l.read()
	if err != nil {
		return fmt.Errorf("read JOIN: %w", err)
	}
	ask, ok := f.(JoinAsk)
	if !ok {
		return l.refuse(Refusef(CodeProtocol, "want JOIN, got %T", f))
	}
	if _, err := negotiate(ask.VersionMin, ask.VersionMax); err != nil {
		return l.refuse(err)
	}
	if s.cfg.Join == nil {
		return l.refuse(Refusef(CodeRole, "node %s is not the host", s.cfg.Store.Identity().Node))
	}
	grant, err := s.cfg.Join(l.tls.ConnectionState(), ask)
	if err != nil {
		return l.refuse(err)
	}
	if err := l.write(grant); err != nil {
		return err
	}
	l.tls.CloseWrite()
	l.drain()
	l.raw.Close()
	return nil
}

// Ask sends one JoinAsk to the host at address, and returns its answer. The
// host is authenticated by the token, and the proof of the token is filled in.
// A *RefusedError in the chain is the host's answer; other errors mean that it
// was not reached or is not the token's host.
func Ask(ctx context.Context, dial func(context.Context, string) (net.Conn, error), address string,
	token trust.Token, now func() time.Time, ask JoinAsk) (JoinGrant, error) {
	return askHost(ctx, dial, address, token.ClientTLS(now), func(cs tls.ConnectionState) (err error) {
		ask.Token = token.ID
		ask.Proof, err = token.Proof(cs, trust.RoleJoin)
		return err
	}, &ask)
}

// AskAgain is Ask for a node that has joined: the key of the request is the one
// that the host knows, and the host one that the node's CA certificates name.
func AskAgain(ctx context.Context, dial func(context.Context, string) (net.Conn, error), address string,
	creds trust.Credentials, now func() time.Time, ask JoinAsk) (JoinGrant, error) {
	return askHost(ctx, dial, address, creds.RejoinTLS(now), func(tls.ConnectionState) error { return nil }, &ask)
}

func askHost(ctx context.Context, dial func(context.Context, string) (net.Conn, error), address string,
	config *tls.Config, prove func(tls.ConnectionState) error, ask *JoinAsk) (JoinGrant, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*openTimeout) // the host writes to disk
	defer cancel()
	l, err := dialTLS(ctx, dial, address, config)
	if err != nil {
		return JoinGrant{}, explainJoin(err)
	}
	stop := context.AfterFunc(ctx, func() { l.raw.Close() })
	defer l.raw.Close()
	grant, err := exchange(l, prove, ask)
	if !stop() && err != nil {
		return JoinGrant{}, context.Cause(ctx)
	}
	return grant, err
}

func exchange(l *link, prove func(tls.ConnectionState) error, ask *JoinAsk) (JoinGrant, error) {
	if err := prove(l.tls.ConnectionState()); err != nil {
		return JoinGrant{}, err
	}
	ask.VersionMin, ask.VersionMax = VersionMin, VersionMax
	if err := l.write(*ask); err != nil {
		return JoinGrant{}, err
	}
	f, err := l.read()
	if err != nil {
		return JoinGrant{}, err
	}
	switch f := f.(type) {
	case JoinGrant:
		return f, nil
	case Refuse:
		return JoinGrant{}, &RefusedError{Code: f.Code, Text: f.Text, Remote: true}
	}
	return JoinGrant{}, fmt.Errorf("%w: want the answer to a join, got %T", ErrMalformed, f)
}

// explainJoin adds the cause that a TLS alert alone does not name.
func explainJoin(err error) error {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "remote error" {
		return fmt.Errorf("what answers there is no fabricd that nodes can join: %w", err)
	}
	return err
}
