package server

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/fence"
	"github.com/fabricd/fabricd/internal/access"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/attach/proto"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/rma"
)

// An operation is the rule for requests with one op.
type operation struct {
	in        func() proto.Message // a new body to decode; nil for an empty one
	endpoint  bool                 // on an endpoint, not on the session
	takesFile bool                 // with a descriptor
	do        func(ctx context.Context, s *session, r *request) (reply, error)
}

// A request is a request that is being performed.
type request struct {
	proto.Header
	operation
	in   proto.Message
	file *os.File // its descriptor; nil once taken
	ep   *endpoint
}

// drop closes the request's descriptor unless it was taken.
func (r *request) drop() {
	if r.file != nil {
		r.file.Close()
		r.file = nil
	}
}

// notByApplication maps r's error for an application that has not closed r's endpoint or session: a
// close by the node, because the session or the connection ends, is a reset and not a mistake of
// the application.
func (r *request) notByApplication(err error) error {
	if r.Op == proto.OpClose || status.Of(err) != status.BadFD || (r.ep != nil && r.ep.closeStarted()) {
		return err
	}
	return fmt.Errorf("the node ends it: %w", status.Reset)
}

// A reply is the body of an answer, and its descriptor.
type reply struct {
	body  proto.Message
	file  *os.File
	after func() // runs once the answer is sent or dropped
}

func (r reply) end() {
	if r.after != nil {
		r.after()
	}
}

// operations lists all requests.
var operations = map[proto.Op]operation{
	proto.OpBye:    {do: doBye},
	proto.OpCancel: {in: body[proto.Cancel]},
	proto.OpSelf:   {do: doSelf},
	proto.OpNodes:  {do: doNodes},
	proto.OpWatch:  {in: body[proto.WatchBody], do: doWatch},
	proto.OpOpen:   {do: doOpen},

	proto.OpClose:  {endpoint: true, do: doClose},
	proto.OpBind:   {endpoint: true, in: body[proto.Address], do: doBind},
	proto.OpListen: {endpoint: true, in: body[proto.ListenBody], do: doListen},

	proto.OpListenAllow: {endpoint: true, in: body[proto.ListenAllowBody], do: doListenAllow},
	proto.OpPeer:        {endpoint: true, do: doPeer},

	proto.OpConnect:    {endpoint: true, in: body[proto.Address], do: doConnect},
	proto.OpTryConnect: {endpoint: true, in: body[proto.Address], do: doTryConnect},
	proto.OpAccept:     {endpoint: true, do: doAccept},
	proto.OpTryAccept:  {endpoint: true, do: doTryAccept},
	proto.OpReady:      {endpoint: true, do: doReady},
	proto.OpEnding:     {endpoint: true, do: doEnding},
	proto.OpAddress:    {endpoint: true, do: doAddress},
	proto.OpCause:      {endpoint: true, do: doCause},
	proto.OpAbort:      {endpoint: true, in: body[proto.CauseBody], do: doAbort},

	proto.OpShmPath:  {endpoint: true, do: doShmPath},
	proto.OpDoorbell: {endpoint: true, in: body[proto.DoorbellBody], do: doDoorbell},
	proto.OpJoined:   {endpoint: true, in: body[proto.JoinedBody], do: doJoined},
	proto.OpRings:    {do: doRings},
	proto.OpShut:     {endpoint: true, do: doShut},
	proto.OpPath:     {endpoint: true, in: body[proto.PathKeyBody], do: doPath},

	proto.OpPathRest:  {endpoint: true, in: body[proto.PathRestBody], do: doPathRest},
	proto.OpRMAPath:   {endpoint: true, in: body[proto.PathKeyBody], do: doRMAPath},
	proto.OpNoRMAPath: {endpoint: true, in: body[proto.JoinedBody], do: doNoRMAPath},
	proto.OpFarWindow: {endpoint: true, in: body[proto.Offset], do: doFarWindow},

	proto.OpServe:          call(func(ep attach.NodeEndpoint, in *proto.ServiceBody) error { return ep.Serve(in.Service) }),
	proto.OpConnectService: {endpoint: true, in: body[proto.ConnectServiceBody], do: doConnectService},
	proto.OpServices:       {in: body[proto.ServicesBody], do: doServices},
	proto.OpResolve:        {in: body[proto.ResolveBody], do: doResolve},
	proto.OpWatchServices:  {in: body[proto.WatchBody], do: doWatchServices},

	proto.OpMemAdd:     {in: body[proto.MemAdd], takesFile: true, do: doMemAdd},
	proto.OpMemDrop:    {in: body[proto.MemoryBody], do: doMemDrop},
	proto.OpRegister:   {endpoint: true, in: body[proto.Register], do: doRegister},
	proto.OpUnregister: {endpoint: true, in: body[proto.Span], do: doUnregister},
	proto.OpWriteTo: call(func(ep attach.NodeEndpoint, in *proto.Transfer) error {
		return ep.WriteTo(in.Local, in.Len, in.Remote, in.Flags)
	}),
	proto.OpReadFrom: call(func(ep attach.NodeEndpoint, in *proto.Transfer) error {
		return ep.ReadFrom(in.Local, in.Len, in.Remote, in.Flags)
	}),
	proto.OpVWriteTo:   {endpoint: true, in: body[proto.VTransfer], do: doVWriteTo},
	proto.OpVReadFrom:  {endpoint: true, in: body[proto.VTransfer], do: doVReadFrom},
	proto.OpAtomic:     {endpoint: true, in: body[proto.AtomicBody], do: doAtomic},
	proto.OpPostAtomic: call(func(ep attach.NodeEndpoint, in *proto.AtomicBody) error { return ep.PostAtomic(rma.Atomic(*in)) }),
	proto.OpPutSignal:  call(func(ep attach.NodeEndpoint, in *proto.PutBody) error { return ep.PutSignal(in.Local, in.Len, in.Put) }),
	proto.OpVPutSignal: {endpoint: true, in: body[proto.VPutBody], do: doVPutSignal},
	proto.OpMmap:       {endpoint: true, in: body[proto.MmapBody], do: doMmap},
	proto.OpMunmap:     {in: body[proto.MemoryBody], do: doMunmap},
	proto.OpWindow:     {endpoint: true, in: body[proto.Offset], do: doWindow},
	proto.OpEpochs:     {do: doEpochs},
	proto.OpCheck:      {endpoint: true, in: body[proto.CheckBody], do: doCheck},
	proto.OpShare:      {in: body[proto.WatchBody], do: doShare},
	proto.OpRetire:     {in: body[proto.MemoryBody], do: doRetire},

	proto.OpFenceMark:   {endpoint: true, in: body[proto.SideBody], do: doFenceMark},
	proto.OpFenceWait:   {endpoint: true, in: body[proto.MarkBody], do: doFenceWait},
	proto.OpFenceSignal: call(func(ep attach.NodeEndpoint, in *proto.SignalBody) error { return ep.FenceSignal(fence.Signal(*in)) }),
}

