package client

import (
	"context"
	"slices"
	"sync"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/fence"
	"github.com/fabricd/fabricd/internal/access"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/path"
	"github.com/fabricd/fabricd/internal/shm"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/rma"
)

// A fakeNode is one node with no network: its endpoints connect to each other.
// It is small, but keeps the contract: bounded byte streams, windows over
// regions, errors by state.
type fakeNode struct {
	mu       sync.Mutex // guards everything of all sessions and endpoints
	moved    *sync.Cond
	self     attach.Self
	live     []addr.NodeID
	ports    map[addr.Port]*fakeEndpoint // bound, the listener first
	sessions map[*fakeSession]bool
	watchers map[int]func(attach.Event)
	nextW    int
	ending   bool // shut was called
	services []attach.Service
	notified []chan<- struct{} // of changes of them
	direct   fakeDirect
	events   sync.Mutex // held while watchers are notified: one event at a time
}

func newFakeNode() *fakeNode {
	n := &fakeNode{
		self:     attach.Self{Cluster: addr.UUID{1, 2, 3}, Incarnation: addr.Incarnation{Node: 3, Generation: 7}, Name: "fake"},
		live:     []addr.NodeID{0, 3, 17},
		ports:    make(map[addr.Port]*fakeEndpoint),
		sessions: make(map[*fakeSession]bool),
		watchers: make(map[int]func(attach.Event)),
	}
	n.moved = sync.NewCond(&n.mu)
	return n
}

func (n *fakeNode) NewSession(c attach.Credentials) (attach.NodeSession, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := &fakeSession{n: n, cred: c, done: make(chan struct{}), eps: make(map[*fakeEndpoint]bool)}
	n.sessions[s] = true
	return s, nil
}

// emit sends ev to all watchers.
func (n *fakeNode) emit(ev attach.Event) {
	n.events.Lock()
	defer n.events.Unlock()
	n.mu.Lock()
	var fns []func(attach.Event)
	for _, fn := range n.watchers {
		fns = append(fns, fn)
	}
	n.mu.Unlock()
	for _, fn := range fns {
		fn(ev)
	}
}

// held counts the node's resources that sessions hold.
func (n *fakeNode) held() (sessions, ports, watchers int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.sessions), len(n.ports), len(n.watchers)
}

type fakeSession struct {
	n    *fakeNode
	cred attach.Credentials
	done chan struct{}
	eps  map[*fakeEndpoint]bool
	once sync.Once
}

func (s *fakeSession) Self() attach.Self {
	s.n.mu.Lock()
	defer s.n.mu.Unlock()
	return s.n.self
}

func (s *fakeSession) Nodes() ([]addr.NodeID, addr.NodeID, error) {
	s.n.mu.Lock()
	defer s.n.mu.Unlock()
	return slices.Clone(s.n.live), s.n.self.Incarnation.Node, nil
}

func (s *fakeSession) Watch(fn func(attach.Event)) (cancel func()) {
	s.n.mu.Lock()
	defer s.n.mu.Unlock()
	id := s.n.nextW
	s.n.nextW++
	s.n.watchers[id] = fn
	return func() {
		s.n.mu.Lock()
		delete(s.n.watchers, id)
		s.n.mu.Unlock()
		s.n.events.Lock() // wait for a running fn
		defer s.n.events.Unlock()
	}
}

func (s *fakeSession) Open() (attach.NodeEndpoint, error) {
	s.n.mu.Lock()
	defer s.n.mu.Unlock()
	return s.open(), nil
}

func (s *fakeSession) open() *fakeEndpoint {
	e := &fakeEndpoint{s: s, n: s.n, notify: make(map[int]chan<- struct{})}
	s.eps[e] = true
	return e
}

func (s *fakeSession) Services() ([]attach.Service, error) {
	s.n.mu.Lock()
	defer s.n.mu.Unlock()
	return slices.Clone(s.n.services), nil
}

