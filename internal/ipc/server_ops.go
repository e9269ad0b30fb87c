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
	in        func() message // a new body to decode; nil for an empty one
	endpoint  bool           // on an endpoint, not on the session
	takesFile bool           // a descriptor comes with it
	do        func(ctx context.Context, s *serverSession, r *request) (reply, error)
}

// A request is one being performed.
type request struct {
	header
	operation
	in   message
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
	if r.Op == opClose || status.Of(err) != status.BadFD || (r.ep != nil && r.ep.begun()) {
		return err
	}
	return fmt.Errorf("the node ends it: %w", status.Reset)
}

// A reply is the body of an answer, and what comes with it.
type reply struct {
	body  message
	file  *os.File
	after func() // runs once the answer is sent or dropped
}

func (r reply) end() {
	if r.after != nil {
		r.after()
	}
}

// operations is the list of all requests.
var operations = map[op]operation{
	opBye:    {do: doBye},
	opCancel: {in: body[cancel]},
	opSelf:   {do: doSelf},
	opNodes:  {do: doNodes},
	opWatch:  {in: body[watchBody], do: doWatch},
	opOpen:   {do: doOpen},

	opClose:  {endpoint: true, do: doClose},
	opBind:   {endpoint: true, in: body[address], do: doBind},
	opListen: {endpoint: true, in: body[listenBody], do: doListen},

	opListenAllow: {endpoint: true, in: body[listenAllowBody], do: doListenAllow},
	opPeer:        {endpoint: true, do: doPeer},

	opConnect:    {endpoint: true, in: body[address], do: doConnect},
	opTryConnect: {endpoint: true, in: body[address], do: doTryConnect},
	opAccept:     {endpoint: true, do: doAccept},
	opTryAccept:  {endpoint: true, do: doTryAccept},
	opReady:      {endpoint: true, do: doReady},
	opEnding:     {endpoint: true, do: doEnding},
	opAddress:    {endpoint: true, do: doAddress},
	opCause:      {endpoint: true, do: doCause},
	opAbort:      {endpoint: true, in: body[causeBody], do: doAbort},

	opChannel: {endpoint: true, do: doChannel},
	opBell:    {endpoint: true, in: body[bellBody], do: doBell},
	opJoined:  {endpoint: true, in: body[joinedBody], do: doJoined},
	opRings:   {do: doRings},
	opShut:    {endpoint: true, do: doShut},
	opPath:    {endpoint: true, in: body[pathKeyBody], do: doPath},

	opRMAPath:   {endpoint: true, in: body[pathKeyBody], do: doRMAPath},
	opNoRMAPath: {endpoint: true, in: body[joinedBody], do: doNoRMAPath},
	opFarWindow: {endpoint: true, in: body[offset], do: doFarWindow},

	opServe:          {endpoint: true, in: body[serviceBody], do: doServe},
	opConnectService: {endpoint: true, in: body[connectServiceBody], do: doConnectService},
	opServices:       {in: body[servicesBody], do: doServices},
	opResolve:        {in: body[resolveBody], do: doResolve},
	opWatchServices:  {in: body[watchBody], do: doWatchServices},

	opMemAdd:     {in: body[memAdd], takesFile: true, do: doMemAdd},
	opMemDrop:    {in: body[memoryBody], do: doMemDrop},
	opRegister:   {endpoint: true, in: body[register], do: doRegister},
	opUnregister: {endpoint: true, in: body[span], do: doUnregister},
	opWriteTo:    {endpoint: true, in: body[transfer], do: doTransfer},
	opReadFrom:   {endpoint: true, in: body[transfer], do: doTransfer},
	opVWriteTo:   {endpoint: true, in: body[vtransfer], do: doVWriteTo},
	opVReadFrom:  {endpoint: true, in: body[vtransfer], do: doVReadFrom},
	opAtomic:     {endpoint: true, in: body[atomicBody], do: doAtomic},
	opPostAtomic: {endpoint: true, in: body[atomicBody], do: doPostAtomic},
	opPutSignal:  {endpoint: true, in: body[putBody], do: doPutSignal},
	opVPutSignal: {endpoint: true, in: body[vputBody], do: doVPutSignal},
	opMmap:       {endpoint: true, in: body[mmapBody], do: doMmap},
	opMunmap:     {in: body[memoryBody], do: doMunmap},
	opWindow:     {endpoint: true, in: body[offset], do: doWindow},
	opEpochs:     {do: doEpochs},
	opCheck:      {endpoint: true, in: body[checkBody], do: doCheck},
	opShare:      {in: body[watchBody], do: doShare},
	opRetire:     {in: body[memoryBody], do: doRetire},

	opFenceMark:   {endpoint: true, in: body[sideBody], do: doFenceMark},
	opFenceWait:   {endpoint: true, in: body[markBody], do: doFenceWait},
	opFenceSignal: {endpoint: true, in: body[signalBody], do: doFenceSignal},
}