// A messageOf is a message of type T.
type messageOf[T any] interface {
	*T
	proto.Message
}

// body returns a new message of type T.
func body[T any, P messageOf[T]]() proto.Message { return P(new(T)) }

// call is the rule for requests that a call of the endpoint performs, and that it answers.
func call[T any, P messageOf[T]](do func(ep attach.NodeEndpoint, in P) error) operation {
	return operation{endpoint: true, in: body[T, P], do: func(_ context.Context, _ *session, r *request) (reply, error) {
		return reply{}, do(r.ep.ep, r.in.(P))
	}}
}

func doBye(ctx context.Context, s *session, r *request) (reply, error) {
	s.mu.Lock()
	eps := s.endpoints.all
	s.endpoints.all = make(map[uint32]*endpoint)
	s.mu.Unlock()
	for _, e := range eps {
		e.startClose(abortedBy(attach.CauseDetached))
	}
	for _, e := range eps {
		e.settle(ctx)
	}
	return reply{}, nil
}

func doSelf(_ context.Context, s *session, _ *request) (reply, error) {
	self := s.node.Self()
	return reply{body: (*proto.SelfBody)(&self)}, nil
}

func doNodes(_ context.Context, s *session, _ *request) (reply, error) {
	ids, self, err := s.node.Nodes()
	if err != nil {
		return reply{}, err
	}
	return reply{body: &proto.NodesBody{Self: self, Set: nodeSet(ids)}}, nil
}

// nodeSet returns ids as a bit set.
func nodeSet(ids []addr.NodeID) []byte {
	if len(ids) == 0 {
		return nil
	}
	set := make([]byte, int(slices.Max(ids))/8+1)
	for _, id := range ids {
		set[id/8] |= 1 << (id % 8)
	}
	return set
}

func doWatch(_ context.Context, s *session, r *request) (reply, error) {
	return s.notify(r, &s.unwatch.events, func() func() { return s.node.Watch(s.event) })
}