func (s *fakeSession) Resolve(_ context.Context, service, node string) (found []attach.Service, err error) {
	s.n.mu.Lock()
	defer s.n.mu.Unlock()
	for _, x := range s.n.services {
		if x.Name == service && (node == "" || node == x.Node) {
			found = append(found, x)
		}
	}
	if len(found) == 0 {
		return nil, attach.Failure(status.NoDevice, "no node serves %q", service)
	}
	return found[:min(len(found), attach.MaxCandidates)], nil
}

func (s *fakeSession) NotifyServices(ch chan<- struct{}) (stop func()) {
	s.n.mu.Lock()
	defer s.n.mu.Unlock()
	s.n.notified = append(s.n.notified, ch)
	return func() {
		s.n.mu.Lock()
		defer s.n.mu.Unlock()
		s.n.notified = slices.DeleteFunc(s.n.notified, func(x chan<- struct{}) bool { return x == ch })
	}
}

// serve changes the services of the cluster.
func (n *fakeNode) serve(list ...attach.Service) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.services = list
	for _, ch := range n.notified {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}

func (s *fakeSession) CloseWindows() {}

func (s *fakeSession) Close() error {
	s.n.mu.Lock()
	eps := make([]*fakeEndpoint, 0, len(s.eps))
	for e := range s.eps {
		eps = append(eps, e)
	}
	delete(s.n.sessions, s)
	s.n.mu.Unlock()
	for _, e := range eps {
		e.Abort(attach.CauseDetached)
	}
	s.once.Do(func() { close(s.done) })
	return nil
}

func (s *fakeSession) Done() <-chan struct{} { return s.done }

type fakeState int

const (
	unbound fakeState = iota
	bound
	listening
	connecting
	connectedState
	disconnected
	closedState
)

// A pathless is the part of an endpoint that concerns paths and held requests, of which a fake node
// has none.
type pathless struct{ attach.NodeEndpoint }

func (pathless) RefuseWaiting()          {}
func (pathless) HungUp() <-chan struct{} { return nil }
func (pathless) Window() int             { return 0 }
func (pathless) OnPath(func())           {}

func (pathless) Path(_ context.Context, _ path.Hash, freed func()) (attach.PathSocket, error) {
	freed()
	return attach.PathSocket{}, status.NotSupp
}

func (pathless) RMAPath(_ context.Context, _ path.Hash, freed func()) (attach.PathSocket, error) {
	freed()
	return attach.PathSocket{}, status.NotSupp
}

func (pathless) FarWindow(int64) (attach.PeerWindow, error) {
	return attach.PeerWindow{}, status.NotSupp
}

type fakeWindow struct {
	r         attach.Region
	memOff, n int64
	off       int64
	prot      rma.Prot
}

const fakeBuffer = 4096

type fakeEndpoint struct {
	pathless
	s       *fakeSession
	n       *fakeNode
	state   fakeState
	port    addr.Port
	owner   bool // of the port
	remote  addr.Addr
	backlog int
	allow   []access.Subject
	serves  string
	queue   []*fakeEndpoint // connectors, of a listener
	peer    *fakeEndpoint
	in      []byte // arrived and not yet read, fakeBuffer at most
	lost    bool   // the connection ended without a close
	cause   string // why, if it was reset
	async   bool   // the result of a TryConnect is not yet reported
	wins    []fakeWindow
	notify  map[int]chan<- struct{}
	nextN   int
	via     [2]string // the way of the messages, and why
}

// Pair returns keys of the two ends of a connection.
func (e *fakeEndpoint) Pair() (self, peer any, ok bool) {
	e.n.mu.Lock()
	defer e.n.mu.Unlock()
	return e, e.peer, e.peer != nil
}

func (e *fakeEndpoint) Via(path, why string) {
	e.n.mu.Lock()
	defer e.n.mu.Unlock()
	e.via = [2]string{path, why}
}

