package client

import (
	"context"
	"fmt"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/internal/status"
)

// maxPages bounds the pages of one list. It allows more services than a cluster may have.
const maxPages = 64

func (c *session) Services() ([]attach.Service, error) {
	var all []attach.Service
	var next proto.ServicesBody
	for range maxPages {
		var page proto.ServiceList
		if _, err := c.ask(context.Background(), request{op: proto.OpServices, body: &next}, &page); err != nil {
			return nil, tooOld(err)
		}
		all = append(all, page.Services...)
		if !page.More || len(page.Services) == 0 {
			return all, nil
		}
		last := page.Services[len(page.Services)-1]
		next = proto.ServicesBody{Name: last.Name, Node: last.Incarnation.Node}
	}
	return nil, fmt.Errorf("the list of services does not end: %w", status.Protocol)
}

func (c *session) Resolve(ctx context.Context, service, node string) ([]attach.Service, error) {
	var list proto.ServiceList
	if _, err := c.ask(ctx, request{op: proto.OpResolve, body: &proto.ResolveBody{Service: service, Node: node}}, &list); err != nil {
		return nil, tooOld(err)
	}
	if len(list.Services) == 0 {
		return nil, fmt.Errorf("no service and no error: %w", status.Protocol)
	}
	return list.Services, nil
}

// tooOld explains the error of a node that does not know the operation.
func tooOld(err error) error {
	if status.Of(err) == status.NotSupp {
		return attach.Failure(status.NotSupp, "the fabricd of this node is too old to know names")
	}
	return err
}

// NotifyServices turns on the notifications, which stay on until the session ends. Each call asks
// for them: every change after its return is reported.
func (c *session) NotifyServices(ch chan<- struct{}) (stop func()) {
	stop = c.services.Add(ch)
	c.ask(context.Background(), request{op: proto.OpWatchServices, body: &proto.WatchBody{On: 1}}, nil) // fails only if no change can be reported
	return stop
}

func (e *endpoint) Serve(service string) error {
	return tooOld(e.ask(context.Background(), proto.OpServe, &proto.ServiceBody{Service: service}, nil))
}

func (e *endpoint) ConnectService(ctx context.Context, dst addr.Addr, service string) (addr.Port, error) {
	if service == "" {
		return e.Connect(ctx, dst)
	}
	port, err := e.connect(ctx, proto.OpConnectService, &proto.ConnectServiceBody{To: dst, Service: service})
	return port, tooOld(err)
}
