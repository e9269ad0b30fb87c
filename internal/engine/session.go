package engine

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/internal/status"
)

// A session is one application's use of the node. It implements attach.NodeSession.
type session struct {
	n    *Node
	cred attach.Credentials
	born time.Time
	done chan struct{} // closed when Close is through

	events eventQueue

	held int64 // of the node's budget; guarded by the budget's mu

	mu        sync.Mutex // guards the fields below
	closing   bool
	shut      bool // CloseWindows was called
	endpoints map[*endpoint]struct{}
	lastID    uint64
}

// NewSession returns a session for an application of this machine. The caller
// closes it. One of a node that has been closed has ended.
func (n *Node) NewSession(cred attach.Credentials) attach.NodeSession {
	s := &session{n: n, cred: cred, born: time.Now(), done: make(chan struct{}),
		endpoints: make(map[*endpoint]struct{})}
	s.events.run, s.events.watchers = n.work.run, make(map[*watcher]struct{})
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed { // Close of the node would not end it any more
		s.closing = true
		s.events.close()
		close(s.done)
		return s
	}
	n.sessions[s] = struct{}{}
	return s
}

func (s *session) Self() attach.Self { return s.n.Self().Self }

func (s *session) Nodes() ([]addr.NodeID, addr.NodeID, error) {
	s.n.mu.Lock()
	defer s.n.mu.Unlock()
	self := s.n.self.Incarnation
	if self.Generation == 0 {
		return nil, addr.NoNode, nil // no lease yet
	}
	ids := slices.AppendSeq([]addr.NodeID{self.Node}, maps.Keys(s.n.peers))
	slices.Sort(ids)
	return ids, self.Node, nil
}

func (s *session) Open() (attach.NodeEndpoint, error) {
	e, err := s.newEndpoint()
	if err != nil {
		return nil, err
	}
	return e, nil
}

func (s *session) newEndpoint() (*endpoint, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closing:
		return nil, status.BadFD
	case len(s.endpoints) >= s.n.cfg.MaxEndpoints:
		return nil, fmt.Errorf("an application may have %d endpoints: %w", s.n.cfg.MaxEndpoints, status.NoMemory)
	}
	s.lastID++
	e := newEndpoint(s, s.lastID)
	e.shut = s.shut
	s.endpoints[e] = struct{}{}
	return e, nil
}

func (s *session) forget(e *endpoint) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.endpoints, e)
}

func (s *session) all() []*endpoint {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.endpoints))
}

func (s *session) CloseWindows() {
	s.mu.Lock()
	s.shut = true
	s.mu.Unlock()
	var closing group
	for _, e := range s.all() {
		closing.run(e.closeWindows)
	}
	closing.wait()
}

func (s *session) Close() error { return s.end(attach.CauseDetached) }

// end is Close with the cause that the peers of its connections get.
func (s *session) end(cause string) error {
	s.mu.Lock()
	if s.closing {
		s.mu.Unlock()
		<-s.done
		return nil
	}
	s.closing = true
	s.mu.Unlock()
	var closing group
	for _, e := range s.all() {
		closing.run(func() {
			e.Abort(cause)
			<-e.closed // the application may have closed it
		})
	}
	closing.wait()
	s.events.close()
	s.n.mu.Lock()
	delete(s.n.sessions, s)
	s.n.mu.Unlock()
	close(s.done)
	return nil
}

func (s *session) Done() <-chan struct{} { return s.done }

func (s *session) Watch(fn func(attach.Event)) (cancel func()) { return s.events.watch(fn) }

// publish hands an event to the session's watchers. A session that lets its
// queue overflow has missed an event for good, so it ends.
func (s *session) publish(ev attach.Event) {
	if !s.events.put(ev) {
		s.n.log.Error().Int32("pid", s.cred.PID).Msg("application does not take node events, closing its session")
		s.n.work.run(func() { s.end("the peer's application did not take its node's events") })
	}
}
