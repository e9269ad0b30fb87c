package sim

import (
	"time"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/core"
	"github.com/fabricd/fabricd/internal/faults/failpoint"
	"github.com/fabricd/fabricd/internal/lab/history"
	"github.com/fabricd/fabricd/internal/lab/load"
	"github.com/fabricd/fabricd/internal/status"
	"github.com/fabricd/fabricd/membership/verdict"
)

// The application's habits, those of the workload of real labs.
const (
	appPort     addr.Port = 2050
	idlePort    addr.Port = 2051
	attachEvery           = 100 * time.Millisecond
	careEvery             = 100 * time.Millisecond
	scanEvery             = 2 * time.Second
	settleTime            = 20 * time.Millisecond
)

// An app is the application of a node: it keeps connections of several kinds to its
// peers and records the results. A fabricd that is gone ends every call; the
// application attaches again when there is one.
type app struct {
	w   *world
	p   *proc
	at  *machine
	src history.Source

	s           *session // nil: not attached
	incarnation addr.Incarnation
	events      int // so far
	ending      bool
	calls       *load.Calls[appCall]
	ends        []*appEnd
	oldWindows  []*load.Window
	writers     load.Writers
	nonces      uint64
	slow        int // messages per second that are received on each connection; 0: all
	scanned     time.Duration
	based       bool // the baseline is counted
}

// An appCall is a call's session, its end, and its continuation.
type appCall struct {
	s    *session
	end  *appEnd
	then func(n int64, err error)
}

func (w *world) startApp(m *machine) {
	m.appRuns++
	a := &app{w: w, at: m, src: history.App(m.index, m.appRuns)}
	a.p = newProc(w, m, "app")
	a.calls = load.NewCalls[appCall](a.Now, a.put)
	m.app = a
	w.did(a.src, history.DidStart, "")
	a.attach()
	a.care()
}

func (a *app) put(b history.Body) { a.w.put(a.src, b) }

// attach looks for the fabricd of the machine until it is there and has an incarnation.
func (a *app) attach() {
	if a.s != nil || a.ending {
		return
	}
	p := a.at.proc
	if p == nil || p.paused || p.dead || p.leaving || p.node == nil || p.node.self.Incarnation.Generation == 0 || !p.step(failpoint.AppAttached) {
		a.p.after(attachEvery, a.attach)
		return
	}
	s := &session{n: p.node, app: a}
	a.s, a.incarnation = s, p.node.self.Incarnation
	p.node.sessions = append(p.node.sessions, s)
	p.onKill = func() { a.lose(s) }
	a.put(&history.Event{What: history.EventSelf, Observer: a.incarnation, Subject: a.incarnation, UUID: p.node.self.UUID})
	a.view()
	if !a.based {
		a.based = true
		a.w.count(p, history.PhaseBaseline)
	}
	a.talk()
}

// lose is the end of the session: the fabricd is gone, and every call with it.
func (a *app) lose(s *session) {
	a.p.after(between(a.p.rng, 50*time.Microsecond, 500*time.Microsecond), func() {
		if a.s != s {
			return
		}
		a.s, a.incarnation = nil, addr.Incarnation{}
		a.endCalls(s, status.Reset)
		for _, e := range a.ends {
			e.gone()
		}
		a.attach()
	})
}

// endCalls ends every call of a session.
func (a *app) endCalls(s *session, err error) {
	for _, o := range a.calls.Open() {
		if o.Of.s == s {
			a.finish(o, 0, err)
		}
	}
}

// view writes the incarnations in the node's table at this moment.
func (a *app) view() {
	s, before := a.s, a.events
	a.p.after(settleTime, func() {
		if a.s != s || a.incarnation.Generation == 0 {
			return
		}
		if a.events != before {
			a.view()
			return
		}
		n := s.n
		v := &history.View{Observer: a.incarnation, Live: []history.Member{{Incarnation: a.incarnation, UUID: n.self.UUID}}}
		for _, id := range sortedKeys(n.peers) {
			p := n.peers[id]
			v.Live = append(v.Live, history.Member{Incarnation: p.identity.Incarnation, UUID: p.identity.UUID})
		}
		a.put(v)
	})
}

// event is the handler of node events.
func (a *app) event(s *session, e verdict.Event) {
	if a.s != s {
		return
	}
	a.events++
	r := recordOf(e, a.incarnation)
	var lost []*appEnd // the ends towards a removed incarnation
	switch r.What {
	case history.EventRemoved:
		for _, e := range a.ends {
			if e.Remote == r.Subject {
				e.Flush()
				lost = append(lost, e)
			}
		}
		a.calls.Write(func(c history.Call) bool { return c.Peer == r.Subject }) // they should have failed
	case history.EventSelf:
		a.incarnation = r.Subject
	case history.EventReset:
		a.incarnation = addr.Incarnation{}
	}
	a.put(r)
	for _, e := range lost {
		e.probe()
	}
	if r.What == history.EventSelf {
		a.view()
	}
}

// finish ends a call, unless that has been done.
func (a *app) finish(o *load.Open[appCall], n int64, err error) {
	if a.calls.End(o, n, errnoName(err)) {
		o.Of.then(n, err)
	}
}