// notify turns notifications on or off: begin begins them, and end, nil while there are none, ends
// them. There is one subscription at most.
func (s *session) notify(r *request, end *func(), begin func() func()) (reply, error) {
	on, err := r.on()
	if err != nil {
		return reply{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !on && *end != nil:
		(*end)()
		*end = nil
	case on && *end == nil && !s.closing:
		*end = begin()
	}
	return reply{}, nil
}

// on is the request's WatchBody.
func (r *request) on() (bool, error) {
	on := r.in.(*proto.WatchBody).On
	if on > 1 {
		return false, fmt.Errorf("it is %d, want 0 or 1: %w", on, status.Invalid)
	}
	return on == 1, nil
}

// event notifies the application of ev, and of a change of the node's own identity.
func (s *session) event(ev attach.Event) {
	self := s.node.Self()
	s.mu.Lock()
	changed := self != s.self
	s.self = self
	var eps []*endpoint
	if ev.Kind == attach.NodeRemoved {
		eps = slices.Collect(maps.Values(s.endpoints.all))
	}
	s.mu.Unlock()
	for _, e := range eps {
		e.fence()
	}
	if changed {
		s.sendNotice(proto.Header{Op: proto.OpSelfState}, (*proto.SelfBody)(&self))
	}
	s.sendNotice(proto.Header{Op: proto.OpEvent}, (*proto.EventBody)(&ev))
}

func doOpen(_ context.Context, s *session, _ *request) (reply, error) {
	if err := s.account.charge(endpoints, 1); err != nil {
		return reply{}, err
	}
	e, err := s.addEndpoint(s.node.Open())
	if err != nil {
		return reply{}, err
	}
	return reply{body: &proto.EndpointBody{Endpoint: e.id}}, nil
}

func doBind(_ context.Context, _ *session, r *request) (reply, error) {
	_, err := r.ep.ep.Bind(r.in.(*proto.Address).Port)
	local := r.ep.ep.LocalAddr()
	return reply{body: (*proto.Address)(&local)}, err
}

func doListen(_ context.Context, _ *session, r *request) (reply, error) {
	return r.ep.listen(r.in.(*proto.ListenBody).Backlog)
}

// listen makes the endpoint a listener, and notifies the application of its requests.
func (e *endpoint) listen(backlog uint32, allow ...access.Subject) (reply, error) {
	err := e.ep.Listen(int(int32(backlog)), allow...)
	if err == nil {
		e.follow()
	}
	return reply{}, err
}

func doListenAllow(_ context.Context, _ *session, r *request) (reply, error) {
	in := r.in.(*proto.ListenAllowBody)
	allow, err := access.ParseSubjects(in.Allow)
	if err != nil {
		return reply{}, fmt.Errorf("%w: %w", status.Invalid, err)
	}
	return r.ep.listen(in.Backlog, allow...)
}

func doPeer(_ context.Context, _ *session, r *request) (reply, error) {
	p, err := r.ep.ep.Peer()
	if err != nil {
		return reply{}, err
	}
	return reply{body: (*proto.PeerBody)(&p)}, nil
}

func doReady(_ context.Context, _ *session, r *request) (reply, error) {
	return reply{body: &proto.ReadyBody{Events: uint16(r.ep.events())}}, nil
}

func doAddress(_ context.Context, _ *session, r *request) (reply, error) {
	local := r.ep.ep.LocalAddr()
	return reply{body: (*proto.Address)(&local)}, nil
}

func doEnding(_ context.Context, _ *session, r *request) (reply, error) {
	p := r.ep.moves()
	if p == nil {
		return reply{}, status.NotConn
	}
	return reply{body: &proto.EndingBody{Ending: p.peerEnding()}}, nil
}

func doCause(_ context.Context, _ *session, r *request) (reply, error) {
	return reply{body: &proto.CauseBody{Cause: attach.CleanCause(r.ep.ep.Cause())}}, nil
}

func doAtomic(ctx context.Context, _ *session, r *request) (reply, error) {
	old, err := r.ep.ep.Atomic(ctx, rma.Atomic(*r.in.(*proto.AtomicBody)))
	return reply{body: &proto.WordBody{Value: old}}, err
}

func doFenceMark(_ context.Context, _ *session, r *request) (reply, error) {
	m, err := r.ep.ep.FenceMark(r.in.(*proto.SideBody).Side)
	return reply{body: (*proto.MarkBody)(&m)}, err
}

func doFenceWait(ctx context.Context, _ *session, r *request) (reply, error) {
	return reply{}, r.ep.ep.FenceWait(ctx, fence.Mark(*r.in.(*proto.MarkBody)))
}
