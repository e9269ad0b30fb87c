package membership

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/membership/control"
	"github.com/fabricd/fabricd/membership/gossip"
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
		Lifeline: func(l *control.Lifeline) {
			if !a.post(func() { a.acceptLine(l) }) {
				l.Abort()
			}
		},
		Log:     a.log,
		Refused: a.cfg.Refused,
	}
	if a.host != nil {
		c.Join = a.desk.join
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
	n := 0
	for _, o := range a.sessions {
		if o.Peer().UUID == s.Peer().UUID {
			n++
		}
	}
	if n >= maxPerPeer {
		a.log.Warn().Stringer("peer", s.Peer().UUID).Msg("too many control sessions of one node")
		s.Abort()
		return
	}
	a.attach(s, func(in any) {
		switch in := in.(type) {
		case verdict.Received:
			_ = a.cfg.Faults.Hit(stepOfHeard(in.Message))
			a.feedHost(in)
		case verdict.Down:
			a.feedHost(in)
		}
	})
}

// hear deals with what is not for the machines. It runs on the session's
// goroutine.
func (a *Agent) hear(s *control.Session, id verdict.SessionID, m any) {
	switch m := m.(type) {
	case control.Renew:
		_ = s.Send(a.desk.renew(s.Peer().UUID, m)) // a node that does not hear asks again
	case control.KeysHeld:
		a.post(func() { a.keysHeld(id, m.Seq) })
	case control.Certificate:
		a.post(func() { a.takeCertificate(m) })
	case control.Keys:
		a.post(func() { a.takeKeys(s, m) })
	}
}

// attach gives a session its ID and starts it. What it delivers goes to feed,
// on the loop.
func (a *Agent) attach(s *control.Session, feed func(any)) verdict.SessionID {
	a.lastID++
	id := a.lastID
	a.sessions[id] = s
	a.published = false
	log := a.log.With().Stringer("peer", s.Peer().UUID).Uint64("session", uint64(id)).Logger()
	s.Start(func(m any) {
		if m, ok := m.(verdict.Message); ok {
			a.post(func() { feed(verdict.Received{Session: id, Message: m}) })
			return
		}
		a.hear(s, id, m)
	}, func(cause verdict.DownCause, err error) {
		a.post(func() {
			a.logEnd(log, err)
			delete(a.sessions, id)
			delete(a.keys.held, id)
			delete(a.words, id)
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
	if !refused || err.Error() == a.refusal {
		log.Debug().Err(err).Msg("control session ended")
		return
	}
	a.refusal = err.Error()
	log.Warn().Err(err).Msg("control session ended by a refusal")
}

// send carries a message between the two machines of a host, or to a session.
func (a *Agent) send(x verdict.Send, fromHost bool) {
	if g, ok := x.Message.(verdict.Grant); ok {
		signed, err := a.signed(g)
		if err != nil {
			a.log.Error().Err(err).Stringer("life", g.Life).Msg("the lease is not signed, the life not granted")
			return // who waits for it asks again
		}
		x.Message = signed
	}
	if a.host != nil && x.Session == verdict.LocalSession {
		in := verdict.Received(x)
		if fromHost {
			a.feedMember(in)
		} else {
			a.feedHost(in)
		}
		return
	}
	s := a.sessions[x.Session]
	if s == nil {
		return
	}
	if err := s.Send(x.Message); errors.Is(err, control.ErrTooLarge) {
		a.log.Error().Err(err).Msg("control message is not sent")
	}
	_ = a.cfg.Faults.Hit(stepOfSent(x.Message))
	if _, ok := x.Message.(verdict.Grant); ok && a.host != nil {
		a.sendKeys(x.Session)
	}
}

func (a *Agent) closeSession(x verdict.CloseSession) {
	if s := a.sessions[x.Session]; s != nil {
		s.Close(x.Text)
	}
}

// endSession ends a session with the agent. Without a departure this is the end
// of the process, and is not said to be on purpose.
func (a *Agent) endSession(s *control.Session) {
	if a.hasDeparted() {
		s.Close("left")
		return
	}
	s.Abort()
}

func (a *Agent) hasDeparted() bool {
	select {
	case <-a.departed:
		return true
	default:
		return false
	}
}

// dialHost looks for the host at every place where it may be, at once.
func (a *Agent) dialHost() {
	if a.host != nil {
		a.feedMember(verdict.Connected{Session: verdict.LocalSession})
		return
	}
	places := a.hostPlaces()
	a.wg.Go(func() {
		s, err := a.reachHost(places)
		posted := a.post(func() {
			if err != nil {
				a.log.Debug().Err(err).Msg("no host")
				a.feedMember(verdict.DialFailed{Text: err.Error()})
				return
			}
			id := a.attach(s, func(in any) {
				switch in := in.(type) {
				case verdict.Received:
					a.feedMember(in)
				case verdict.Down:
					a.feedMember(in)
				}
			})
			a.feedMember(verdict.Connected{Session: id})
		})
		if !posted && s != nil {
			s.Abort()
		}
	})
}

// hostPlaces returns the addresses at which the host may be: where gossip saw
// it last, where the table says it is, the seeds, and where it was before this
// start.
func (a *Agent) hostPlaces() []string {
	var places []string
	add := func(list ...string) {
		for _, p := range list {
			if !slices.Contains(places, p) && !slices.Contains(a.cfg.Node.Addresses, p) {
				places = append(places, p)
			}
		}
	}
	var hosts []gossip.Member
	for k, m := range a.heard {
		if m.Meta.Host && !a.gone[k] {
			hosts = append(hosts, m)
		}
	}
	slices.SortFunc(hosts, func(x, y gossip.Member) int { return cmp.Compare(y.Meta.Term, x.Meta.Term) })
	for _, m := range hosts {
		add(m.Meta.Addresses...)
	}
	for _, n := range a.member.Nodes() {
		if n.Life.Node == addr.Host {
			add(n.Addresses...)
		}
	}
	add(a.cfg.Seeds...)
	for _, m := range a.cfg.State.Members() {
		if m.Life.Node == addr.Host {
			add(m.Addresses...)
		}
	}
	return places
}

// reachHost opens a session at the first of the places that answers as host.
func (a *Agent) reachHost(places []string) (*control.Session, error) {
	if len(places) == 0 {
		return nil, errors.New("no address to look for the host at: neither a seed nor gossip names one")
	}
	ctx, cancel := context.WithTimeout(a.ctx, hostTimeout)
	defer cancel()
	type result struct {
		s   *control.Session
		err error
	}
	results := make(chan result, len(places))
	var wg sync.WaitGroup
	for _, p := range places {
		wg.Go(func() {
			s, err := a.dialer.Session(ctx, p)
			results <- result{s, err}
		})
	}
	var found *control.Session
	var texts []string
	for range places {
		r := <-results
		switch {
		case r.err != nil:
			texts = append(texts, r.err.Error())
		case found == nil:
			found = r.s
			cancel() // the others are not needed; each of them still answers
		default:
			r.s.Abort()
		}
	}
	wg.Wait()
	if found == nil {
		return nil, fmt.Errorf("no host: %s", strings.Join(texts, "; "))
	}
	return found, nil
}