// do makes a call on the node: f runs there when the node runs, and its answer
// comes back here.
func (a *app) do(c history.Call, e *appEnd, atOnce bool, f func(done func(n int64, err error)), then func(n int64, err error)) {
	s := a.s
	if s == nil {
		a.p.after(0, func() { then(0, status.Reset) })
		return
	}
	o := a.calls.Begin(c, atOnce, appCall{s, e, then})
	s.n.p.soon(func() {
		f(func(n int64, err error) {
			a.p.soon(func() { a.finish(o, n, err) })
		})
	})
}

// talk starts everything that this application does.
func (a *app) talk() {
	s := a.s
	a.listen(appPort, true)
	if a.w.load.Waiters {
		a.listen(idlePort, false)
	}
	for _, peer := range a.w.load.peers[a.at.index] {
		for _, kind := range a.w.load.Kinds() {
			a.keep(s, peer, kind)
		}
		if a.w.load.Connects > 0 {
			a.keep(s, peer, load.Short)
		}
	}
}

// on reports whether the session that began something is still there.
func (a *app) on(s *session) bool { return a.s == s && !a.ending && !s.leaving && !s.closing }

// listen listens and accepts. No client connects to a port that is not busy.
func (a *app) listen(port addr.Port, busy bool) {
	s := a.s
	ep := s.open()
	_, err := ep.bind(port)
	if err == nil {
		err = ep.listen(64)
	}
	if err != nil {
		a.calls.End(a.calls.Begin(history.Call{Name: "listen"}, false, appCall{}), 0, errnoName(err))
		a.p.after(attachEvery, func() {
			if a.on(s) {
				a.listen(port, busy)
			}
		})
		return
	}
	a.accept(s, ep, busy)
}

func (a *app) accept(s *session, l *endpoint, busy bool) {
	if !a.on(s) {
		return
	}
	var got *endpoint
	a.do(history.Call{Name: "accept", Idle: true}, nil, !busy, func(done func(int64, error)) {
		l.accept(func(ep *endpoint, err error) {
			got = ep
			done(0, err)
		})
	}, func(_ int64, err error) {
		if err != nil {
			return
		}
		(&appEnd{End: load.NewEnd(a, &a.w.load.Plan, 0), a: a, s: s, ep: got}).greet(got.remote.Node, func() {})
		a.accept(s, l, busy)
	})
}

// keep keeps one connection of a kind to a node: when it ends it is made again. Short ones
// begin at a rate.
func (a *app) keep(s *session, peer int, kind load.Kind) {
	if !a.on(s) {
		return
	}
	began := a.w.now
	a.dial(s, peer, kind, func() {
		wait := attachEvery
		if kind == load.Short {
			wait = max(time.Duration(float64(time.Second)/a.w.load.Connects)-(a.w.now-began), 0)
		}
		a.p.after(wait, func() { a.keep(s, peer, kind) })
	})
}

// care writes slow calls and scans windows.
func (a *app) care() {
	a.p.after(careEvery, func() {
		a.calls.WriteSlow()
		if a.w.now-a.scanned >= scanEvery {
			a.scanned = a.w.now
			for _, e := range a.ends {
				if w := e.Window(); w != nil {
					a.scan(w)
				}
			}
			for _, w := range a.oldWindows[max(0, len(a.oldWindows)-4):] {
				a.scan(w)
			}
		}
		if !a.ending {
			a.care()
		}
	})
}

// finishUp ends the application in order: its connections are closed, then its
// session is.
func (a *app) finishUp() {
	a.ending = true
	if s := a.s; s != nil && !s.leaving {
		a.endAll(s)
		a.leave(s, func() {})
	}
}

// endAll ends the calls, listeners and connections of a session.
func (a *app) endAll(s *session) {
	s.leaving = true
	for _, e := range a.ends {
		e.cancel()
	}
	for _, l := range s.endpoints {
		if l.state == core.Listening {
			s.n.p.soon(func() { l.close(func(error) {}) })
		}
	}
}

// leave closes the session when nothing is connected any more.
func (a *app) leave(s *session, then func()) {
	a.p.after(settleTime, func() {
		switch {
		case a.s != s:
		case len(a.ends) > 0:
			a.leave(s, then)
		default:
			s.n.p.soon(s.close)
			then()
		}
	})
}

// last writes the calls and windows that are left at the very end.
func (a *app) last() {
	if a.p.dead {
		return
	}
	a.calls.Write(func(history.Call) bool { return true })
	for _, w := range a.oldWindows {
		a.scan(w)
	}
}

// kill ends the application's process. Its fabricd detects that by the end of its
// socket.
func (a *app) kill() {
	a.w.did(a.src, history.DidKill, "")
	a.p.kill()
	if s := a.s; s != nil {
		p := s.n.p
		p.after(between(p.rng, 20*time.Microsecond, 200*time.Microsecond), func() {
			if p.step(failpoint.AppDied) {
				s.close()
				p.step(failpoint.AppReleased)
			}
		})
	}
}

// stop stops the application's process.
func (a *app) stop() {
	a.w.did(a.src, history.DidStop, "")
	a.p.stop()
}

// restart closes everything in order and begins again.
func (a *app) restart() {
	s := a.s
	if s == nil || s.leaving {
		return
	}
	a.endAll(s)
	a.leave(s, func() {
		a.s, a.incarnation = nil, addr.Incarnation{}
		a.endCalls(s, status.Canceled)
		a.attach()
	})
}
