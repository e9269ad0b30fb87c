package membership

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/guard"
	"github.com/fabricd/fabricd/membership/control"
	"github.com/fabricd/fabricd/membership/services"
	"github.com/fabricd/fabricd/membership/verdict"
)

const (
	// maxPerPeer bounds the control sessions, and the lifelines, that one node
	// may have here at a time. One is enough; the others are on their way out.
	maxPerPeer = 8
	// hostTimeout bounds one attempt to reach the host.
	hostTimeout = time.Second
)

func (a *Agent) serverConfig() control.Config {
	c := control.Config{
		Listener: a.cfg.Listener,
		Store:    a.cfg.Trust,
		Self:     a.end,
		Admit:    a.admit,
		Known:    a.Knows,
		Lifeline: func(l *control.Lifeline) {
			if !a.post(func() { a.acceptLine(l) }) {
				l.Abort()
			}
		},
		Log:     a.log,
		Refused: a.cfg.Refused,
	}
	if a.host != nil {
		c.Join = a.enroller.join
		c.Session = func(s *control.Session) {
			if !a.post(func() { a.accept(s) }) {
				s.Abort()
			}
		}
	}
	return c
}

// accept takes a node's session with this host.
func (a *Agent) accept(s *control.Session) {
	if err := a.enroller.check(s.Identity(), ""); err != nil {
		a.log.Debug().Err(err).Stringer("peer", s.Peer().UUID).Msg("control session is not taken")
		s.Abort()
		return
	}
	a.sessions.makeRoom(s.Peer().UUID, a.host.Speaks)
	id := a.sessions.lastID + 1
	a.sessions.openings[id] = opening{at: time.Now()}
	a.attach(s, func(in any) {
		switch in := in.(type) {
		case verdict.Received:
			_ = a.cfg.Faults.Hit(stepOfReceived(in.Message))
			a.serve(s, func() {
				m, ok := a.takeRequest(id, s, in.Message)
				if in.Message = m; ok {
					a.feedHost(in)
				}
			})
		case verdict.Down:
			a.feedHost(in)
		}
	})
}

// serve runs f, which a message of a peer has caused, on the loop. If f panics the
// peer's session ends, and not the process: no member can end the host by such a
// message.
func (a *Agent) serve(s *control.Session, f func()) {
	defer guard.Recover(func(err error, stack []byte) {
		a.todo = nil
		a.log.Error().Err(err).Stringer("peer", s.Peer().UUID).Bytes("stack", stack).Msg("a message has made the host panic; its session ends: this is a bug")
		s.Abort()
	})
	f()
}

// handleOther handles messages that are not for the machines. It runs on the session's
// goroutine.
func (a *Agent) handleOther(s *control.Session, id verdict.SessionID, m any) {
	switch m := m.(type) {
	case control.Renew:
		_ = s.Send(a.enroller.renew(s.Identity(), m)) // a node without the answer asks again
	case control.KeysHeld:
		a.post(func() { a.confirmed(&a.handouts.keys.handout, id, m.Seq) })
	case control.RootsHeld:
		a.post(func() { a.confirmed(&a.handouts.roots.handout, id, m.Seq) })
	case control.Certificate:
		a.post(func() { a.takeCertificate(m) })
	case control.Roots:
		a.post(func() { a.takeRoots(s, m) })
	case control.Bans:
		a.post(func() { a.takeBans(m) })
	case control.Keys:
		a.post(func() { a.takeKeys(s, m) })
	case services.List:
		a.post(func() { a.serve(s, func() { a.takeServices(s, id, m) }) })
	}
}

// attach gives a session its ID and starts it. Its messages go to feed, on the
// loop.
func (a *Agent) attach(s *control.Session, feed func(any)) verdict.SessionID {
	id := a.sessions.add(s)
	a.published = false
	log := a.log.With().Stringer("peer", s.Peer().UUID).Uint64("session", uint64(id)).Logger()
	s.Start(func(m any) {
		if m, ok := m.(verdict.Message); ok {
			a.post(func() { feed(verdict.Received{Session: id, Message: m}) })
			return
		}
		a.handleOther(s, id, m)
	}, func(cause verdict.DownCause, err error) {
		a.post(func() {
			a.logEnd(log, err)
			a.sessions.remove(id)
			delete(a.handouts.keys.held, id)
			delete(a.handouts.roots.held, id)
			a.published = false
			feed(verdict.Down{Session: id, Cause: cause})
		})
	})
	return id
}

