package control

import (
	"github.com/fabricd/fabricd/membership/services"
	"github.com/fabricd/fabricd/membership/trust"
	"github.com/fabricd/fabricd/membership/verdict"
)

// A Session is an open control session between a node and the host.
//
// It delivers messages in order. It ends when either side closes it, when its
// connection or the process behind it ends, or when the peer breaks a rule.
type Session struct {
	connection
	store  *trust.Store
	atHost bool // this end is the host

	version uint16 // of the protocol
}

func newSession(l *link, store *trust.Store, o opened, atHost bool) *Session {
	return &Session{connection: newConnection(l, o), store: store, atHost: atHost, version: o.version}
}

// Version returns the version of the protocol that both ends speak.
func (s *Session) Version() uint16 { return s.version }

// Secret returns 32 bytes for one purpose that only the two ends of this session know
// (keying material of TLS, RFC 8446 7.5). The caller owns them.
func (s *Session) Secret(purpose string) ([]byte, error) {
	cs := s.pipe.link.tls.ConnectionState()
	return cs.ExportKeyingMaterial("EXPORTER-fabricd-"+purpose, nil, 32)
}

// Start begins to deliver. message is called for every message of package
// verdict and for every [Renew], [Certificate], [Keys], [KeysHeld], [Roots], [RootsHeld], [Bans] and services.List, then down
// once with the cause and the reason; both on one goroutine of the session,
// which reads nothing while they run. It must be called once.
//
// A message that does not belong to the sender's role, a Join or Resume of another node or start
// than the session's, and a lease that does not prove its claim, end the session; the peer is sent the reason.
// Of a Join or Resume without a lease, or with an older one, only proved claims are delivered.
func (s *Session) Start(message func(any), down func(verdict.DownCause, error)) {
	s.pipe.run(func(f any) error {
		m, err := s.check(f)
		if err != nil {
			return err
		}
		message(m)
		return nil
	}, func() {}, down)
}

// check refuses messages that the peer must not send, and returns those to be believed.
func (s *Session) check(m any) (any, error) {
	fromMember := false
	claimed, epoch := s.peer.UUID, s.peer.Epoch
	switch m := m.(type) {
	case verdict.Join:
		fromMember, claimed, epoch = true, m.UUID, m.Epoch
	case verdict.Resume:
		fromMember, claimed, epoch = true, m.UUID, m.Epoch
	case verdict.Leave, verdict.Report, verdict.CheckResult, verdict.Ack, verdict.Ping, verdict.Sync, Renew, KeysHeld, RootsHeld:
		fromMember = true
	case services.List:
		fromMember = s.atHost // both ends send them
	case verdict.Message, Certificate, Keys, Roots, Bans:
	default:
		return nil, Refusef(CodeProtocol, "%T is no message of a control session", m)
	}
	if fromMember != s.atHost {
		return nil, Refusef(CodeRole, "%T comes from the wrong end of a control session", m)
	}
	if claimed != s.peer.UUID {
		return nil, Refusef(CodeIdentity, "%T for node %s on a session of node %s", m, claimed, s.peer.UUID)
	}
	if epoch != s.peer.Epoch {
		return nil, Refusef(CodeIdentity, "%T for start %d on a session of start %d", m, epoch, s.peer.Epoch)
	}
	return s.prove(m)
}

// prove checks the lease of a message that has one.
func (s *Session) prove(m any) (any, error) {
	switch m := m.(type) {
	case verdict.Join:
		return proveJoin(s.store, s.id.Key, m)
	case verdict.Resume:
		return proveResume(s.store, s.id.Key, m)
	case verdict.Grant:
		return m, proveGrant(s.store, s.self, m)
	}
	return m, nil
}

// Send queues m, which is of a type that Start names, and does not wait. It
// fails if the session has ended, if a field of m is beyond its limit, or if the
// peer has not read for so long that the queue is full, which ends the session.
// A Table that is too large for a frame is sent in several.
func (s *Session) Send(m any) error {
	t, ok := m.(verdict.Table)
	if !ok {
		return s.pipe.send(m)
	}
	for _, part := range splitTable(t) {
		if err := s.pipe.send(part); err != nil {
			return err
		}
	}
	return nil
}

// Fill returns how full the queue of messages to the peer is: beyond 1 the session ends.
func (s *Session) Fill() float64 {
	s.pipe.mu.Lock()
	defer s.pipe.mu.Unlock()
	return float64(len(s.pipe.queue)) / maxQueue
}
