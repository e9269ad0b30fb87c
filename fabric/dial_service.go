package fabric

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/status"
)

// resolver returns the endpoints that serve a name, in the order in which to try them.
type resolver func(ctx context.Context, service, node string) ([]attach.Service, error)

// dialService connects to an endpoint that serves a name.
func (n *Node) dialService(ctx context.Context, t addr.Target, resolve resolver) (*Conn, error) {
	limit, cancel := patient(ctx)
	defer cancel()
	return untilNotBusy(limit, func() (*Conn, error) { return n.tryAll(ctx, limit, t, resolve) })
}

// tryAll tries each endpoint that serves the name once, also those that serve it only when
// others have refused: it may just have moved. The error is that of a full backlog, if
// there was one: that passes.
func (n *Node) tryAll(ctx, limit context.Context, t addr.Target, resolve resolver) (*Conn, error) {
	var tried []attach.Service
	var failed error
	for {
		list, err := resolve(ctx, t.Service, t.Node)
		list = slices.DeleteFunc(list, func(s attach.Service) bool { return slices.ContainsFunc(tried, sameEndpoint(s)) })
		if len(list) == 0 || len(tried) == maxTried {
			if failed == nil {
				failed = n.fail("connect", contextError(ctx, err))
			}
			return nil, failed
		}
		tried = append(tried, list[0])
		conn, err := n.tryOne(ctx, limit, list[0], t.Service, len(list))
		if err == nil || !anotherMayDo(err) || limit.Err() != nil {
			return conn, err
		}
		if status.Of(failed) != status.Busy {
			failed = err
		}
	}
}

// tryOne tries one of so many endpoints, for its share of the time if there are others: an
// endpoint that does not answer must not use up their time.
func (n *Node) tryOne(ctx, limit context.Context, s attach.Service, service string, of int) (*Conn, error) {
	a := Addr{Node: s.Incarnation.Node, Port: s.Port}
	end, bounded := limit.Deadline()
	if of == 1 || !bounded {
		return n.dialOnce(ctx, limit, a, service)
	}
	share, cancel := context.WithTimeout(ctx, max(leastShare, time.Until(end)/time.Duration(of)))
	defer cancel()
	conn, err := n.dialOnce(share, limit, a, service)
	if err != nil && share.Err() != nil && ctx.Err() == nil {
		err = &OpError{Op: "connect", Local: n.local(), Remote: a, Err: errNoAnswer}
	}
	return conn, err
}

// leastShare is the least that tryOne gives to an endpoint.
const leastShare = time.Second

var errNoAnswer = fmt.Errorf("%w: no accept in time, and other nodes serve the name too", status.Refused)

// maxTried bounds the endpoints that one dial tries between two pauses: a node whose
// services come and go must not keep it for ever.
const maxTried = 2 * attach.MaxCandidates

func sameEndpoint(s attach.Service) func(attach.Service) bool {
	return func(x attach.Service) bool { return x.Incarnation == s.Incarnation && x.Port == s.Port }
}

// anotherMayDo reports whether another endpoint may take a dial that failed with err.
func anotherMayDo(err error) bool {
	switch status.Of(err) {
	case status.Refused, status.Busy, status.NoDevice, status.Reset, status.TimedOut:
		return true
	}
	return false
}
