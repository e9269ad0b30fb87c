package ipc

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/fence"
	"github.com/fabricd/fabricd/internal/access"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/rma"
)

// An operation says how requests of one op are taken.
type operation struct {
	in        func() Message // a new body to decode; nil for an empty one
	endpoint  bool           // on an endpoint, not on the session
	takesFile bool           // a descriptor comes with it
	do        func(ctx context.Context, s *serverSession, r *request) (reply, error)
}

// A request is one being performed.
type request struct {
	Header
	operation
	in   Message
	file *os.File // that came with it; nil once taken
	ep   *served
}

// drop closes the request's descriptor if nobody has taken it.
func (r *request) drop() {
	if r.file != nil {
		r.file.Close()
		r.file = nil
	}
}

// notByApplication returns r's result err for an application that has not
// closed what r is about: that the node did, because the session or the
// connection ends, is a reset to it, and no mistake of its own.
func (r *request) notByApplication(err error) error {
	if r.Op == OpClose || status.Of(err) != status.BadFD || (r.ep != nil && r.ep.begun()) {
		return err
	}
	return fmt.Errorf("the node ends it: %w", status.Reset)
}

// A reply is the body of an answer, and what comes with it.
type reply struct {
	body  Message
	file  *os.File
	after func() // runs once the answer is sent or dropped
}

func (r reply) end() {
	if r.after != nil {
		r.after()
	}
}

// operations is the list of all requests.
var operations = map[Op]operation{
	OpBye:    {do: doBye},
	OpCancel: {in: body[Cancel]},
	OpSelf:   {do: doSelf},
	OpNodes:  {do: doNodes},
	OpWatch:  {in: body[WatchBody], do: doWatch},
	OpOpen:   {do: doOpen},

	OpClose:  {endpoint: true, do: doClose},
	OpBind:   {endpoint: true, in: body[Address], do: doBind},
	OpListen: {endpoint: true, in: body[ListenBody], do: doListen},

	OpListenAllow: {endpoint: true, in: body[ListenAllowBody], do: doListenAllow},
	OpPeer:        {endpoint: true, do: doPeer},

	OpConnect:    {endpoint: true, in: body[Address], do: doConnect},
	OpTryConnect: {endpoint: true, in: body[Address], do: doTryConnect},
	OpAccept:     {endpoint: true, do: doAccept},
	OpTryAccept:  {endpoint: true, do: doTryAccept},
	OpReady:      {endpoint: true, do: doReady},
	OpEnding:     {endpoint: true, do: doEnding},
	OpAddress:    {endpoint: true, do: doAddress},
	OpCause:      {endpoint: true, do: doCause},
	OpAbort:      {endpoint: true, in: body[CauseBody], do: doAbort},

	OpChannel: {endpoint: true, do: doChannel},
	OpBell:    {endpoint: true, in: body[BellBody], do: doBell},
	OpJoined:  {endpoint: true, in: body[JoinedBody], do: doJoined},
	OpRings:   {do: doRings},
	OpShut:    {endpoint: true, do: doShut},
	OpPath:    {endpoint: true, in: body[PathKeyBody], do: doPath},

	OpRMAPath:   {endpoint: true, in: body[PathKeyBody], do: doRMAPath},
	OpNoRMAPath: {endpoint: true, in: body[JoinedBody], do: doNoRMAPath},
	OpFarWindow: {endpoint: true, in: body[Offset], do: doFarWindow},

	OpServe:          {endpoint: true, in: body[ServiceBody], do: doServe},
	OpConnectService: {endpoint: true, in: body[ConnectServiceBody], do: doConnectService},
	OpServices:       {in: body[ServicesBody], do: doServices},
	OpResolve:        {in: body[ResolveBody], do: doResolve},
	OpWatchServices:  {in: body[WatchBody], do: doWatchServices},

	OpMemAdd:     {in: body[MemAdd], takesFile: true, do: doMemAdd},
	OpMemDrop:    {in: body[MemoryBody], do: doMemDrop},
	OpRegister:   {endpoint: true, in: body[Register], do: doRegister},
	OpUnregister: {endpoint: true, in: body[Span], do: doUnregister},
	OpWriteTo:    {endpoint: true, in: body[Transfer], do: doTransfer},
	OpReadFrom:   {endpoint: true, in: body[Transfer], do: doTransfer},
	OpVWriteTo:   {endpoint: true, in: body[VTransfer], do: doVWriteTo},
	OpVReadFrom:  {endpoint: true, in: body[VTransfer], do: doVReadFrom},
	OpAtomic:     {endpoint: true, in: body[AtomicBody], do: doAtomic},
	OpPostAtomic: {endpoint: true, in: body[AtomicBody], do: doPostAtomic},
	OpPutSignal:  {endpoint: true, in: body[PutBody], do: doPutSignal},
	OpVPutSignal: {endpoint: true, in: body[VPutBody], do: doVPutSignal},
	OpMmap:       {endpoint: true, in: body[MmapBody], do: doMmap},
	OpMunmap:     {in: body[MemoryBody], do: doMunmap},
	OpWindow:     {endpoint: true, in: body[Offset], do: doWindow},
	OpEpochs:     {do: doEpochs},
	OpCheck:      {endpoint: true, in: body[CheckBody], do: doCheck},
	OpShare:      {in: body[WatchBody], do: doShare},
	OpRetire:     {in: body[MemoryBody], do: doRetire},

	OpFenceMark:   {endpoint: true, in: body[SideBody], do: doFenceMark},
	OpFenceWait:   {endpoint: true, in: body[MarkBody], do: doFenceWait},
	OpFenceSignal: {endpoint: true, in: body[SignalBody], do: doFenceSignal},
}