// logEnd logs how a session ended. A refusal by either end is worth a warning,
// once: a node that is refused tries again and again.
func (a *Agent) logEnd(log zerolog.Logger, err error) {
	var here, there = new(control.RefusedError), new(control.ClosedError)
	refused := errors.As(err, &here) || errors.As(err, &there) && there.Remote && strings.Contains(there.Text, "refused")
	if strings.Contains(fmt.Sprint(err), "internal error: ") {
		log.Error().Err(err).Msg("control session ended: this is a bug")
		return
	}
	if !refused || err.Error() == a.sessions.refusal {
		log.Debug().Err(err).Msg("control session ended")
		return
	}
	a.sessions.refusal = err.Error()
	log.Warn().Err(err).Msg("control session ended by a refusal")
}

// send carries a message between the two machines of a host, or to a session.
func (a *Agent) send(x verdict.Send, fromHost bool) {
	if g, ok := x.Message.(verdict.Grant); ok {
		signed, err := a.signed(g, x.Session)
		if err != nil {
			a.log.Error().Err(err).Stringer("incarnation", g.Incarnation).Msg("the lease is not signed, the incarnation not granted")
			return // the waiting caller asks again
		}
		x.Message = signed
	}
	if a.host != nil && x.Session == verdict.LocalSession {
		in := verdict.Received(x)
		if fromHost {
			a.feedMember(in)
			a.grantedNames(in.Message)
		} else {
			a.feedHost(in)
		}
		return
	}
	s := a.sessions.open[x.Session]
	if s == nil {
		return
	}
	if c, ok := x.Message.(verdict.Check); ok {
		c.Challenge = a.challenge(c.Nonce, c.Incarnation)
		x.Message = c
	}
	if err := s.Send(x.Message); errors.Is(err, control.ErrTooLarge) {
		a.log.Error().Err(err).Msg("control message is not sent")
	}
	_ = a.cfg.Faults.Hit(stepOfSent(x.Message))
	if _, ok := x.Message.(verdict.Grant); ok && a.host != nil {
		a.sendKeys(x.Session)
		a.sendRoots(x.Session)
		a.sendBans(x.Session)
		a.sendNames(x.Session)
	}
}

func (a *Agent) closeSession(x verdict.CloseSession) {
	if s := a.sessions.open[x.Session]; s != nil {
		s.Close(x.Text)
	}
}

// endSession ends a session with the agent. Without a departure this is the end
// of the process, and is not reported as on purpose.
func (a *Agent) endSession(s *control.Session) {
	if a.hasDeparted() {
		s.Close("left")
		return
	}
	s.Abort()
}

// dialHost looks for the host at every place where it may be, at once.
func (a *Agent) dialHost() {
	if a.host != nil {
		a.feedMember(verdict.Connected{Session: verdict.LocalSession})
		return
	}
	addresses := a.hostAddresses()
	a.wg.Go(func() {
		s, err := a.openSession(addresses)
		posted := a.post(func() {
			if err != nil {
				a.noHost(err)
				a.feedMember(verdict.DialFailed{Text: err.Error(), Refused: a.refusedFor(err)})
				return
			}
			id := a.attach(s, func(in any) {
				switch in := in.(type) {
				case verdict.Received:
					a.feedMember(in)
					a.grantedNames(in.Message)
				case verdict.Down:
					a.feedMember(in)
				}
			})
			a.setNoHost("")
			a.feedMember(verdict.Connected{Session: id})
		})
		if !posted && s != nil {
			s.Abort()
		}
	})
}

// noHost reports why the host was not reached: at once if this node has no incarnation without
// it, and again every minute.
func (a *Agent) noHost(err error) {
	a.log.Debug().Err(err).Msg("no host")
	a.setNoHost(oneLine(err))
	if a.search.warn(time.Now(), a.member.Self().Incarnation != noIncarnation) {
		a.log.Warn().Str("error", oneLine(err)).Msg("waiting for the host")
	}
}