// changed wakes blocked calls and listeners. The caller holds the node's mu.
func (e *fakeEndpoint) changed() {
	e.n.moved.Broadcast()
	for _, ch := range e.notify {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}

// wait waits until ready returns true, or ctx is done.
func (e *fakeEndpoint) wait(ctx context.Context, ready func() bool) error {
	stop := context.AfterFunc(ctx, func() { e.n.mu.Lock(); e.n.moved.Broadcast(); e.n.mu.Unlock() })
	defer stop()
	for !ready() {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		e.n.moved.Wait()
	}
	return nil
}

func (e *fakeEndpoint) Bind(port addr.Port) (addr.Port, error) {
	e.n.mu.Lock()
	defer e.n.mu.Unlock()
	switch {
	case e.state == closedState:
		return 0, status.BadFD
	case port > 0 && port < addr.AdminEnd && !e.s.cred.Admin:
		return 0, status.Access
	case e.state == bound:
		return 0, status.Invalid
	case e.state != unbound:
		return 0, status.IsConn
	}
	return e.bind(port)
}

func (e *fakeEndpoint) bind(port addr.Port) (addr.Port, error) {
	if port == 0 {
		for port = addr.FirstEphemeral; e.n.ports[port] != nil; port++ {
		}
	}
	if e.n.ports[port] != nil {
		return 0, status.Invalid
	}
	e.n.ports[port], e.port, e.owner, e.state = e, port, true, bound
	return port, nil
}

func (e *fakeEndpoint) Listen(backlog int, allow ...access.Subject) error {
	e.n.mu.Lock()
	defer e.n.mu.Unlock()
	e.allow = allow
	switch {
	case e.state == closedState:
		return status.BadFD
	case e.state == unbound || backlog <= 0:
		return status.Invalid
	case e.state != bound:
		return status.IsConn
	}
	e.state, e.backlog = listening, backlog
	return nil
}

// begin queues a connection request.
func (e *fakeEndpoint) begin(dst addr.Addr) error {
	switch e.state {
	case closedState:
		return status.BadFD
	case listening:
		return status.NotSupp
	case connecting:
		return status.InProgress
	case connectedState:
		return status.IsConn
	case disconnected:
		return status.Invalid
	}
	if !slices.Contains(e.n.live, dst.Node) {
		return status.NoDevice
	}
	if e.state == unbound {
		if _, err := e.bind(0); err != nil {
			return err
		}
	}
	l := e.n.ports[dst.Port]
	if l == nil || l.state != listening || len(l.queue) >= l.backlog {
		return status.Refused
	}
	e.state, e.remote = connecting, dst
	l.queue = append(l.queue, e)
	l.changed()
	return nil
}

func (e *fakeEndpoint) Connect(ctx context.Context, dst addr.Addr) (addr.Port, error) {
	e.n.mu.Lock()
	defer e.n.mu.Unlock()
	if err := e.begin(dst); err != nil {
		return 0, err
	}
	err := e.wait(ctx, func() bool { return e.state != connecting })
	switch {
	case e.state == connectedState || e.state == disconnected:
		return e.port, nil
	case err != nil:
		e.state = bound
		return 0, err
	case e.state == closedState:
		return 0, status.Reset
	}
	return 0, status.Refused
}

func (e *fakeEndpoint) TryConnect(dst addr.Addr) (addr.Port, error) {
	e.n.mu.Lock()
	defer e.n.mu.Unlock()
	if e.async && e.state != connecting {
		e.async = false
		if e.state == bound {
			return 0, status.Refused
		}
		return e.port, nil
	}
	if err := e.begin(dst); err != nil {
		return 0, err
	}
	e.async = true
	return 0, status.InProgress
}

func (e *fakeEndpoint) Accept(ctx context.Context) (attach.NodeEndpoint, addr.Addr, error) {
	e.n.mu.Lock()
	defer e.n.mu.Unlock()
	if e.state == closedState {
		return nil, addr.Addr{}, status.BadFD
	}
	if e.state != listening {
		return nil, addr.Addr{}, status.Invalid
	}
	for {
		if err := e.wait(ctx, func() bool { return len(e.queue) > 0 || e.state == closedState }); err != nil {
			return nil, addr.Addr{}, err
		}
		if e.state == closedState {
			return nil, addr.Addr{}, status.Intr
		}
		if ep := e.take(); ep != nil {
			return ep, ep.remote, nil
		}
	}
}

func (e *fakeEndpoint) TryAccept() (attach.NodeEndpoint, addr.Addr, error) {
	e.n.mu.Lock()
	defer e.n.mu.Unlock()
	switch e.state {
	case closedState:
		return nil, addr.Addr{}, status.BadFD
	case listening:
	default:
		return nil, addr.Addr{}, status.Invalid
	}
	if len(e.queue) > 0 {
		if ep := e.take(); ep != nil {
			return ep, ep.remote, nil
		}
	}
	return nil, addr.Addr{}, status.Again
}

// take connects the first connector that still wants.
func (e *fakeEndpoint) take() *fakeEndpoint {
	from := e.queue[0]
	e.queue = e.queue[1:]
	if from.state != connecting {
		return nil
	}
	ep := e.s.open()
	ep.state, ep.port, ep.peer = connectedState, e.port, from
	ep.remote = addr.Addr{Node: e.n.self.Incarnation.Node, Port: from.port}
	from.state, from.peer = connectedState, ep
	from.changed()
	return ep
}

// stream is the error of send and recv in a state without a connection.
func (e *fakeEndpoint) stream() error {
	switch e.state {
	case closedState:
		return status.BadFD
	case connectedState, disconnected:
		return nil
	}
	return status.NotConn
}

func (e *fakeEndpoint) Send(ctx context.Context, p []byte) (n int, err error) {
	e.n.mu.Lock()
	defer e.n.mu.Unlock()
	if err := e.stream(); err != nil {
		return 0, err
	}
	for n < len(p) {
		err := e.wait(ctx, func() bool { return e.state != connectedState || len(e.peer.in) < fakeBuffer })
		if e.state != connectedState {
			return n, status.Reset
		}
		if err != nil {
			return n, err
		}
		n += e.push(p[n:])
	}
	return n, nil
}

func (e *fakeEndpoint) push(p []byte) int {
	n := min(len(p), fakeBuffer-len(e.peer.in))
	e.peer.in = append(e.peer.in, p[:n]...)
	e.peer.changed()
	return n
}

func (e *fakeEndpoint) TrySend(p []byte) (int, error) {
	e.n.mu.Lock()
	defer e.n.mu.Unlock()
	if err := e.stream(); err != nil {
		return 0, err
	}
	if e.state == disconnected {
		return 0, status.Reset
	}
	return e.push(p), nil
}

func (e *fakeEndpoint) Recv(ctx context.Context, p []byte) (int, error) {
	e.n.mu.Lock()
	defer e.n.mu.Unlock()
	if err := e.stream(); err != nil {
		return 0, err
	}
	if err := e.wait(ctx, func() bool { return len(e.in) > 0 || e.state != connectedState }); err != nil {
		return 0, err
	}
	return e.pull(p)
}

func (e *fakeEndpoint) pull(p []byte) (int, error) {
	if e.state == closedState {
		return 0, status.Reset
	}
	if len(e.in) == 0 && e.lost {
		return 0, attach.Lost(e.cause)
	}
	if len(e.in) == 0 && e.state == disconnected {
		return 0, attach.ErrPeerClosed
	}
	n := copy(p, e.in)
	e.in = e.in[n:]
	if e.peer != nil {
		e.peer.changed()
	}
	return n, nil
}

func (e *fakeEndpoint) TryRecv(p []byte) (int, error) {
	e.n.mu.Lock()
	defer e.n.mu.Unlock()
	if err := e.stream(); err != nil {
		return 0, err
	}
	return e.pull(p)
}

// rma is the error of window calls by state.
func (e *fakeEndpoint) rma() error {
	e.n.direct.calls++
	switch e.state {
	case closedState:
		return status.BadFD
	case connectedState:
		return nil
	case disconnected:
		return status.Reset
	}
	return status.NotConn
}

func (e *fakeEndpoint) RegisterRegion(r attach.Region, memOff, n, off int64, prot rma.Prot, flags rma.MapFlags) (int64, error) {
	e.n.mu.Lock()
	defer e.n.mu.Unlock()
	if n <= 0 || n%rma.PageSize != 0 || memOff%rma.PageSize != 0 || flags&^rma.MapFixed != 0 || prot > 3 {
		return 0, status.Invalid
	}
	if err := e.rma(); err != nil {
		return 0, err
	}
	if flags&rma.MapFixed == 0 {
		off = rma.FirstOffset
		for _, w := range e.wins {
			off = max(off, w.off+w.n)
		}
	}
	for _, w := range e.wins {
		if off < w.off+w.n && w.off < off+n {
			return 0, status.InUse
		}
	}
	r.Retain()
	e.wins = append(e.wins, fakeWindow{r, memOff, n, off, prot})
	return off, nil
}

func (e *fakeEndpoint) Unregister(off, n int64) error {
	e.n.mu.Lock()
	defer e.n.mu.Unlock()
	if err := e.rma(); err != nil {
		return err
	}
	defer e.peer.invalidated()
	e.wins = slices.DeleteFunc(e.wins, func(w fakeWindow) bool {
		gone := w.off >= off && w.off+w.n <= off+n
		if gone {
			w.r.Release()
		}
		return gone
	})
	return nil
}

// window finds [off, off+n) in one window.
func (e *fakeEndpoint) window(off, n int64, prot rma.Prot) (attach.Region, int64, error) {
	for _, w := range e.wins {
		if off >= w.off && off-w.off <= w.n && n <= w.n-(off-w.off) {
			if w.prot&prot != prot {
				return nil, 0, status.Access
			}
			return w.r, w.memOff + off - w.off, nil
		}
	}
	return nil, 0, status.NoAddress
}

// move copies between p and the peer's window.
func (e *fakeEndpoint) move(p []byte, roff int64, write bool) error {
	if err := e.rma(); err != nil {
		return err
	}
	prot := rma.ProtRead
	if write {
		prot = rma.ProtWrite
	}
	r, off, err := e.peer.window(roff, int64(len(p)), prot)
	if err != nil {
		return err
	}
	if write {
		return r.WriteAt(p, off)
	}
	return r.ReadAt(p, off)
}

func (e *fakeEndpoint) VWriteTo(p []byte, roff int64, _ rma.Flags) error {
	e.n.mu.Lock()
	defer e.n.mu.Unlock()
	return e.move(p, roff, true)
}

func (e *fakeEndpoint) VReadFrom(p []byte, roff int64, _ rma.Flags) error {
	e.n.mu.Lock()
	defer e.n.mu.Unlock()
	return e.move(p, roff, false)
}

func (e *fakeEndpoint) WriteTo(loff, n, roff int64, _ rma.Flags) error {
	e.n.mu.Lock()
	defer e.n.mu.Unlock()
	if err := e.rma(); err != nil {
		return err
	}
	if n <= 0 {
		return status.Invalid
	}
	r, off, err := e.window(loff, n, rma.ProtRead)
	if err != nil {
		return err
	}
	buf := make([]byte, n)
	if err := r.ReadAt(buf, off); err != nil {
		return err
	}
	return e.move(buf, roff, true)
}

func (e *fakeEndpoint) ReadFrom(loff, n, roff int64, _ rma.Flags) error {
	e.n.mu.Lock()
	defer e.n.mu.Unlock()
	if err := e.rma(); err != nil {
		return err
	}
	if n <= 0 {
		return status.Invalid
	}
	r, off, err := e.window(loff, n, rma.ProtWrite)
	if err != nil {
		return err
	}
	buf := make([]byte, n)
	if err := e.move(buf, roff, false); err != nil {
		return err
	}
	return r.WriteAt(buf, off)
}

func (e *fakeEndpoint) Atomic(_ context.Context, a rma.Atomic) (uint64, error) {
	e.n.mu.Lock()
	defer e.n.mu.Unlock()
	if err := e.rma(); err != nil {
		return 0, err
	}
	r, off, err := e.peer.window(a.Offset, int64(a.Width), rma.ProtRead|rma.ProtWrite)
	if err != nil {
		return 0, err
	}
	for {
		old, err := r.Load(off, int(a.Width))
		if err != nil {
			return 0, err
		}
		if ok, err := r.CompareAndSwap(off, int(a.Width), old, rma.Apply(old, a)); ok || err != nil {
			return old, err
		}
	}
}

func (e *fakeEndpoint) PostAtomic(a rma.Atomic) error {
	_, err := e.Atomic(context.Background(), a)
	return err
}

func (e *fakeEndpoint) PutSignal(loff, n int64, p rma.Put) error {
	if err := e.WriteTo(loff, n, p.Offset, 0); err != nil || p.More > 0 {
		return err
	}
	return e.FenceSignal(fence.Signal{Where: fence.SignalRemote, RemoteOffset: p.Word, RemoteValue: p.Value})
}

func (e *fakeEndpoint) VPutSignal(b []byte, p rma.Put) error {
	e.n.mu.Lock()
	var err error
	if p.More > 0 {
		_, _, err = e.peer.window(p.Offset, int64(len(b))+p.More, rma.ProtWrite)
	}
	e.n.mu.Unlock()
	if err != nil {
		return err
	}
	if err := e.VWriteTo(b, p.Offset, 0); err != nil || p.More > 0 {
		return err
	}
	return e.FenceSignal(fence.Signal{Where: fence.SignalRemote, RemoteOffset: p.Word, RemoteValue: p.Value})
}

// CheckTransfer checks the windows one by one, as they are registered.
func (e *fakeEndpoint) CheckTransfer(roff, n int64, _ rma.Flags, need rma.Prot) error {
	e.n.mu.Lock()
	defer e.n.mu.Unlock()
	if err := e.rma(); err != nil {
		return err
	}
	_, _, err := e.peer.window(roff, n, need)
	return err
}

func (e *fakeEndpoint) MapRegion(roff, n int64, prot rma.Prot) (attach.WindowRegion, int64, error) {
	e.n.mu.Lock()
	defer e.n.mu.Unlock()
	if err := e.rma(); err != nil {
		return nil, 0, err
	}
	r, off, err := e.peer.window(roff, n, prot)
	if err != nil {
		return nil, 0, err
	}
	r.Retain()
	i := slices.IndexFunc(e.peer.wins, func(w fakeWindow) bool { return roff >= w.off && roff-w.off < w.n })
	return fakeMapping{r, e.peer.wins[i]}, off, nil
}

// A fakeMapping is a reference to a window.
type fakeMapping struct {
	attach.Region
	w fakeWindow
}

func (m fakeMapping) Window() (r attach.Region, off, n int64, prot rma.Prot) {
	return m.Region, m.w.memOff, m.w.n, m.w.prot
}

func (e *fakeEndpoint) FenceMark(by fence.Side) (fence.Mark, error) {
	e.n.mu.Lock()
	defer e.n.mu.Unlock()
	if e.n.direct.idle {
		return fence.Mark{Side: by}, e.rma()
	}
	return fence.Mark{Side: by, Seq: 42}, e.rma()
}

// FenceWait of mark 42, or of one that covers nothing, is done; others end with the connection.
func (e *fakeEndpoint) FenceWait(ctx context.Context, m fence.Mark) error {
	e.n.mu.Lock()
	defer e.n.mu.Unlock()
	if err := e.rma(); err != nil || m.Seq == 42 || e.n.direct.idle && m.Seq == 0 {
		return err
	}
	if err := e.wait(ctx, func() bool { return e.state != connectedState }); err != nil {
		return err
	}
	return status.Reset
}

func (e *fakeEndpoint) FenceSignal(s fence.Signal) error {
	e.n.mu.Lock()
	defer e.n.mu.Unlock()
	if err := e.rma(); err != nil {
		return err
	}
	if s.Where&fence.SignalLocal != 0 {
		r, off, err := e.window(s.LocalOffset, 8, rma.ProtWrite)
		if err != nil {
			return err
		}
		if err := r.Store(off, 8, s.LocalValue); err != nil {
			return err
		}
	}
	if s.Where&fence.SignalRemote == 0 {
		return nil
	}
	r, off, err := e.peer.window(s.RemoteOffset, 8, rma.ProtWrite)
	if err != nil {
		return err
	}
	return r.Store(off, 8, s.RemoteValue)
}

func (e *fakeEndpoint) Ready() attach.Events {
	e.n.mu.Lock()
	defer e.n.mu.Unlock()
	var ev attach.Events
	switch e.state {
	case closedState:
		return attach.PollNval
	case listening:
		if len(e.queue) > 0 {
			ev = attach.PollIn
		}
	case connecting:
	case connectedState, disconnected:
		if len(e.in) > 0 {
			ev |= attach.PollIn
		}
		if e.state == disconnected {
			ev |= attach.PollHup
		} else if len(e.peer.in) < fakeBuffer {
			ev |= attach.PollOut
		}
	default:
		if e.async {
			return attach.PollOut
		}
		return attach.PollErr
	}
	return ev
}

func (e *fakeEndpoint) Notify(ch chan<- struct{}) (stop func()) {
	e.n.mu.Lock()
	defer e.n.mu.Unlock()
	id := e.nextN
	e.nextN++
	e.notify[id] = ch
	return func() {
		e.n.mu.Lock()
		defer e.n.mu.Unlock()
		delete(e.notify, id)
	}
}

func (e *fakeEndpoint) LocalAddr() addr.Addr {
	e.n.mu.Lock()
	defer e.n.mu.Unlock()
	return addr.Addr{Node: e.n.self.Incarnation.Node, Port: e.port}
}

func (e *fakeEndpoint) Peer() (attach.Peer, error) {
	e.n.mu.Lock()
	defer e.n.mu.Unlock()
	if e.state != connectedState && e.state != disconnected {
		return attach.Peer{}, status.NotConn
	}
	return attach.Peer{Incarnation: e.n.self.Incarnation, Name: e.n.self.Name, Labels: []string{"a", "b"}, UID: 7}, nil
}

func (e *fakeEndpoint) RemoteAddr() addr.Addr {
	e.n.mu.Lock()
	defer e.n.mu.Unlock()
	return e.remote
}

func (e *fakeEndpoint) CloseWrite() error { return status.NotSupp }

func (e *fakeEndpoint) Serve(service string) error {
	e.n.mu.Lock()
	defer e.n.mu.Unlock()
	e.serves = service
	return nil
}

func (e *fakeEndpoint) ConnectService(ctx context.Context, dst addr.Addr, service string) (addr.Port, error) {
	e.n.mu.Lock()
	at := e.n.ports[dst.Port]
	served := at != nil && at.serves == service
	e.n.mu.Unlock()
	if !served {
		return 0, status.Refused
	}
	return e.Connect(ctx, dst)
}

func (e *fakeEndpoint) Close() error { return e.end(false, "") }

func (e *fakeEndpoint) Abort(cause string) error { return e.end(true, cause) }

func (e *fakeEndpoint) Cause() string {
	e.n.mu.Lock()
	defer e.n.mu.Unlock()
	return e.cause
}

func (e *fakeEndpoint) end(abort bool, cause string) error {
	e.n.mu.Lock()
	defer e.n.mu.Unlock()
	if e.state == closedState {
		return status.BadFD
	}
	for _, from := range e.queue {
		if from.state == connecting {
			from.state = bound
			from.changed()
		}
	}
	if e.peer != nil && e.peer.state == connectedState {
		e.peer.state, e.peer.lost, e.peer.cause = disconnected, abort, cause
		e.peer.invalidated()
		e.peer.changed()
	}
	for _, w := range e.wins {
		w.r.Release()
	}
	if e.owner {
		delete(e.n.ports, e.port)
	}
	e.state, e.wins = closedState, nil
	delete(e.s.eps, e)
	e.changed()
	return nil
}

// lose ends every connection, as the loss of the peers' node.
func (n *fakeNode) lose() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for s := range n.sessions {
		for e := range s.eps {
			if e.state == connectedState {
				e.state, e.lost = disconnected, true
				e.invalidated()
				e.changed()
			}
		}
	}
}

var (
	_ attach.NodeEndpoint = (*fakeEndpoint)(nil)
	_ attach.Region       = (*shm.Region)(nil)
	_ attach.Session      = (*session)(nil)
)