// body returns a new message of type T.
func body[T any, P interface {
	*T
	Message
}]() Message {
	return P(new(T))
}

func doBye(ctx context.Context, s *serverSession, r *request) (reply, error) {
	s.mu.Lock()
	eps := s.endpoints.all
	s.endpoints.all = make(map[uint32]*served)
	s.mu.Unlock()
	for _, e := range eps {
		e.begin(abortedBy(CauseDetached))
	}
	for _, e := range eps {
		e.settle(ctx)
	}
	return reply{}, nil
}

func doSelf(_ context.Context, s *serverSession, _ *request) (reply, error) {
	self := s.node.Self()
	return reply{body: (*SelfBody)(&self)}, nil
}

func doNodes(_ context.Context, s *serverSession, _ *request) (reply, error) {
	ids, self, err := s.node.Nodes()
	if err != nil {
		return reply{}, err
	}
	return reply{body: &NodesBody{Self: self, Set: nodeSet(ids)}}, nil
}

// nodeSet returns ids as a set of bits.
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

func doWatch(_ context.Context, s *serverSession, r *request) (reply, error) {
	on := r.in.(*WatchBody).On
	if on > 1 {
		return reply{}, fmt.Errorf("watch %d, want 0 or 1: %w", on, status.Invalid)
	}
	var unwatch func()
	if on == 1 {
		unwatch = s.node.Watch(s.event)
	}
	s.mu.Lock()
	// One subscription at most: a second WATCH keeps the first.
	if s.closing || (on == 1 && s.unwatch.events != nil) {
		s.mu.Unlock()
		if unwatch != nil {
			unwatch()
		}
		return reply{}, nil
	}
	s.unwatch.events, unwatch = unwatch, s.unwatch.events
	s.mu.Unlock()
	if unwatch != nil {
		unwatch()
	}
	return reply{}, nil
}

// event tells the application of ev, and of the node's own new place if it has
// one.
func (s *serverSession) event(ev Event) {
	self := s.node.Self()
	s.mu.Lock()
	changed := self != s.self
	s.self = self
	var eps []*served
	if ev.Kind == NodeRemoved {
		eps = slices.Collect(maps.Values(s.endpoints.all))
	}
	s.mu.Unlock()
	for _, e := range eps {
		e.fence()
	}
	if changed {
		s.tell(Header{Op: OpSelfState}, (*SelfBody)(&self))
	}
	s.tell(Header{Op: OpEvent}, (*EventBody)(&ev))
}