// setNoHost shows why the last dial of the host failed; "": it did not.
func (a *Agent) setNoHost(text string) {
	if text == "" {
		a.search.warnedAt = time.Time{}
	}
	a.view.mu.Lock()
	defer a.view.mu.Unlock()
	a.view.noHost = text
}

// hostAddresses returns where the host may be: its address in the table, the
// seeds, where it was before this start, and its address in gossip, which
// any holder of its key can: of these only a few, others each time.
func (a *Agent) hostAddresses() []string {
	var list []string
	add := func(most int, more ...string) {
		for _, p := range more {
			if len(list) < most && !slices.Contains(list, p) && !slices.Contains(a.cfg.Node.Addresses, p) {
				list = append(list, p)
			}
		}
	}
	for _, n := range a.member.Nodes() {
		if n.Incarnation.Node == addr.Host {
			add(maxHostAddresses, n.Addresses()...)
		}
	}
	add(maxHostAddresses-maxGossiped, a.cfg.Seeds...)
	for _, m := range a.cfg.State.Members() {
		if m.Incarnation.Node == addr.Host {
			add(maxHostAddresses-maxGossiped, m.Addresses...)
		}
	}
	add(min(len(list)+maxGossiped, maxHostAddresses), a.search.turn(a.gossiped.hosts(), time.Now())...)
	add(maxHostAddresses, a.cfg.Seeds...)
	return list
}

// refusedFor returns why a host does not want this node, if it names a reason, or why none
// can while this node serves its own machine; else "".
func (a *Agent) refusedFor(err error) string {
	refused, ok := errors.AsType[*control.RefusedError](err)
	if ok && refused.Remote && (refused.Code == control.CodeBanned || refused.Code == control.CodeUnknown) {
		return refused.Text
	}
	if a.member.Self().Incarnation == noIncarnation && a.cfg.Now().After(a.cfg.Trust.Identity().NotAfter) {
		return "this node's certificate has expired"
	}
	return ""
}

// hostStagger is the time between the dials of two addresses, unless the first of
// them fails before.
const hostStagger = 100 * time.Millisecond

// openSession opens a session at the first of the addresses that answers as host. It
// dials them one after the other and waits for none of them alone.
func (a *Agent) openSession(addresses []string) (*control.Session, error) {
	if len(addresses) == 0 {
		return nil, errors.New("no address to look for the host at: neither a seed nor gossip names one")
	}
	ctx, cancel := context.WithTimeout(a.ctx, hostTimeout)
	defer cancel()
	type result struct {
		s   *control.Session
		err error
	}
	results := make(chan result, len(addresses))
	stagger := time.NewTicker(hostStagger)
	defer stagger.Stop()
	var found *control.Session
	var errs []error
	done := func(s *control.Session, err error) { results <- result{s, err} }
	for begun := 0; len(errs) < len(addresses) && found == nil; {
		if begun == len(errs) {
			begun = a.dialAt(ctx, addresses, begun, done)
		}
		select {
		case r := <-results:
			if r.err != nil {
				errs = append(errs, r.err)
			} else {
				found = r.s
			}
		case <-stagger.C:
			if begun < len(addresses) {
				begun = a.dialAt(ctx, addresses, begun, done)
			}
		}
		if found != nil {
			cancel() // the others are not needed; each of them still answers
			for range begun - len(errs) - 1 {
				if r := <-results; r.s != nil {
					r.s.Abort()
				}
			}
		}
	}
	if found == nil {
		return nil, fmt.Errorf("no host: %w", errors.Join(errs...))
	}
	return found, nil
}

// dialAt begins to dial the i-th of the addresses, and returns the next one.
func (a *Agent) dialAt(ctx context.Context, addresses []string, i int, done func(*control.Session, error)) int {
	a.wg.Go(func() {
		s, err := a.dialer.Session(ctx, addresses[i])
		if err == nil && a.cfg.Node.Want != 0 && s.Version() < control.WantVersion && a.Self().Incarnation == noIncarnation {
			s.Abort()
			s, err = nil, fmt.Errorf("node-id %d: the host at %s is of a release that grants no ID on demand", a.cfg.Node.Want, addresses[i])
		}
		done(s, err)
	})
	return i + 1
}
