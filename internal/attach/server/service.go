package server

import (
	"cmp"
	"context"
	"sync"

	"github.com/fabricd/fabricd/internal/attach/proto"
)

func doConnectService(ctx context.Context, s *session, r *request) (reply, error) {
	in := r.in.(*proto.ConnectServiceBody)
	return s.connected(r.ep, func() error {
		_, err := r.ep.ep.ConnectService(ctx, in.To, in.Service)
		return err
	})
}

func doResolve(ctx context.Context, s *session, r *request) (reply, error) {
	in := r.in.(*proto.ResolveBody)
	list, err := s.node.Resolve(ctx, in.Service, in.Node)
	return reply{body: &proto.ServiceList{Services: list}}, err
}

// doServices answers with the page after the entry that the request names.
func doServices(_ context.Context, s *session, r *request) (reply, error) {
	after := r.in.(*proto.ServicesBody)
	all, err := s.node.Services()
	if err != nil {
		return reply{}, err
	}
	first := 0
	if after.Name != "" {
		for first < len(all) && cmp.Or(cmp.Compare(all[first].Name, after.Name), cmp.Compare(all[first].Incarnation.Node, after.Node)) <= 0 {
			first++
		}
	}
	page := all[first:min(first+proto.ServicesPage, len(all))]
	return reply{body: &proto.ServiceList{More: first+len(page) < len(all), Services: page}}, nil
}

// doWatchServices turns the notification of changes on or off. One at a time is queued, and the
// next one after the application has received it.
func doWatchServices(_ context.Context, s *session, r *request) (reply, error) {
	return s.notify(r, &s.unwatch.services, s.followServices)
}

// followServices notifies the application of changes until end is called or the session ends.
func (s *session) followServices() (end func()) {
	return s.follow(s.node.NotifyServices, func() {
		s.out.Wait(proto.MaxRequests)
		s.sendNotice(proto.Header{Op: proto.OpServicesAnew}, nil)
	})
}

// follow calls send after each change that begin reports, one call at a time, until end is called or
// the session ends.
func (s *session) follow(begin func(chan<- struct{}) (stop func()), send func()) (end func()) {
	changed, quit := make(chan struct{}, 1), make(chan struct{})
	stop := begin(changed)
	s.wg.Go(s.guarded(func() {
		for {
			select {
			case <-changed:
				send()
			case <-quit:
				return
			case <-s.ctx.Done():
				return
			}
		}
	}))
	return sync.OnceFunc(func() { stop(); close(quit) })
}
