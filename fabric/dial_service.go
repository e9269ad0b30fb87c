package fabric

import (
	"context"
	"slices"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/status"
)

// resolver returns the endpoints that serve a name, in the order in which to try them.
type resolver func(service, node string) ([]attach.Service, error)

// dialService connects to an endpoint that serves a name.
func (n *Node) dialService(ctx context.Context, t addr.Target, resolve resolver) (*Conn, error) {
	limit, cancel := patient(ctx)
	defer cancel()
	var conn *Conn
	err := untilNotBusy(limit, func() (err error) {
		conn, err = n.tryAll(ctx, limit, t, resolve)
		return err
	})
	return conn, err
}

// tryAll tries each endpoint that serves the name once, also those that serve it only when
// others have refused: it may just have moved. The error is that of a full backlog, if
// there was one: that passes.
func (n *Node) tryAll(ctx, limit context.Context, t addr.Target, resolve resolver) (*Conn, error) {
	var tried []attach.Service
	var failed error
	for {
		list, err := resolve(t.Service, t.Node)
		next := slices.IndexFunc(list, func(s attach.Service) bool { return !slices.ContainsFunc(tried, sameEndpoint(s)) })
		if next < 0 || len(tried) == maxTried {
			if failed == nil {
				failed = n.fail("connect", withdraw(ctx, err))
			}
			return nil, failed
		}
		s := list[next]
		tried = append(tried, s)
		conn, err := n.dialOnce(ctx, limit, Addr{Node: s.Life.Node, Port: s.Port}, t.Service)
		if err == nil || !anotherMayDo(err) || limit.Err() != nil {
			return conn, err
		}
		if status.Of(failed) != status.Busy {
			failed = err
		}
	}
}

// maxTried bounds the endpoints that one dial tries between two pauses: a node whose
// services come and go must not keep it for ever.
const maxTried = 2 * attach.MaxCandidates

func sameEndpoint(s attach.Service) func(attach.Service) bool {
	return func(x attach.Service) bool { return x.Life == s.Life && x.Port == s.Port }
}

// anotherMayDo reports whether another endpoint may take a dial that failed with err.
func anotherMayDo(err error) bool {
	switch status.Of(err) {
	case status.Refused, status.Busy, status.NoDevice, status.Reset:
		return true
	}
	return false
}