func doOpen(_ context.Context, s *serverSession, _ *request) (reply, error) {
	if err := s.account.charge(endpoints, 1); err != nil {
		return reply{}, err
	}
	ep, err := s.node.Open()
	if err != nil {
		s.account.refund(endpoints, 1)
		return reply{}, err
	}
	e, err := s.serveEndpoint(ep)
	if err != nil {
		return reply{}, err
	}
	return reply{body: &EndpointBody{e.id}}, nil
}

func doBind(_ context.Context, _ *serverSession, r *request) (reply, error) {
	_, err := r.ep.ep.Bind(r.in.(*Address).Port)
	local := r.ep.ep.LocalAddr()
	return reply{body: (*Address)(&local)}, err
}

func doListen(_ context.Context, s *serverSession, r *request) (reply, error) {
	if err := r.ep.ep.Listen(int(int32(r.in.(*ListenBody).Backlog))); err != nil {
		return reply{}, err
	}
	r.ep.follow()
	return reply{}, nil
}

func doListenAllow(_ context.Context, _ *serverSession, r *request) (reply, error) {
	in := r.in.(*ListenAllowBody)
	allow, err := access.ParseSubjects(in.Allow)
	if err != nil {
		return reply{}, fmt.Errorf("%w: %w", status.Invalid, err)
	}
	if err := r.ep.ep.Listen(int(int32(in.Backlog)), allow...); err != nil {
		return reply{}, err
	}
	r.ep.follow()
	return reply{}, nil
}

func doPeer(_ context.Context, _ *serverSession, r *request) (reply, error) {
	p, err := r.ep.ep.Peer()
	if err != nil {
		return reply{}, err
	}
	return reply{body: (*PeerBody)(&p)}, nil
}

func doReady(_ context.Context, _ *serverSession, r *request) (reply, error) {
	return reply{body: &ReadyBody{uint16(r.ep.events())}}, nil
}

func doAddress(_ context.Context, _ *serverSession, r *request) (reply, error) {
	local := r.ep.ep.LocalAddr()
	return reply{body: (*Address)(&local)}, nil
}

func doEnding(_ context.Context, _ *serverSession, r *request) (reply, error) {
	r.ep.mu.Lock()
	p := r.ep.mover
	r.ep.mu.Unlock()
	if p == nil {
		return reply{}, status.NotConn
	}
	return reply{body: &EndingBody{p.heard()}}, nil
}

func doCause(_ context.Context, _ *serverSession, r *request) (reply, error) {
	return reply{body: &CauseBody{CleanCause(r.ep.ep.Cause())}}, nil
}

func doTransfer(_ context.Context, _ *serverSession, r *request) (reply, error) {
	t := r.in.(*Transfer)
	if r.Op == OpWriteTo {
		return reply{}, r.ep.ep.WriteTo(t.Local, t.Len, t.Remote, t.Flags)
	}
	return reply{}, r.ep.ep.ReadFrom(t.Local, t.Len, t.Remote, t.Flags)
}

func doAtomic(ctx context.Context, _ *serverSession, r *request) (reply, error) {
	old, err := r.ep.ep.Atomic(ctx, rma.Atomic(*r.in.(*AtomicBody)))
	return reply{body: &WordBody{old}}, err
}

func doFenceMark(_ context.Context, _ *serverSession, r *request) (reply, error) {
	m, err := r.ep.ep.FenceMark(r.in.(*SideBody).Side)
	return reply{body: (*MarkBody)(&m)}, err
}

func doFenceWait(ctx context.Context, _ *serverSession, r *request) (reply, error) {
	return reply{}, r.ep.ep.FenceWait(ctx, fence.Mark(*r.in.(*MarkBody)))
}

func doFenceSignal(_ context.Context, _ *serverSession, r *request) (reply, error) {
	return reply{}, r.ep.ep.FenceSignal(fence.Signal(*r.in.(*SignalBody)))
}