// body returns a new message of type T.
func body[T any, P interface {
	*T
	message
}]() message {
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
	return reply{body: (*selfBody)(&self)}, nil
}

func doNodes(_ context.Context, s *serverSession, _ *request) (reply, error) {
	ids, self, err := s.node.Nodes()
	if err != nil {
		return reply{}, err
	}
	return reply{body: &nodesBody{Self: self, Set: nodeSet(ids)}}, nil
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
	on := r.in.(*watchBody).On
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
		s.tell(header{Op: opSelfState}, (*selfBody)(&self))
	}
	s.tell(header{Op: opEvent}, (*eventBody)(&ev))
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
	return reply{body: &endpointBody{e.id}}, nil
}

func doBind(_ context.Context, _ *serverSession, r *request) (reply, error) {
	_, err := r.ep.ep.Bind(r.in.(*address).Port)
	local := r.ep.ep.LocalAddr()
	return reply{body: (*address)(&local)}, err
}

func doListen(_ context.Context, s *serverSession, r *request) (reply, error) {
	if err := r.ep.ep.Listen(int(int32(r.in.(*listenBody).Backlog))); err != nil {
		return reply{}, err
	}
	r.ep.follow()
	return reply{}, nil
}

func doListenAllow(_ context.Context, _ *serverSession, r *request) (reply, error) {
	in := r.in.(*listenAllowBody)
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
	return reply{body: (*peerBody)(&p)}, nil
}

func doReady(_ context.Context, _ *serverSession, r *request) (reply, error) {
	return reply{body: &readyBody{uint16(r.ep.events())}}, nil
}

func doAddress(_ context.Context, _ *serverSession, r *request) (reply, error) {
	local := r.ep.ep.LocalAddr()
	return reply{body: (*address)(&local)}, nil
}

func doEnding(_ context.Context, _ *serverSession, r *request) (reply, error) {
	r.ep.mu.Lock()
	p := r.ep.mover
	r.ep.mu.Unlock()
	if p == nil {
		return reply{}, status.NotConn
	}
	return reply{body: &endingBody{p.heard()}}, nil
}

func doCause(_ context.Context, _ *serverSession, r *request) (reply, error) {
	return reply{body: &causeBody{CleanCause(r.ep.ep.Cause())}}, nil
}

func doTransfer(_ context.Context, _ *serverSession, r *request) (reply, error) {
	t := r.in.(*transfer)
	if r.Op == opWriteTo {
		return reply{}, r.ep.ep.WriteTo(t.Local, t.Len, t.Remote, t.Flags)
	}
	return reply{}, r.ep.ep.ReadFrom(t.Local, t.Len, t.Remote, t.Flags)
}

func doAtomic(ctx context.Context, _ *serverSession, r *request) (reply, error) {
	old, err := r.ep.ep.Atomic(ctx, rma.Atomic(*r.in.(*atomicBody)))
	return reply{body: &wordBody{old}}, err
}

func doFenceMark(_ context.Context, _ *serverSession, r *request) (reply, error) {
	m, err := r.ep.ep.FenceMark(r.in.(*sideBody).Side)
	return reply{body: (*markBody)(&m)}, err
}

func doFenceWait(ctx context.Context, _ *serverSession, r *request) (reply, error) {
	return reply{}, r.ep.ep.FenceWait(ctx, fence.Mark(*r.in.(*markBody)))
}

func doFenceSignal(_ context.Context, _ *serverSession, r *request) (reply, error) {
	return reply{}, r.ep.ep.FenceSignal(fence.Signal(*r.in.(*signalBody)))
}
